"""What the phases of an attempt do that is continued (see `pytest_ageval.attempt.resume`)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.attempt.checkpoint import go_to, refuse_incomplete
from pytest_ageval.attempt.guard import drop
from pytest_ageval.attempt.verdict import bind
from pytest_ageval.box import Box, ProbeStatus
from pytest_ageval.errors import AgevalError, BoxError
from pytest_ageval.evidence.files import read_document
from pytest_ageval.worker.spec import WorkerOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.attempt.resume import Past
    from pytest_ageval.sessions.service import AgentService

#: Seconds that what a dead process left running in its box gets to end by itself.
BUSY_SECONDS = 10.0
_POLL = 0.1


def _past(attempt: Attempt) -> Past:
    assert attempt.past is not None
    return attempt.past


# -- environment -----------------------------------------------------------------------------------


async def clear_away(attempt: Attempt) -> None:
    """It is known what the attempt comes to: its old box is removed, and none is opened."""
    from pytest_ageval.attempt.environment import box_spec

    past = _past(attempt)
    note_resumed(attempt)
    if past.run.handle is not None:
        box = attempt.registry.box(attempt.locked.box.kind)(box_spec(attempt))
        await _discard(attempt, box, past.run.handle)
    past.refuse("environment")


def note_resumed(attempt: Attempt) -> None:
    """Say in the evidence what the attempt goes on from."""
    past = _past(attempt)
    invokes = past.run.invokes()
    attempt.fact(
        "attempt_resumed",
        {
            "resumed": attempt.resumed,
            "completed_turns": sum(invoke.completed is not None for invoke in invokes),
            "turns_in_flight": sum(invoke.completed is None for invoke in invokes),
            "checkpoint": past.run.checkpoint,
            "box_taken_over": past.attached,
        },
    )


async def take_over(attempt: Attempt, box: Box) -> bool:
    """Attach to the box of the process before, if it is there and ready; else remove what is left of it."""
    past = _past(attempt)
    handle = past.run.handle
    if handle is not None:
        status = await _probe(box, handle)
        harbor = attempt.locked.harbor is not None
        wanted = past.done("environment") and (harbor or attempt.checkpoints is not None)
        if wanted and status.state == "idle":
            try:
                await box.attach(handle)
                past.attached = True
            except BoxError as error:
                attempt.fact("environment_not_taken_over", error.as_dict())
        if not past.attached and status.state != "absent":
            await _discard(attempt, box, handle)
    if attempt.locked.harbor is not None and not past.attached:
        past.start_over()  # its agents work in the whole of the container, of which nothing is kept
    note_resumed(attempt)
    return past.attached


async def _probe(box: Box, handle: Mapping[str, Any]) -> ProbeStatus:
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            status = await box.probe(handle)
        except AgevalError as error:
            return ProbeStatus("absent", error.message)
        if status.state != "busy" or time.monotonic() > until:
            return status
        await asyncio.sleep(_POLL)


async def _discard(attempt: Attempt, box: Box, handle: Mapping[str, Any]) -> None:
    try:
        await box.discard(handle)
    except AgevalError as error:
        attempt.fact("environment_not_discarded", error.as_dict())


async def restore_files(attempt: Attempt) -> bool:
    """Bring the box to where the environment phase had left it, if that had ended.

    From there the run goes forward again, turn by turn, up to where it was interrupted.
    """
    past = _past(attempt)
    checkpoint = past.run.phase("environment").checkpoint
    if attempt.checkpoints is None or checkpoint is None or not past.done("environment"):
        return False
    if not past.attached:
        refuse_incomplete(attempt, past.run.checkpoint or checkpoint)
    await go_to(attempt, checkpoint, whole=True)
    return True


# -- run -------------------------------------------------------------------------------------------


async def run_done(attempt: Attempt, service: AgentService) -> bool:
    """The run was over and its artifacts were taken: its outcome is as it was."""
    past = _past(attempt)
    if not past.over and not past.done("run"):
        return False
    service.recall()
    service.sealed = attempt.writers_stopped = True
    past.refuse("run")
    attempt.terminal = (past.fact("task_run") or {}).get("terminal")
    attempt.not_produced = list((past.fact("artifacts_harvested") or {}).get("missing") or ())
    if not past.over:
        await go_to(attempt, past.run.phase("run").checkpoint)
        await attempt.after_turn()
    return True


async def sealed(attempt: Attempt, service: AgentService) -> WorkerOutcome | None:
    """run.py had ended, and nobody wrote any more: only the harvest is done again."""
    service.recall()
    service.sealed = True
    seal = _past(attempt).run.phase("seal_run")
    await go_to(attempt, seal.checkpoint)
    await attempt.after_turn()
    attempt.writers_stopped = True
    own = _artifacts(attempt)
    before = seal.payload.get("published") or {}
    attempt.published.update({name: _still_own(own, path) for name, path in before.items()})
    kept = {Path(path).name for path in attempt.published.values() if Path(path).parent == own}
    await asyncio.to_thread(unpublish, attempt, kept)
    ended = seal.payload.get("ended")
    if ended is None:
        return None
    return WorkerOutcome(**{**ended, "leftovers": tuple(ended["leftovers"])})


def _still_own(own: Path, path: str) -> str:
    """What lay in the attempt's directory does so now, wherever that is."""
    parts = Path(path).parts
    return str(own / parts[-1]) if parts[-3:-1] == own.parts[-2:] else path


def _artifacts(attempt: Attempt) -> Path:
    return attempt.evidence.artifacts


def unpublish(attempt: Attempt, kept: set[str] | None = None) -> None:
    """Remove what the process before had published or fetched: run.py starts from its top."""
    for path in _artifacts(attempt).iterdir():
        if path.name not in (kept or ()):
            drop(path)


async def catch_up(attempt: Attempt) -> None:
    """The time was up before run.py had asked for all that it had asked before: the work is as it was."""
    if attempt.past is not None and attempt.checkpoints is not None:
        await go_to(attempt, attempt.past.run.checkpoint)
        attempt.writers_stopped = False
        with contextlib.suppress(BoxError):
            await attempt.after_turn()
        attempt.writers_stopped = True


# -- evaluate --------------------------------------------------------------------------------------


def verdict_known(attempt: Attempt) -> bool:
    """Bind the recorded answer of the evaluator, if its phase had ended."""
    past = _past(attempt)
    if not past.over:
        return False
    if past.verdict is not None:
        attempt.bind(bind(past.verdict))
        added = read_document(attempt.evidence.layout.private / "added.json")
        attempt.add_metrics(added or {})
    past.refuse("evaluate")
    return True
