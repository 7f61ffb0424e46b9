"""Tasks that one process of a distributed run has read, for the others.

The workers of pytest-xdist collect the same tasks, each for itself. The first one reads the files and
leaves what it read in the directory of the run; the others wait for it and take it from there. A file that
has changed in between, or could not be understood, is read again by whoever needs it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pickle
from typing import TYPE_CHECKING

from pytest_ageval.config import tasks
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Tasks from which on it pays to wait for another process.
WORTH = 50


def read_together(files: Sequence[Path], directory: Path) -> None:
    """Have the tasks in `files` read once by all processes that call this with the same `directory`.

    `directory` must belong to this user alone: what lies there is trusted. Raises OSError.
    """
    if len(files) < WORTH:
        return
    directory.mkdir(mode=0o700, exist_ok=True)
    key = hashlib.sha256(os.fsencode(files[0].parent.parent)).hexdigest()[:16]
    kept = directory / f"tasks-{key}.pickle"
    with (directory / f"tasks-{key}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if kept.exists():
            tasks.adopt(pickle.loads(kept.read_bytes()))  # noqa: S301 - written below, by this user
            return
        for file in files:
            with contextlib.suppress(ConfigError):  # reported where the task is collected
                tasks.load_task(file)
        aside = kept.with_suffix(".tmp")
        aside.write_bytes(pickle.dumps(tasks.readings(), pickle.HIGHEST_PROTOCOL))
        aside.replace(kept)
