"""Between the box's files and the scripts that read them on the host."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ageval.attempt.links import View, identity, remove_escaping_links
from pytest_ageval.box import ARTIFACTS, HOME, ROOT, WORKSPACE
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """Remove links that lead out of the agent's directories; refuse a directory that was replaced.

    Raises BoxError ``workspace_replaced``. Only where box and host share files: a copy is made without
    following links.
    """
    if attempt.directories:
        await asyncio.to_thread(_guard, attempt)


def _guard(attempt: Attempt) -> None:
    for name, (path, was) in attempt.directories.items():
        if identity(path) != was:
            raise BoxError(
                "workspace_replaced",
                f"{name} is not the directory any more that it was when the box was opened",
                phase=attempt.phase,
            )
        removed = remove_escaping_links(path, _views(attempt, name, path))
        if removed:
            attempt.flag("links_to_hidden_files")
            attempt.fact("links_removed", {"directory": name, "links": removed[:50]})


def _views(attempt: Attempt, name: str, path: Path) -> list[tuple[str, View, Sequence[str]]]:
    """How a process of this host, and one in the box, would follow a link in `path`."""
    own = [os.path.realpath(directory) for directory, _ in attempt.directories.values()]
    if os.path.lexists(ROOT):
        on_host: Sequence[str] = own
    else:  # a path below /attempt is nothing to the host, so it does no harm there
        on_host = (*own, *AGENTS)
    views: list[tuple[str, View, Sequence[str]]] = [(os.path.realpath(path), lambda found: found, on_host)]
    if attempt.raw_box.visible_path(name) == name:
        views.append((name, lambda found: _in_box(attempt, found), AGENTS))
    return views


def _in_box(attempt: Attempt, path: str) -> str | None:
    if path == ROOT or not path.startswith(f"{ROOT}/"):
        return path
    host = attempt.raw_box.host_path(path)
    return None if host is None else str(host)


def drop(path: Path) -> None:
    """Remove a file, a link or a tree; a link is not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
