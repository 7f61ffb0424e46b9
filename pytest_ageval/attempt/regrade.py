"""An attempt that judges the work of an earlier one: what was harvested then takes the agent's place.

Nothing but the evaluate phase is done again. The environment is brought up as for a run, without agents;
then the harvest is copied into this attempt's own evidence, and what was fetched from the workspace is put
back there. The earlier attempt is only read.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_ageval.attempt.harvest import destination
from pytest_ageval.attempt.links import remove_outward_links
from pytest_ageval.box import WORKSPACE
from pytest_ageval.errors import EvaluatorError, ExecutorError
from pytest_ageval.evidence.files import read_document
from pytest_ageval.evidence.layout import Layout

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt


@dataclass(frozen=True, slots=True)
class Source:
    """The earlier attempt. `directory` is None when its evidence is gone.

    `error` is why its work could not be done, if it could not; `result` is its result.json.
    """

    attempt_id: str
    directory: Path | None
    agent: str | None = None
    model: str | None = None
    error: Mapping[str, Any] | None = None
    result: Mapping[str, Any] = field(default_factory=dict)


async def restore(attempt: Attempt) -> None:
    """Bring in the harvest. Raises EvaluatorError ``regrade_harvest_missing`` when there is none."""
    source = attempt.source
    assert source is not None
    copied = await asyncio.to_thread(_copy, source, attempt.evidence.layout)
    if not copied:
        where = source.directory if source.directory is not None else "its evidence is gone"
        raise EvaluatorError(
            "regrade_harvest_missing",
            f"nothing was harvested in {source.attempt_id} that could be judged again ({where})",
        )
    removed = await asyncio.to_thread(remove_outward_links, attempt.evidence.artifacts)
    if removed:
        attempt.flag("links_to_hidden_files")
    attempt.fact("regrade", {"source_attempt_id": source.attempt_id, "restored": copied})
    attempt.limit = source.result.get("limit")
    attempt.terminal = source.result.get("terminal")
    attempt.writers_stopped = True
    if attempt.locked.harbor is None:
        attempt.not_produced = [
            artifact.id
            for artifact in attempt.locked.artifacts
            if not destination(artifact, attempt.evidence.artifacts).exists()
        ]
        await _put_back(attempt, source)


def _copy(source: Source, layout: Layout) -> list[str]:
    """Copy what was harvested and collected; the names of what there was."""
    found: list[str] = []
    if source.directory is None:
        return found
    earlier = Layout(source.directory)
    for origin, dest in ((earlier.artifacts, layout.artifacts), (earlier.collected, layout.collected)):
        if not origin.is_dir() or origin.is_symlink():
            continue
        names = sorted(path.name for path in origin.iterdir())
        if names:
            shutil.copytree(origin, dest, symlinks=True, dirs_exist_ok=True)
        found += [f"{origin.name}/{name}" for name in names]
    return found


async def _put_back(attempt: Attempt, source: Source) -> None:
    """Artifacts that the run had fetched from the workspace lie there again, where they are declared."""
    assert source.directory is not None
    fetched, back = _fetched(source.directory), []
    for artifact in attempt.locked.artifacts:
        origin = destination(artifact, attempt.evidence.artifacts)
        if artifact.id not in fetched or not origin.exists():
            continue
        parts = PurePosixPath(artifact.path).parts
        below = parts[1:] if parts[:1] == ("workspace",) else parts
        await attempt.raw_box.upload(origin, str(PurePosixPath(WORKSPACE, *below)))
        back.append(artifact.id)
    attempt.fact("regrade_put_back", {"artifacts": back})


def _fetched(directory: Path) -> set[str]:
    """Ids of the artifacts that were fetched, not published by run.py; of an attempt before that too."""
    summary = read_document(Layout(directory).summary) or {}
    found: set[str] = set()
    for fact in summary.get("facts") or ():
        if fact.get("name") == "artifacts_harvested":
            found.update((fact.get("detail") or {}).get("pulled") or ())
        if fact.get("name") == "regrade_put_back":
            found.update((fact.get("detail") or {}).get("artifacts") or ())
    return found


def refuse_unfounded_fail(source: Source) -> None:
    """Work that could not be done is not work done badly. Raises ExecutorError."""
    if source.error is None:
        return
    raise ExecutorError(
        str(source.error.get("title") or "agent_failed"),
        f"{source.error.get('message') or ''} (in {source.attempt_id})".strip(),
        phase=str(source.error.get("phase") or "run"),
    )
