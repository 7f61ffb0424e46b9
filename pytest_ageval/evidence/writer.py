"""One writer for each attempt directory: a lock file that a dead owner cannot hold."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence.files import document_bytes, write_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@cache
def _boot_id() -> str:
    """Which boot of which machine this is; empty when the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _namespace() -> int:
    """In which process namespace our process ids mean something; 0 when the system does not say."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _start_time(pid: int) -> str:
    """When the process started, in clock ticks after boot; empty when it does not run."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().decode("ascii", "replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the name before may hold anything
    return "" if len(fields) < 20 or fields[0] in "ZX" else fields[19]


def _identity() -> dict[str, Any]:
    pid = os.getpid()
    return {
        "pid": pid,
        "start_time": _start_time(pid),
        "boot_id": _boot_id(),
        "pid_namespace": _namespace(),
        "host": socket.gethostname(),
    }


def _alive(owner: Mapping[str, Any]) -> bool | None:
    """Whether the owner still runs; None when it cannot be known from here."""
    pid = owner.get("pid")
    if not isinstance(pid, int) or pid <= 0:
        return False
    if owner.get("boot_id") != _boot_id() or owner.get("pid_namespace") != _namespace():
        return None
    return bool(owner.get("start_time")) and _start_time(pid) == owner.get("start_time")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def _directory_lock(path: Path) -> Iterator[None]:
    """Held for the few system calls that look at the lock file and replace it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _kernel_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _holds(path: Path, owner: Mapping[str, Any]) -> bool:
    """Whether the owner that the lock file names still has the right to write."""
    alive = _alive(owner)
    if alive is None:
        probe = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            alive = not _kernel_lock(probe)
        finally:
            os.close(probe)
    return alive


def _words(owner: Mapping[str, Any]) -> str:
    return f"process {owner.get('pid')} on {owner.get('host')}"


def live_writer(path: Path) -> str | None:
    """Who has the right to write into the directory of the lock file `path` just now, in words."""
    if not path.exists():
        return None
    with _directory_lock(path.parent):
        owner = _read(path)
        return _words(owner) if owner is not None and _holds(path, owner) else None


class WriterLock:
    """The right to write into an attempt directory, until `release` or the end of the process.

    Raises `AgevalError` ``evidence_busy`` while another owner lives, in this process too. The owner
    is known by process id, start time and boot. Where these say nothing (another container with the
    same directory), the kernel's lock on the file decides. Raises OSError when nothing can be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.taken_over: dict[str, Any] | None = None
        self._descriptor: int | None = None
        with _directory_lock(path.parent):
            owner = _read(path)
            if owner is not None:
                self._refuse_if_alive(owner)
                # Children of a dead owner may hold its kernel lock: the new owner has a new file.
                path.unlink()
                self.taken_over = owner
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                write_all(descriptor, document_bytes(_identity()))
            except OSError:  # such as for a full disk
                os.close(descriptor)
                path.unlink(missing_ok=True)
                raise
            _kernel_lock(descriptor)
            self._descriptor = descriptor

    def _refuse_if_alive(self, owner: Mapping[str, Any]) -> None:
        if _holds(self.path, owner):
            raise AgevalError("evidence_busy", f"{self.path.parent} is being written by {_words(owner)}")

    def release(self) -> None:
        """Give the right back. Idempotent."""
        if self._descriptor is None:
            return
        with _directory_lock(self.path.parent):
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None


def this_process() -> dict[str, Any]:
    """By what a process can be known again: id, start time, boot, process namespace, host."""
    return _identity()


def still_runs(owner: Mapping[str, Any]) -> bool | None:
    """Whether the process that `this_process` described still runs; None when that cannot be known here."""
    return _alive(owner)
