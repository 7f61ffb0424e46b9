"""Judging a Harbor attempt again: its kept artifacts go to the verifier, step by step."""

from __future__ import annotations

import asyncio
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_ageval.attempt.harbor.artifacts import Kept, put_back
from pytest_ageval.attempt.harbor.state import StepRecord
from pytest_ageval.box import WORKSPACE
from pytest_ageval.config.harbor.document import MAIN
from pytest_ageval.errors import EvaluatorError
from pytest_ageval.evidence.files import read_document

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.config.harbor.document import HarborStep


def needs_agents_box(attempt: Attempt) -> bool:
    """Some step is graded in the box in which the agent worked; a separate verifier has one of its own."""
    task = attempt.locked.harbor
    return task is None or not all(step.verifier.separate for step in task.steps)


async def regrade(attempt: Attempt) -> None:
    """Verify every step that the earlier attempt had reached. Raises EvaluatorError."""
    from pytest_ageval.attempt.harbor import verifier

    task = attempt.locked.harbor
    assert task is not None
    for step in task.steps:
        if _manifest(attempt, step) is None:
            break
        record = StepRecord(step.name)
        attempt.steps.append(record)
        await verifier.verify(attempt, step, record)
        if record.error is not None:
            break
    if not attempt.steps:
        assert attempt.source is not None
        raise EvaluatorError(
            "regrade_harvest_missing",
            f"nothing was kept of the step {task.steps[0].name!r} in {attempt.source.attempt_id}",
        )


async def restored(attempt: Attempt, step: HarborStep) -> list[Kept]:
    """The artifacts of a step, in place of fetching them. Raises EvaluatorError ``regrade_impossible``."""
    kept = await asyncio.to_thread(_kept, attempt, step)
    if step.verifier.separate:
        return kept
    there = await attempt.raw_box.exec(["pwd", "-P"], cwd=WORKSPACE, timeout=60)
    workdir = PurePosixPath(there.stdout.strip() or "/")
    whole = [row for row in kept if row.path.is_dir() and _holds(row.source, workdir) and row.service == MAIN]
    if not whole:
        raise EvaluatorError(
            "regrade_impossible",
            f"tests/test.sh grades in the agent's own box, and its working directory {workdir} was not kept; "
            'a separate verifier (environment_mode = "separate"), or an artifact of that directory, can be '
            "judged again",
        )
    await put_back(attempt.raw_box, kept)
    return kept


def _holds(source: str, workdir: PurePosixPath) -> bool:
    return source == WORKSPACE or PurePosixPath(source) in (workdir, *workdir.parents)


def _manifest(attempt: Attempt, step: HarborStep) -> list[dict[str, Any]] | None:
    """The rows of a step; None when it was not reached."""
    found = read_document(attempt.evidence.layout.harbor_artifacts(step.name) / "manifest.json")
    return None if found is None else list(found.get("entries") or ())


def _kept(attempt: Attempt, step: HarborStep) -> list[Kept]:
    directory = attempt.evidence.layout.harbor_artifacts(step.name)
    found = []
    for row in _manifest(attempt, step) or ():
        below = PurePosixPath(str(row.get("destination") or ""))
        if row.get("status") != "ok" or ".." in below.parts or below.is_absolute() or not below.parts:
            continue
        path, source = directory / below, str(row["source"])
        if path.exists() and not path.is_symlink():
            absolute = source if source.startswith("/") else f"{WORKSPACE}/{source}"
            found.append(Kept(absolute, path, str(row.get("service") or MAIN)))
    return found
