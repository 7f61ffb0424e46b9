"""Where local boxes live on this machine, and how those are found whose owner is gone."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ageval_boxes._files import remove_tree
from ageval_boxes._processes import (
    COOKIE,
    Proc,
    all_procs,
    environ_holds,
    family,
    kill_now,
    pid_namespace,
    read_proc,
)
from pytest_ageval.box import Leftover, work_parent
from pytest_ageval.errors import BoxError

#: The file in a box's work directory that says whose it is.
MARKER = "box.json"

# parent / run / attempt / box
_LEVELS = 4


def default_work_parent() -> Path:
    """`work_parent`, made and closed to others if need be; `LocalBox.reap` looks there and nowhere else.

    Raises BoxError ``environment_preflight_failed`` if someone else made it.
    """
    parent = work_parent()
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = parent.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise BoxError(
            "environment_preflight_failed",
            f"{parent} is not a directory of yours; remove it or set TMPDIR",
        )
    if info.st_mode & 0o022:
        parent.chmod(0o700)
    return parent


def boot_id() -> str:
    """Which start of this machine it is: process ids mean nothing beyond it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def marker(box_id: str, labels: Mapping[str, str], kind: str = "local") -> dict[str, Any]:
    """What `MARKER` holds: the box, its labels, and the process that owns it."""
    own = read_proc(os.getpid())
    return {
        "kind": kind,
        "id": box_id,
        "labels": dict(labels),
        "pid": os.getpid(),
        "start": own.start if own else 0,
        "boot_id": boot_id(),
    }


def in_box(box_id: str) -> list[Proc]:
    """Every process of the box `box_id`: by its cookie, by descent and session, by pid namespace."""
    needle = f"{COOKIE}={box_id}:".encode()
    procs = all_procs()
    members = family(procs, {proc.pid for proc in procs if environ_holds(proc.pid, needle)})
    spaces = {pid_namespace(pid) for pid in members} - {pid_namespace(os.getpid()), None}
    if spaces:
        members |= {proc.pid for proc in procs if pid_namespace(proc.pid) in spaces}
    return [proc for proc in procs if proc.pid in members and proc.alive]


def _markers(directory: Path, levels: int, kind: str | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    try:
        found = json.loads((directory / MARKER).read_bytes())
    except FileNotFoundError:
        pass
    except (OSError, ValueError):
        return
    else:
        if isinstance(found, dict) and kind in (None, found.get("kind")):
            yield directory, found
        return
    if levels:
        try:
            entries = sorted(directory.iterdir())
        except OSError:  # removed by its owner at this moment, or not ours
            return
        for inner in entries:
            if inner.is_dir() and not inner.is_symlink():
                yield from _markers(inner, levels - 1, kind)


def owner_lives(found: Mapping[str, Any], *, ours: bool = False) -> bool:
    """The process of this machine that a marker names still runs, and is not us (unless `ours`)."""
    if found.get("boot_id") != boot_id() or (found.get("pid") == os.getpid() and not ours):
        return False
    owner = read_proc(int(found.get("pid", 0)))
    return owner is not None and owner.alive and owner.start == found.get("start")


def find(kind: str | None, labels: Mapping[str, str]) -> list[Leftover]:
    """Boxes of `kind` (None: of every kind) that have a directory here and carry all of `labels`.

    One of this very process counts as left over. Looks, and changes nothing.
    """
    return [left for left, _directory, _found in _matching(kind, labels)]


def abandoned(kind: str, labels: Mapping[str, str]) -> list[tuple[Path, dict[str, Any]]]:
    """Work directories of boxes of that kind with these labels and no living owner, with their markers."""
    return [(path, found) for left, path, found in _matching(kind, labels) if not left.alive_owner]


def _matching(kind: str | None, labels: Mapping[str, str]) -> Iterator[tuple[Leftover, Path, dict[str, Any]]]:
    parent = work_parent()
    if not parent.is_dir():
        return
    for directory, found in list(_markers(parent, _LEVELS, kind)):
        has = found.get("labels")
        if not isinstance(has, dict) or any(has.get(k) != v for k, v in labels.items()):
            continue
        try:
            age = time.time() - (directory / MARKER).stat().st_mtime
        except OSError:
            continue
        left = Leftover(str(found.get("kind")), str(directory), has, age, owner_lives(found))
        yield left, directory, found


def remove_directory(directory: Path) -> None:
    """Remove a work directory, and the directories of its run if they are empty now."""
    remove_tree(directory)
    _remove_empty(directory.parent, work_parent())


def reap(labels: Mapping[str, str], kind: str = "local") -> list[str]:
    """Kill and delete boxes of `kind` that carry all of `labels`, unless another living process owns them.

    A box of this very process counts as left over: ask only when its own `stop` will not come.
    Returns a line for each.
    """
    default_work_parent()
    removed = []
    for directory, found in abandoned(kind, labels):
        killed = kill_box(str(found.get("id", ""))) if found.get("boot_id") == boot_id() else 0
        remove_directory(directory)
        attempt = found["labels"].get("ageval.attempt", directory.name)
        removed.append(f"{kind} box of {attempt}: {directory} ({killed} processes)")
    return removed


def kill_box(box_id: str, seconds: float = 3.0) -> int:
    """Kill every process of the box `box_id`, for at most `seconds`; how many there were."""
    if not box_id:
        return 0
    killed = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        now = kill_now(lambda: in_box(box_id))
        if not now:
            break
        killed += len(now)
        time.sleep(0.02)
    return killed


def _remove_empty(directory: Path, parent: Path) -> None:
    while directory != parent and parent in directory.parents:
        try:
            directory.rmdir()
        except OSError:  # another box of the same run lives there
            return
        directory = directory.parent
