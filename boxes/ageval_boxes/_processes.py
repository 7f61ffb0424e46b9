"""Processes of a box on this machine: start, read, find again, end, verify (Linux)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: The environment variable by which a process of a box is found again: ``<box>:<number>``.
COOKIE = "AGEVAL_BOX_COOKIE"

#: Seconds that the streams of a command stay open after its leader is gone, when a descendant holds them.
DRAIN = 0.75

#: Seconds after SIGKILL in which a process must be gone.
KILL_SECONDS = 5.0

_POLL = 0.02
_CHUNK = 256 * 1024


@dataclass(frozen=True, slots=True)
class Proc:
    """One process as /proc shows it. `start` (clock ticks since boot) tells a reused pid."""

    pid: int
    ppid: int
    session: int
    start: int
    state: str

    @property
    def alive(self) -> bool:
        """It is not a zombie."""
        return self.state not in "ZXx"


def read_proc(pid: int) -> Proc | None:
    """The process `pid`, or None if there is none."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except (OSError, ValueError):
        return None
    # The name in parentheses may hold anything, also parentheses.
    rest = raw[raw.rindex(b")") + 2 :].split()
    return Proc(pid, int(rest[1]), int(rest[3]), int(rest[19]), rest[0].decode("ascii"))


def all_procs() -> list[Proc]:
    """Every process of this machine that /proc shows to us."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - names only
    return [found for pid in pids if (found := read_proc(pid)) is not None]


def environ_holds(pid: int, needle: bytes) -> bool:
    """The environment with which `pid` was started contains `needle`."""
    try:
        return needle in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def pid_namespace(pid: int) -> int | None:
    """The number of the pid namespace of `pid`, or None if it is gone or belongs to another user."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino  # noqa: PTH116 - called for every process
    except OSError:
        return None


def label(pid: int) -> str:
    """What a person needs to recognise `pid`: its command line, cut, and its number."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        text = b" ".join(words).decode("utf-8", "replace").strip()
    except OSError:
        text = ""
    return f"{text[:120] or '?'} (pid {pid})"


def family(procs: Sequence[Proc], first: set[int], *, sessions: bool = True) -> set[int]:
    """`first`, all their descendants and, with `sessions`, all who share a session with one of them."""
    members = set(first)
    while True:
        found_in = {p.session for p in procs if p.pid in members and p.session} if sessions else set()
        more = {p.pid for p in procs if p.ppid in members or p.session in found_in} - members
        if not more:
            return members
        members |= more


def send(proc: Proc, number: signal.Signals) -> None:
    """Signal `proc` unless it is gone (or its number belongs to someone else by now)."""
    now = read_proc(proc.pid)
    if now is not None and now.start == proc.start:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(proc.pid, number)


def _still(procs: Sequence[Proc]) -> list[Proc]:
    found = [(proc, read_proc(proc.pid)) for proc in procs]
    return [p for p, now in found if now is not None and now.start == p.start and now.alive]


async def end_processes(find: Callable[[], list[Proc]], grace: float) -> tuple[list[str], list[str]]:
    """TERM, wait `grace` seconds, KILL whatever `find` still finds, verify.

    Returns the labels of those found at first, and of those who would not go.
    """
    procs = await asyncio.to_thread(find)
    labels = {proc.pid: label(proc.pid) for proc in procs}
    clock = asyncio.get_running_loop().time
    if grace > 0:
        for proc in procs:
            send(proc, signal.SIGTERM)
            # A stopped process would keep TERM pending until the end of the grace.
            send(proc, signal.SIGCONT)
        deadline = clock() + grace
        while clock() < deadline and _still(procs):  # noqa: ASYNC110 - foreign processes have no event
            await asyncio.sleep(_POLL)
    deadline = clock() + KILL_SECONDS
    known = {proc.pid: proc for proc in procs}
    while True:
        # Found anew each time: a process may have forked between two looks.
        for proc in await asyncio.to_thread(find):
            known[proc.pid] = proc
        left = _still(list(known.values()))
        if not left or clock() > deadline:
            return list(labels.values()), [label(proc.pid) for proc in left]
        for proc in left:
            send(proc, signal.SIGKILL)
        await asyncio.sleep(_POLL)


def kill_now(find: Callable[[], list[Proc]]) -> list[str]:
    """SIGKILL whatever `find` finds, for paths that cannot wait; says who. Does not verify."""
    killed: dict[int, str] = {}
    # A process may fork between the look and the signal; its child is found by the next look.
    for _ in range(3):
        fresh = [proc for proc in find() if proc.pid not in killed]
        for proc in fresh:
            killed[proc.pid] = label(proc.pid)
            send(proc, signal.SIGKILL)
        if not fresh:
            break
    return list(killed.values())


def settle(future: asyncio.Future[None]) -> None:
    """Give `future` its result, unless someone did."""
    if not future.done():
        future.set_result(None)


class Child:
    """A process started by us, in its own session, and watched by the running event loop.

    `exited` is a future of its exit code (negative: killed by that signal).
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        stdin: int,
        pass_fds: Sequence[int] = (),
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.popen: subprocess.Popen[bytes] = subprocess.Popen(
            argv,
            env=dict(env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            bufsize=0,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        """Its process id on the host."""
        return self.popen.pid

    def _reap(self) -> None:
        code = self.popen.poll()
        if code is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if not self.exited.done():
            self.exited.set_result(code)

    async def wait(self, timeout: float | None = None) -> int | None:
        """The exit code, or None if it still runs after `timeout` seconds."""
        await asyncio.wait([self.exited], timeout=timeout)
        return self.exited.result() if self.exited.done() else None


class Pump:
    """Reads a pipe to its end and hands each chunk to `sink`; never holds more than one chunk."""

    def __init__(self, fd: int, sink: Callable[[bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = os.dup(fd)
        self._sink = sink
        self.ended: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(self._fd, False)
        self._loop.add_reader(self._fd, self._ready)

    def _ready(self) -> bool:
        """Take one chunk; whether there was one."""
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._sink(data)
        else:
            self.close()
        return bool(data)

    def catch_up(self) -> None:
        """Read what is there now, for a caller who must not miss what came before the writer's end."""
        for _ in range(16):
            if self._fd < 0 or not self._ready():
                return

    def detach(self) -> None:
        """Go on reading, so that the writer never blocks, and forget what comes."""
        self._sink = lambda _data: None

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        settle(self.ended)
