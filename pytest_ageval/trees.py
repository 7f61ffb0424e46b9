"""Walking and copying trees that an agent has made: never following a link, and however deep they are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def entries(root: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below `root`, a directory before what is in it; nothing when `root` is a link.

    What cannot be read is passed over. Not recursive, as os.walk is before Python 3.12: a thousand nested
    directories are no error.
    """
    waiting = [] if root.is_symlink() else [str(root)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                listed = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in listed:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)


def copy_tree(source: Path, target: Path) -> list[Path]:
    """Copy a file, a link or a directory to a place that does not exist yet; its parents are made.

    Links are copied, not followed. Pipes, sockets and devices are left out and returned, and so is what
    cannot be read.
    """
    left: list[Path] = []
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink() or not source.is_dir():
        _copy(source, target, left)
        return left
    target.mkdir()
    for entry in entries(source):
        path = Path(entry.path)
        place = target / path.relative_to(source)
        if entry.is_dir(follow_symlinks=False):
            place.mkdir()
        else:
            _copy(path, place, left)
    return left


def _copy(path: Path, place: Path, left: list[Path]) -> None:
    try:
        if path.is_symlink():
            place.symlink_to(path.readlink())
        elif path.is_file():
            shutil.copyfile(path, place)
            place.chmod(path.stat().st_mode & 0o777 | 0o600)
        else:
            left.append(path)
    except PermissionError:
        left.append(path)
