"""Starting the task's run.py and evaluator.py, and turning their end into a result or a fault."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_ageval import portal
from pytest_ageval.attempt.mirror import mirror_of
from pytest_ageval.attempt.scoring import judge_box, scoring_exec
from pytest_ageval.box import WORKSPACE
from pytest_ageval.errors import EvaluatorError, ScriptFault
from pytest_ageval.sessions.service import AgentService
from pytest_ageval.worker import view
from pytest_ageval.worker.client import ScriptSpec, Worker, WorkerOutcome, WorkerPool

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt


def host_workspace(attempt: Attempt) -> Path:
    """The workspace as a directory of the host, where run.py and evaluator.py find it."""
    mirror = mirror_of(attempt)
    if mirror is not None:
        return mirror.directory
    found = attempt.raw_box.host_path(WORKSPACE)
    assert found is not None  # there is a mirror otherwise
    return found


async def start_run_script(attempt: Attempt, service: AgentService) -> Worker:
    """Start run.py; its requests go to `service`."""
    if (mirror := mirror_of(attempt)) is not None:
        await mirror.pull()
    contained = await _contained(attempt)
    return await _start(attempt, _spec(attempt, "run", Path("run.py"), "run", contained), service)


async def run_evaluator_script(attempt: Attempt, inputs: Mapping[str, Any]) -> Any:
    """Run evaluator.py to its end and return what it returned. Raises EvaluatorError or ScriptFault."""
    module, _, function = attempt.locked.evaluation.entrypoint.partition(":")
    script = Path(*module.split(".")).with_suffix(".py")
    service = AgentService(attempt, "evaluate", scoring_exec, judge_box)
    spec = _spec(attempt, "evaluate", script, function, await _contained(attempt), inputs)
    worker = await _start(attempt, spec, service)
    try:
        waiting = asyncio.ensure_future(worker.wait())
        if not await attempt.clock.wait(waiting):
            raise EvaluatorError(
                "evaluate_timeout",
                f"{script} had not returned after {attempt.clock.budget:g} s (limits.evaluate_seconds)",
                detail=_tail(attempt, await _kill(worker, waiting)),
            )
        ended = waiting.result()
    finally:
        await service.seal()
        leftovers = await worker.kill()
        if leftovers:
            attempt.fact("leftover_processes_killed", {"processes": leftovers[:50]})
    attempt.judge_failure = service.failure
    attempt.fact("evaluator_exec", {"exit_code": ended.exit_code, "parent_worker": True})
    attempt.tails["evaluator"] = _tail(attempt, ended) or ""
    fault = fault_of(attempt, ended, "evaluate")
    if fault is not None:
        raise fault
    return ended.value


async def _start(attempt: Attempt, spec: ScriptSpec, service: AgentService) -> Worker:
    worker = await pool().start(spec, service.handle)
    if worker.fault is not None:
        attempt.fact("task_script_not_forked", {"reason": worker.fault})
    return worker


async def _kill(worker: Worker, waiting: asyncio.Future[WorkerOutcome]) -> WorkerOutcome | None:
    await worker.kill()
    await asyncio.wait({waiting}, timeout=5)
    return waiting.result() if waiting.done() and waiting.exception() is None else None


def _tail(attempt: Attempt, ended: WorkerOutcome | None) -> str | None:
    """The last of what the script printed, redacted."""
    if ended is None:
        return None
    text = "\n".join(part for part in (ended.stdout_tail, ended.stderr_tail) if part.strip())
    return attempt.redactor.text(text[-4000:]) or None


def _spec(
    attempt: Attempt,
    kind: Literal["run", "evaluate"],
    script: Path,
    function: str,
    contained: bool,
    inputs: Mapping[str, Any] | None = None,
) -> ScriptSpec:
    locked, identity = attempt.locked, attempt.identity
    return ScriptSpec(
        kind=kind,
        script=locked.task_root / script,
        function=function,
        task_root=locked.task_root,
        dataset_root=locked.dataset_root,
        workspace=host_workspace(attempt),
        artifacts=attempt.evidence.artifacts,
        evaluation=None if inputs is None else Path(inputs["evaluation_dir"]),
        params=dict(locked.parameters),
        attempt_id=identity.attempt_id,
        trial_id=identity.trial_id,
        run_id=identity.run_id,
        inputs=inputs or {},
        deadline_monotonic=deadline(attempt),
        stdout=attempt.evidence.log_path(kind, "stdout"),
        stderr=attempt.evidence.log_path(kind, "stderr"),
        contained=contained,
        hidden=(attempt.evidence.root.parent, *attempt.options.hidden),
        owner=_owner(attempt) if contained else None,
        start=attempt.options.script_start,
    )


async def _contained(attempt: Attempt) -> bool:
    """Whether the script is contained; the evidence says when it is not."""
    reason = "trust_tasks" if attempt.options.trust_tasks else await asyncio.to_thread(view.unusable)
    if reason is None and os.geteuid() != 0 and _owner(attempt) is not None:
        # A contained script has no power over files of others, and only root can give it some.
        reason = "the workspace belongs to the user of the box"
    if reason is not None:
        attempt.fact("task_script_not_contained", {"reason": reason})
    return reason is None


def _owner(attempt: Attempt) -> tuple[int, int] | None:
    """Whose the workspace is, if it is not ours: the user's of a container."""
    info = host_workspace(attempt).stat()
    return None if info.st_uid == os.geteuid() else (info.st_uid, info.st_gid)


def deadline(attempt: Attempt) -> float | None:
    """When the phase's time is up, on the clock that all processes of this machine share."""
    left = attempt.clock.remaining()
    return None if left is None else time.monotonic() + left


def fault_of(attempt: Attempt, ended: WorkerOutcome, phase: str) -> ScriptFault | None:
    """Why the script did not return a value, or None when it did. Its text is redacted."""
    if ended.error is None:
        return None
    found = ended.error
    where = f" ({Path(found['file']).name}:{found['line']})" if found["file"] else ""
    return ScriptFault(
        found["title"],
        attempt.redactor.text(f"{found['message']}{where}"),
        phase=phase,
        detail=attempt.redactor.text(found["traceback"] or ended.stderr_tail[-2000:]) or None,
    )


_pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, WorkerPool] = weakref.WeakKeyDictionary()


def pool() -> WorkerPool:
    """The workers of the running event loop. Their fork server ends with this process."""
    loop = asyncio.get_running_loop()
    if loop not in _pools:
        _pools[loop] = WorkerPool()
        portal.at_exit(_pools[loop].close)
    return _pools[loop]
