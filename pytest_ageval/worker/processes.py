"""Finding and ending processes through /proc: children, descendants, and those with a cookie.

A process is named by its pid and its start time, so that a pid that the kernel gave to somebody else
in the meantime is never signalled. Linux only; needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_PROC = "/proc"

#: Characters of a command line in a description.
_COMMAND_LIMIT = 160

#: Seconds between two looks at processes that should end.
_LOOK = 0.01


class Process(NamedTuple):
    """One process for as long as it lives. `start` is in clock ticks since boot."""

    pid: int
    start: int


class _Stat(NamedTuple):
    state: str
    parent: int
    start: int


def _read(path: str) -> bytes:
    """The whole of a /proc file; empty when the process is gone or not ours to see."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - pathlib is slow for a scan
            return file.readall()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def _stat(pid: int) -> _Stat | None:
    # The command name is in parentheses and may itself hold parentheses and spaces.
    _, _, rest = _read(f"{_PROC}/{pid}/stat").rpartition(b")")
    fields = rest.split()
    if len(fields) < 20:
        return None
    return _Stat(fields[0].decode("ascii"), int(fields[1]), int(fields[19]))


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208


def find(pid: int) -> Process | None:
    """The process that has this pid now; None when there is none or it is a zombie."""
    found = _stat(pid)
    return None if found is None or found.state in "ZX" else Process(pid, found.start)


def alive(process: Process) -> bool:
    """The process has neither ended nor become a zombie."""
    return find(process.pid) == process


def children(pid: int) -> list[int]:
    """The pids whose parent is `pid`, zombies included."""
    found: set[int] = set()
    try:
        threads = os.listdir(f"{_PROC}/{pid}/task")  # noqa: PTH208
    except (FileNotFoundError, ProcessLookupError):
        return []
    for thread in threads:
        path = f"{_PROC}/{pid}/task/{thread}/children"
        # Twice: the kernel may leave out a child when another one ends during the reading.
        first, second = _read(path), _read(path)
        if not first and not second and not _has_children_file():
            return _children_by_scan(pid)
        found.update(map(int, first.split()), map(int, second.split()))
    return sorted(found)


def _has_children_file() -> bool:
    """The kernel was built with CONFIG_PROC_CHILDREN."""
    return os.path.exists(f"{_PROC}/{os.getpid()}/task/{os.getpid()}/children")  # noqa: PTH110


def _children_by_scan(pid: int) -> list[int]:
    return sorted(other for other in _pids() if (found := _stat(other)) is not None and found.parent == pid)


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, parents before their children."""
    found: list[int] = []
    queue = [pid]
    while queue:
        below = [child for child in children(queue.pop()) if child not in found]
        found.extend(below)
        queue.extend(below)
    return found


def find_by_cookie(name: str, value: str) -> list[int]:
    """The processes of this user that were started with `name` = `value` in their environment.

    It finds what left its parent, session and process group, as long as it did not empty its
    environment. Never reports the calling process.
    """
    wanted = f"{name}={value}".encode()
    return [
        pid
        for pid in _pids()
        if pid != os.getpid() and wanted in _read(f"{_PROC}/{pid}/environ").split(b"\0")
    ]


def describe(pid: int) -> str:
    """``1234 sleep 1000``: the pid and the (bounded) command line."""
    command = _read(f"{_PROC}/{pid}/cmdline").replace(b"\0", b" ").strip()
    command = command or _read(f"{_PROC}/{pid}/comm").strip()
    text = command.decode("utf-8", "replace")
    cut = text if len(text) <= _COMMAND_LIMIT else text[:_COMMAND_LIMIT] + "..."
    return f"{pid} {cut}"


def send(process: Process, signum: int) -> None:
    """Signal one process; nothing happens when it is gone."""
    if alive(process):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signum)


def kill_tree(
    roots: Iterable[int], *, cookie: tuple[str, str] | None = None, grace: float = 0.0
) -> list[str]:
    """End `roots`, everything below them, and everything that carries `cookie`; blocks until done.

    SIGTERM first when `grace` (seconds) is not zero, then SIGKILL, again and again until two looks find
    nothing (at most two seconds more). Returns descriptions of what was still there for the SIGKILL.
    """
    known = {process for pid in roots if (process := find(pid)) is not None}
    known |= _below(known, cookie)
    if grace > 0:
        for process in known:
            send(process, signal.SIGTERM)
        _wait_gone(known, grace)
    described: dict[Process, str] = {}
    give_up = time.monotonic() + 2.0
    empty_looks = 0
    while empty_looks < 2 and time.monotonic() < give_up:
        known |= _below(known, cookie)
        known = {process for process in known if alive(process)}
        # Twice: in the middle of starting its program a process has no environment to be seen.
        empty_looks = 0 if known else empty_looks + 1
        for process in known:
            described.setdefault(process, describe(process.pid))
            send(process, signal.SIGKILL)
        if known:
            _wait_gone(known, 0.2)
        else:
            time.sleep(_LOOK)
    return sorted(described.values())


def _below(known: set[Process], cookie: tuple[str, str] | None) -> set[Process]:
    pids = {pid for process in known for pid in descendants(process.pid)}
    if cookie is not None:
        pids.update(find_by_cookie(*cookie))
    return {process for pid in pids if (process := find(pid)) is not None}


def _wait_gone(processes: set[Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(_LOOK)
