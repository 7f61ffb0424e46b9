"""Taking the declared artifacts out of the box, into ``task-artifacts/`` of the evidence."""

from __future__ import annotations

import asyncio
import fnmatch
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pytest_ageval.attempt.links import remove_outward_links
from pytest_ageval.box import ARTIFACTS, WORKSPACE
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.config.locked import Artifact

#: Nothing is there, or nothing that can be had under that name.
ABSENT = frozenset({"environment_download_missing", "environment_path_invalid"})


async def harvest(attempt: Attempt) -> None:
    """Fetch what run.py did not publish itself. What is not there is noted, not an error."""
    pulled, skipped, missing = [], [], []
    for artifact in attempt.locked.artifacts:
        dest = destination(artifact, attempt.evidence.artifacts)
        if _present(dest):
            skipped.append(artifact.id)
        elif await _pull(attempt, artifact, dest):
            pulled.append(artifact.id)
        else:
            missing.append(artifact.id)
    removed = await asyncio.to_thread(remove_outward_links, attempt.evidence.artifacts)
    if removed:
        attempt.flag("links_to_hidden_files")
        attempt.fact("links_removed", {"links": removed[:50]})
    attempt.not_produced = missing
    attempt.fact("artifacts_harvested", {"pulled": pulled, "skipped": skipped, "missing": missing})


def destination(artifact: Artifact, directory: Path) -> Path:
    """``<id><suffix>`` for a file (``.json`` when the path has none), ``<id>`` for a tree."""
    if artifact.kind == "tree":
        return directory / artifact.id
    return directory / f"{artifact.id}{PurePosixPath(artifact.path).suffix or '.json'}"


def candidates(artifact: Artifact) -> Iterator[str]:
    """Where in the box the artifact may be, best first."""
    path = PurePosixPath(artifact.path)
    if artifact.kind == "tree":
        below = path.parts[1:] if path.parts[:1] == ("workspace",) else path.parts
        yield str(PurePosixPath(WORKSPACE, *below))
        return
    places = [f"{WORKSPACE}/{path.name}", f"{WORKSPACE}/{path}", f"{ARTIFACTS}/{path.name}"]
    if path.parts[:1] == ("workspace",):
        places.insert(0, str(PurePosixPath(WORKSPACE, *path.parts[1:])))
    yield from dict.fromkeys(places)


def _present(dest: Path) -> bool:
    return any(dest.iterdir()) if dest.is_dir() else dest.exists()


async def _pull(attempt: Attempt, artifact: Artifact, dest: Path) -> bool:
    for source in candidates(artifact):
        try:
            await attempt.raw_box.download(source, dest)
        except BoxError as error:
            if error.title in ABSENT:
                continue
            raise
        if await asyncio.to_thread(accept, attempt, dest, artifact.exclude):
            return True
    return False


def accept(attempt: Attempt, dest: Path, exclude: Sequence[str]) -> bool:
    """Make what was fetched safe to look at; False when it is a link itself, which counts as missing.

    Nothing may follow a link before this: an agent decides where its links lead.
    """
    if dest.is_symlink():
        dest.unlink()
        removed = [dest.name]
    elif dest.is_dir():
        removed = remove_outward_links(dest)
        prune(dest, exclude)
    else:
        removed = []
    if removed:
        attempt.flag("links_to_hidden_files")
        attempt.fact("links_removed", {"artifact": dest.name, "links": removed[:50]})
    return dest.exists()


def prune(root: Path, patterns: Sequence[str]) -> None:
    """Remove what matches one of the globs, by name or by path relative to `root`."""
    if not patterns or root.is_symlink():
        return
    for directory, names, files in os.walk(root, topdown=False, followlinks=False):
        for name in (*names, *files):
            path = Path(directory, name)
            relative = path.relative_to(root).as_posix()
            if any(fnmatch.fnmatch(name, p) or fnmatch.fnmatch(relative, p) for p in patterns):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
