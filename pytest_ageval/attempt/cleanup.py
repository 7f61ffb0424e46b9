"""Phase 5, cleanup: the box goes away, then the result is written. Short and forced; on every path."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_ageval import portal
from pytest_ageval.attempt import slots
from pytest_ageval.attempt.equip import take_logins_away
from pytest_ageval.attempt.evaluate import gold_directory
from pytest_ageval.attempt.guard import AGENTS, drop
from pytest_ageval.attempt.record import summarize
from pytest_ageval.attempt.scoring import stop_scoring_boxes
from pytest_ageval.box import WORKSPACE
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt

#: Seconds for stopping the sessions and for stopping the box: after Ctrl-C pytest-xdist leaves about
#: ten before it kills the process.
SESSIONS_SECONDS = 2.0
BOX_SECONDS = 8.0


async def cleanup(attempt: Attempt) -> None:
    """Stop everything that still runs; `settle` then writes the result."""
    facts: list[dict[str, Any]] = []
    if attempt.service is not None and not attempt.service.sealed:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(attempt.service.seal(), SESSIONS_SECONDS)
    await asyncio.gather(stop_box(attempt, facts), stop_scoring(attempt, facts))
    reported = await slots.call(attempt, "cleanup_report", facts)
    for fact in reported if isinstance(reported, list) else facts:
        attempt.fact(str(fact["name"]), fact.get("detail"))


async def stop_box(attempt: Attempt, facts: list[dict[str, Any]]) -> None:
    """Stop the box; what goes wrong is a warning, since the verdict is already known."""
    if not attempt.raw_box.kind:
        return
    delete = not attempt.options.keep_workspace
    if not delete:
        with contextlib.suppress(BoxError, TimeoutError):
            await asyncio.wait_for(take_logins_away(attempt), SESSIONS_SECONDS)
    try:
        await asyncio.wait_for(portal.guard(attempt.raw_box.stop(delete=delete)), BOX_SECONDS)
    except Exception as error:  # whatever it is, the result must still be written
        attempt.cleanup_warning = attempt.redactor.text(f"{type(error).__name__}: {error}")
        facts.append({"name": "cleanup_warning", "detail": {"message": attempt.cleanup_warning}})
    else:
        facts.append({"name": "environment_stopped", "detail": {"deleted": delete}})
    if delete:
        await asyncio.to_thread(_drop_gold, attempt)
    else:
        keep_workspace(attempt, facts)


def _drop_gold(attempt: Attempt) -> None:
    """Remove the evaluator's copy. A box that was taken over has another directory and removes only that."""
    copy = gold_directory(attempt)
    if copy.is_dir():
        drop(copy)
        with contextlib.suppress(OSError):
            copy.parent.rmdir()


async def stop_scoring(attempt: Attempt, facts: list[dict[str, Any]]) -> None:
    """Stop the scoring boxes, as `stop_box`."""
    if not attempt.scoring_boxes:
        return
    try:
        await asyncio.wait_for(stop_scoring_boxes(attempt), BOX_SECONDS)
    except Exception as error:  # whatever it is, the result must still be written
        attempt.cleanup_warning = f"{type(error).__name__}: {error}"
        facts.append({"name": "cleanup_warning", "detail": {"message": attempt.cleanup_warning}})


def keep_workspace(attempt: Attempt, facts: list[dict[str, Any]]) -> None:
    """Say where the box's files are, and take away what was never the agent's."""
    kept = {PurePosixPath(name).name for name in AGENTS}
    workspace = attempt.raw_box.host_path(WORKSPACE)
    for directory in {attempt.raw_box.spec.work_dir, *([workspace.parent] if workspace else [])}:
        for path in directory.iterdir() if directory.is_dir() else ():
            if path.name not in kept and not (workspace and path in workspace.parents):
                drop(path)
    if workspace is not None and workspace.is_dir():
        attempt.kept_workspace = str(workspace)
        facts.append({"name": "workspace_kept", "detail": {"path": str(workspace)}})


def settle(attempt: Attempt) -> None:
    """Write the result, unless the attempt was interrupted, and give the evidence away."""
    try:
        summarize(attempt)
        if not attempt.interrupted and not attempt.discarded:
            attempt.evidence.write_result(attempt.outcome.as_dict())
            if attempt.checkpoints is not None and not attempt.options.keep_workspace:
                attempt.checkpoints.drop()
    finally:
        attempt.evidence.close()


async def export(attempt: Attempt) -> None:
    """Write the settled attempt as a trial of Harbor. What goes wrong is told and changes nothing."""
    root = attempt.evidence.root
    if not attempt.evidence.layout.result.is_file():
        return
    from pytest_ageval.export.harbor import jobs_directory, write_trial
    from pytest_ageval.export.source import Recorded

    try:
        await asyncio.to_thread(
            write_trial, Recorded(root), jobs_directory(root), task_root=attempt.locked.task_root
        )
    except Exception as error:  # the attempt has its result
        told = f"not exported: {type(error).__name__}: {error}; later: pytest-ageval export --format harbor"
        attempt.export_warning = attempt.redactor.text(told)
