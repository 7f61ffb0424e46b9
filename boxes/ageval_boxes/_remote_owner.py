"""Whose a sandbox is, what it was made from, and which of its options name it: for all remote kinds."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from ageval_boxes._leftovers import boot_id
from ageval_boxes._processes import read_proc

#: The label that says which process owns a sandbox.
OWNER = "ageval.owner"


def owner() -> str:
    """This process, as the value of `OWNER`: host, boot, pid, start."""
    own = read_proc(os.getpid())
    return "/".join((socket.gethostname(), boot_id(), str(os.getpid()), str(own.start if own else 0)))


def left_behind(labels: Mapping[str, str]) -> bool:
    """The owner that `labels` name is dead, or this very process; False for one on another machine."""
    host, _, rest = labels.get(OWNER, "").partition("/")
    boot, _, rest = rest.partition("/")
    pid, _, start = rest.partition("/")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    if boot != boot_id() or int(pid) == os.getpid():
        return True
    found = read_proc(int(pid))
    return found is None or not found.alive or str(found.start) != start


#: What never belongs to a build context.
_SKIPPED = frozenset({".git", ".ageval", "__pycache__", "node_modules"})


def recipe_hash(directory: Path) -> str:
    """Twelve digits for a Dockerfile and all that lies beside it: names, modes, contents, links."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if _SKIPPED & set(relative.parts):
            continue
        if path.is_symlink():
            what = b"l" + os.fsencode(path.readlink())
        elif path.is_file():
            with path.open("rb") as file:
                what = b"f" + hashlib.file_digest(file, "sha256").digest()
            what += b"x" if path.stat().st_mode & 0o100 else b"-"
        else:
            what = b"d"
        digest.update(os.fsencode(relative) + b"\0" + what + b"\0")
    return digest.hexdigest()[:12]


def recipe_of(task_root: Path | None) -> Path | None:
    """The directory with the task's Dockerfile, if it has one."""
    if task_root is None:
        return None
    directory = task_root / "environment"
    return directory if (directory / "Dockerfile").is_file() else None
