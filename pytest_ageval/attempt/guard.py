"""Between the box's files and the scripts that read them on the host."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ageval.attempt.links import identity, remove_escaping_links
from pytest_ageval.box import ARTIFACTS, HOME, WORKSPACE, work_parent
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt

#: The directories of a box that are the agent's.
AGENTS = (WORKSPACE, HOME, ARTIFACTS)


def remember_directories(attempt: Attempt) -> None:
    """Note which directories of the host the agent's are, before it can replace them."""
    for name in AGENTS:
        path = attempt.raw_box.host_path(name)
        if path is not None:
            attempt.directories[name] = (path, identity(path))


async def guard_files(attempt: Attempt) -> None:
    """Remove links that lead to gold or to other attempts; refuse a workspace that was replaced.

    Raises BoxError ``workspace_replaced``. Only where box and host share files: a copy is made without
    following links.
    """
    if attempt.directories:
        await asyncio.to_thread(_guard, attempt)


def _guard(attempt: Attempt) -> None:
    own = [path for path, _ in attempt.directories.values()]
    barred = (attempt.locked.dataset_root, attempt.evidence.root.parent, work_parent(), *attempt.work_dirs)
    for name, (path, was) in attempt.directories.items():
        if identity(path) != was:
            raise BoxError(
                "workspace_replaced",
                f"{name} is not the directory any more that it was when the box was opened",
                phase=attempt.phase,
            )
        removed = remove_escaping_links(path, own, barred, attempt.raw_box.host_path)
        if removed:
            attempt.flag("links_to_hidden_files")
            attempt.fact("links_removed", {"directory": name, "links": removed[:50]})


def is_real(path: Path) -> bool:
    """`path` exists and is not a symbolic link."""
    return path.exists() and not path.is_symlink()


def drop(path: Path) -> None:
    """Remove a file, a link or a tree; a link is not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
