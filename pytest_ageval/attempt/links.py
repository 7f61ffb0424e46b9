"""Symbolic links that an agent may plant to have somebody else read (or delete) a file for it.

The agent is contained in its box; the scripts that look at its work are not. So before any of them looks,
links that lead to what it must not have are removed. A link is judged by where it leads on the host and
by where it leads in the box (``/attempt/...``); chains need no care of their own, since every link on the
way is judged itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from pytest_ageval.box import ROOT


def walk_links(root: Path) -> Iterator[Path]:
    """Every symbolic link below `root`, none of them followed; nothing when `root` is one itself."""
    if root.is_symlink():
        return
    for directory, names, files in os.walk(root, followlinks=False):
        for name in (*names, *files):
            path = Path(directory, name)
            if path.is_symlink():
                yield path


def remove_escaping_links(
    root: Path, allowed: Sequence[Path], forbidden: Iterable[Path], in_box: Callable[[str], Path | None]
) -> list[str]:
    """Unlink what leads into `forbidden` but not into `allowed`; say which, relative to `root`.

    The evaluator runs on the host: a link in the workspace to the task's gold would be compared with the
    gold itself. `in_box` gives the host's path of a path below ``/attempt``. Links to anything else (a
    virtual environment's python) stay.
    """
    inside = [os.path.realpath(path) for path in allowed]
    bars = [os.path.realpath(path) for path in forbidden]

    def leads_out(link: Path) -> bool:
        targets = [os.path.realpath(link)]
        text = os.fsdecode(os.readlink(link))  # noqa: PTH115 - what it says, not where it leads
        parts = PurePosixPath(os.path.normpath(text)).parts
        if parts[:2] == PurePosixPath(ROOT).parts:
            host = in_box(str(PurePosixPath(*parts)))
            if host is None:
                return True
            targets.append(os.path.realpath(host))
        return any(_within_any(target, bars) and not _within_any(target, inside) for target in targets)

    return _unlink(root, leads_out)


def remove_outward_links(root: Path) -> list[str]:
    """Unlink what leads out of `root` at all; say which, relative to `root`."""
    inside = os.path.realpath(root)
    return _unlink(root, lambda link: not _within(os.path.realpath(link), inside))


def _unlink(root: Path, leads_out: Callable[[Path], bool]) -> list[str]:
    found = [path for path in walk_links(root) if leads_out(path)]
    for path in found:
        path.unlink()
    return [os.fsencode(path.relative_to(root)).decode("utf-8", "backslashreplace") for path in found]


def _within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _within_any(path: str, directories: Iterable[str]) -> bool:
    return any(_within(path, directory) for directory in directories)


def identity(path: Path) -> tuple[int, int] | None:
    """Which directory `path` is, or None when it is not a directory (a link to one is not)."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None
