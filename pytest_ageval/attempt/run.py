"""Phase 2, run: run.py and its agents work; then all writers are stopped and the artifacts are taken."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

from pytest_ageval.attempt import again, slots
from pytest_ageval.attempt.checkpoint import keep
from pytest_ageval.attempt.equip import take_logins_away
from pytest_ageval.attempt.harvest import harvest
from pytest_ageval.attempt.scripts import fault_of, start_run_script
from pytest_ageval.sessions.service import AgentService

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.worker.client import Worker, WorkerOutcome

#: Seconds that stopping the agents' processes may take.
SEAL_SECONDS = 20.0


async def run(attempt: Attempt) -> None:
    """Run the script within its clock. A ceiling ends the work, not the attempt: it is still graded."""
    service = attempt.service = AgentService(attempt, "run")
    if attempt.past is not None and await again.run_done(attempt, service):
        return
    await slots.call(attempt, "before_run")
    if attempt.past is not None and attempt.past.done("seal_run"):
        ended = await again.sealed(attempt, service)
    else:
        ended = await run_script(attempt, service)
    await harvest(attempt)
    await slots.call(attempt, "after_run")
    refuse_failed(attempt)
    if ended is not None:
        take_result(attempt, ended)


async def run_script(attempt: Attempt, service: AgentService) -> WorkerOutcome | None:
    """Let run.py work, then stop all writers; how it ended, None when its time was up first."""
    if attempt.past is not None:
        await asyncio.to_thread(again.unpublish, attempt)
    worker = await start_run_script(attempt, service)
    try:
        ended = await supervise(attempt, worker)
    except BaseException:
        await seal(attempt, service, worker)
        raise
    await seal(attempt, service, worker)
    if ended is None:
        await again.catch_up(attempt)
    elif ended.error is None:
        service.refuse_unasked()
    await log_seal(attempt, ended)
    return ended


async def supervise(attempt: Attempt, worker: Worker) -> WorkerOutcome | None:
    """Wait for run.py; None when the clock ended it."""
    waiting = asyncio.ensure_future(worker.wait())
    if await attempt.clock.wait(waiting):
        return waiting.result()
    attempt.note_limit("wall_time_seconds")
    killed = await worker.kill()
    await asyncio.wait({waiting}, timeout=5)
    attempt.fact("task_killed", {"reason": "wall_time_seconds", "leftovers": killed})
    return None


async def seal(attempt: Attempt, service: AgentService, worker: Worker) -> None:
    """From here on nobody writes: sessions closed, script and agents' processes gone, verified."""
    await service.seal()
    leftovers = await worker.kill()
    leftovers += await asyncio.wait_for(attempt.raw_box.quiesce(), SEAL_SECONDS)
    if leftovers:
        attempt.fact("leftover_processes_killed", {"processes": leftovers[:50]})
    await take_logins_away(attempt)
    await attempt.after_turn()
    attempt.writers_stopped = True


async def log_seal(attempt: Attempt, ended: WorkerOutcome | None) -> None:
    """From here on the run is not repeated: how it ended stands in the step log."""
    checkpoint = await keep(attempt)
    attempt.evidence.activity.append(
        "phase",
        "completed",
        "phase_seal_run",
        {
            "phase": "seal_run",
            "elapsed_ms": round(attempt.clock.elapsed() * 1000),
            "limit_reached": attempt.limit,
            "checkpoint_seq": checkpoint,
            "published": dict(attempt.published),
            "ended": None if ended is None else asdict(ended),
            "flags": list(attempt.flags),
        },
    )


def refuse_failed(attempt: Attempt) -> None:
    """Raise what made the attempt an ERROR while it ran: a call that could not be replayed or recorded."""
    if attempt.error is not None:
        raise attempt.error


def take_result(attempt: Attempt, ended: WorkerOutcome) -> None:
    """Note what run.py returned. Raises ScriptFault when it did not return."""
    fault = fault_of(attempt, ended, "run")
    returned = ended.value if isinstance(ended.value, dict) else {}
    terminal = returned.get("terminal")
    attempt.fact(
        "task_run",
        {
            "attempt_id": attempt.identity.attempt_id,
            "ok": fault is None,
            "exit_code": ended.exit_code,
            "published": returned.get("published") or dict(attempt.published),
            "terminal": terminal,
            "stderr": attempt.redactor.text(ended.stderr_tail[-4000:]),
        },
    )
    if fault is not None:
        raise fault
    attempt.terminal = terminal
