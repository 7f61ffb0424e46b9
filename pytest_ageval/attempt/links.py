"""Symbolic links that an agent may plant to have somebody else read a file for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


def walk_links(root: Path) -> Iterator[Path]:
    """Every symbolic link below `root`, none of them followed."""
    for directory, names, files in os.walk(root, followlinks=False):
        for name in (*names, *files):
            path = Path(directory, name)
            if path.is_symlink():
                yield path


def remove_escaping_links(root: Path, forbidden: Iterable[Path]) -> list[str]:
    """Unlink what leads into `forbidden`; say which, relative to `root`.

    The evaluator runs on the host: a link in the workspace to the gold of the task would be compared
    with the gold itself. Links to anything else (a virtual environment's python) stay.
    """
    bars = [os.path.realpath(path) for path in forbidden]
    return _unlink(root, lambda target: any(_within(target, bar) for bar in bars))


def remove_outward_links(root: Path) -> list[str]:
    """Unlink what leads out of `root` at all; say which, relative to `root`."""
    inside = os.path.realpath(root)
    return _unlink(root, lambda target: not _within(target, inside))


def _unlink(root: Path, leads_out: Callable[[str], bool]) -> list[str]:
    found = [path for path in walk_links(root) if leads_out(os.path.realpath(path))]
    for path in found:
        path.unlink()
    return [os.fsencode(path.relative_to(root)).decode("utf-8", "backslashreplace") for path in found]


def _within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
