"""The run phase of a Harbor task: each step's instruction goes to the agent, within the step's time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from pytest_ageval.attempt import again, slots
from pytest_ageval.attempt.clock import PhaseClock
from pytest_ageval.attempt.harbor import networks, trajectory, verifier
from pytest_ageval.attempt.harbor.state import StepRecord
from pytest_ageval.box import ENVIRONMENT, WORKSPACE
from pytest_ageval.config.harbor.task import ROLE
from pytest_ageval.errors import BoxError
from pytest_ageval.sessions.service import AgentService

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.config.harbor.document import HarborStep, HarborTask

#: Seconds that stopping the agents' processes may take.
SEAL_SECONDS = 20.0
#: Seconds for bringing a step's files into place.
SETUP_SECONDS = 600.0


async def run(attempt: Attempt) -> None:
    """All steps; of several, each is graded before the next one starts."""
    task = attempt.locked.harbor
    assert task is not None
    if attempt.past is not None:
        attempt.steps += [StepRecord.again(row) for row in attempt.past.steps]
        if await again.run_done(attempt, AgentService(attempt, "run")):
            attempt.steps = attempt.steps or [StepRecord(task.steps[0].name)]
            return
    await slots.call(attempt, "before_run")
    graded = list(attempt.steps)
    for number, step in enumerate(task.steps):
        if number < len(graded):  # by the process before
            if number + 1 == len(task.steps) or _is_the_last(attempt, step, graded[number]):
                break
            if number + 1 == len(graded):
                await verifier.clear(attempt.raw_box)
            continue
        record = StepRecord(step.name)
        attempt.steps.append(record)
        attempt.writers_stopped = False
        await _agent(attempt, task, step, record, number)
        if not task.multi_step:
            break
        await verifier.verify(attempt, step, record)
        attempt.fact("step_finished", record.as_dict())
        if number + 1 == len(task.steps) or _is_the_last(attempt, step, record):
            break
        await verifier.clear(attempt.raw_box)
    await slots.call(attempt, "after_run")


def _is_the_last(attempt: Attempt, step: HarborStep, record: StepRecord) -> bool:
    """The next step does not start after one without a reward, or below what it must reach."""
    if record.rewards is None:
        return True
    wanted = step.min_reward
    if wanted is None:
        return False
    from pytest_ageval.attempt.harbor.reward import PRIMARY, primary

    rows = dict(wanted) if isinstance(wanted, dict) else {PRIMARY: float(wanted)}  # type: ignore[arg-type]
    for name, least in rows.items():
        found = primary(record.rewards) if name == PRIMARY else record.rewards.get(name, 0.0)
        if found < least:
            attempt.fact(
                "step_gate_missed", {"step": step.name, "reward": name, "found": found, "least": least}
            )
            return True
    return False


async def _agent(
    attempt: Attempt, task: HarborTask, step: HarborStep, record: StepRecord, number: int
) -> None:
    service = attempt.service = AgentService(attempt, "run")
    past = service.history.sessions.get(trajectory.session_id(step.name, number))
    if task.multi_step:
        if past is None:
            attempt.clock = PhaseClock(SETUP_SECONDS)
            await _bring_step(attempt, step)
        spent = 0.0 if past is None else sum(invoke.seconds for invoke in past.invokes.values())
        attempt.clock = PhaseClock(step.agent_timeout_sec, spent)
    await networks.of_agent(attempt, step)
    started = time.monotonic()
    working = asyncio.ensure_future(_ask(service, step, number))
    try:
        if await attempt.clock.wait(working):
            reply = working.result()
            attempt.fact(
                "agent_finished", {"step": step.name, "ok": reply["ok"], "error": reply.get("error")}
            )
        else:
            record.limit = "agent_timeout"
            attempt.note_limit("wall_time_seconds")
    finally:
        await _seal(attempt, service, working)
        await networks.of_environment(attempt)
        record.seconds["agent"] = round(time.monotonic() - started, 3)


async def _ask(service: AgentService, step: HarborStep, number: int) -> dict[str, object]:
    session = trajectory.session_id(step.name, number)
    opened = await service.handle("open", {"profile_id": ROLE, "session_id": session, "actor_id": None})
    if not opened["ok"]:
        return opened
    return await service.handle("invoke", {"session_id": session, "prompt": step.instruction})


async def _seal(attempt: Attempt, service: AgentService, working: asyncio.Task[dict[str, object]]) -> None:
    """From here on no agent writes: its session is closed, everything in the box is killed, verified."""
    await service.seal()
    if not working.done():
        working.cancel()
        await asyncio.wait({working}, timeout=5)
    killed = await asyncio.wait_for(attempt.raw_box.quiesce(), SEAL_SECONDS)
    if killed:
        attempt.fact("leftover_processes_killed", {"processes": killed[:50]})
    attempt.writers_stopped = True


async def _bring_step(attempt: Attempt, step: HarborStep) -> None:
    """``workdir/`` of the step goes over the working directory, its setup.sh runs, its health is awaited."""
    box = attempt.raw_box
    source = attempt.locked.task_root / (step.directory or "") / "workdir"
    if step.directory is not None and source.is_dir():
        await box.upload(source, ENVIRONMENT)
        script = f"cd -P {WORKSPACE} && cp -a {ENVIRONMENT}/. . && rm -rf {ENVIRONMENT}"
        done = await verifier.as_root(box, script)
        if not done.ok:
            raise BoxError(
                "environment_setup_failed", f"{step.directory}/workdir: {done.stderr.strip()[:300]}"
            )
        if (source / "setup.sh").is_file():
            done = await box.exec(["bash", "setup.sh"], cwd=WORKSPACE, timeout=SETUP_SECONDS)
            if not done.ok:
                raise BoxError(
                    "environment_setup_failed",
                    f"{step.directory}/workdir/setup.sh exited {done.exit_code}",
                    detail=attempt.redactor.text((done.stderr or done.stdout)[-2000:]) or None,
                )
    if step.healthcheck is not None:
        await verifier.wait_healthy(attempt, box, step.healthcheck)
