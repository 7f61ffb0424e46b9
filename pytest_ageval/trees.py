"""Walking trees that an agent has made: never following a link, and however deep they are."""

from __future__ import annotations

import os
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
