"""The server: starts one clean worker for each script, and ends what the workers leave behind.

Starting an interpreter and importing asyncio costs about fifty milliseconds of processor time;
forking one that has done so costs one or two. So the server is such a warm interpreter. It runs no task
code and has one thread: every worker starts from the same clean state, and forking is safe. Told to
``spawn``, it starts a new interpreter for each worker instead, and is not warm itself; what the worker
then does, and is, is the same.

It is also the owner who ends what the workers start. Each worker is a *subreaper*: whatever it
starts, in whatever session and with whatever environment, stays below it, and falls to the server
when the worker ends. So anything below the server that is not a worker is a leftover of a worker that
has ended. Leftovers get SIGTERM, a moment, and SIGKILL, and only then is the end reported.

Messages on the control socket (SEQPACKET, one JSON object each): the parent sends ``start`` with
three descriptors (the worker's socket, stdout, stderr) and ``kill``; the server sends ``started``,
``failed`` and ``ended``. When the parent is gone everything is killed at once.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn

from pytest_ageval.worker import prctl, processes

#: How workers start: forked from the warm server, or each as a new interpreter.
Start = Literal["fork", "spawn"]

#: Seconds between SIGTERM and SIGKILL for what a script left behind.
LEFTOVER_GRACE = 0.3

#: Seconds after SIGKILL until the server reports what will not go away and stops waiting for it.
GIVE_UP = 0.5

#: Exit code of a server or worker that failed by itself.
BROKEN = 70

#: Leftovers that are described in one report.
_LEFTOVER_LIMIT = 50

#: Seconds between two looks: while something is being ended, and otherwise (for a lost parent).
_BUSY, _IDLE = 0.01, 1.0

_MESSAGE_LIMIT = 64 * 1024


#: Where a new interpreter finds what a forked worker has already; its arguments are paths and an `Inherited`.
_BOOT = """\
import json, sys
found = json.loads(sys.argv[1])
sys.path[:] = found.pop()
from pytest_ageval.worker.server import main_of_worker as main
main(*found)
"""


class Inherited(NamedTuple):
    """What a worker gets from the server: descriptors of its socket and of its two streams."""

    server_pid: int
    channel: int
    stdout: int
    stderr: int


@dataclass
class _Worker:
    """A worker that has not been reported as ended."""

    number: int
    pid: int
    #: Everything of this worker is killed at this time; None while nobody wants it to end.
    kill_at: float | None = None
    ended: bool = False
    leftovers: dict[processes.Process, str] = field(default_factory=dict)


class Server:
    """The loop. `serve` returns in the forked worker only; in the server it returns None at the end."""

    def __init__(self, control: socket.socket, parent: int, *, spawn: bool = False) -> None:
        self._control = control
        self._parent = parent
        self._spawn = spawn
        self._pid = os.getpid()
        self._workers: dict[int, _Worker] = {}
        self._owner: dict[processes.Process, _Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        # A child's end interrupts the waiting: the signal's number is written to this pair.
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)

    def serve(self) -> Inherited | None:
        """Answer requests until the parent is gone."""
        while os.getppid() == self._parent:
            ready = {key.fileobj for key, _ in self._selector.select(self._pause())}
            if self._wake_read in ready:
                self._wake_read.recv(4096)
            if self._control in ready:
                message, descriptors = self._receive()
                if message is None:
                    break
                inherited = self._handle(message, descriptors)
                if inherited is not None:
                    return inherited
            try:
                self._look_after()
            except (BrokenPipeError, ConnectionResetError):
                break
        self._end_everything()
        return None

    def _pause(self) -> float:
        busy = any(one.ended or one.kill_at is not None for one in self._workers.values())
        return _BUSY if busy else _IDLE

    def _receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        size = array.array("i", [0] * 3).itemsize * 3
        try:
            data, ancillary, _, _ = self._control.recvmsg(_MESSAGE_LIMIT, socket.CMSG_SPACE(size))
        except ConnectionResetError:
            return None, []
        descriptors = array.array("i")
        for _, _, content in ancillary:
            descriptors.frombytes(content)
        return (json.loads(data) if data else None), list(descriptors)

    def _send(self, event: str, **detail: Any) -> None:
        self._control.send(json.dumps({"event": event, **detail}).encode())

    def _handle(self, message: dict[str, Any], descriptors: list[int]) -> Inherited | None:
        number = int(message["id"])
        if message["op"] == "start":
            return self._start(number, descriptors)
        worker = self._workers.get(number)
        if worker is not None and not worker.ended:
            worker.kill_at = time.monotonic() + float(message["grace"])
            if float(message["grace"]) > 0:
                for pid in [worker.pid, *processes.descendants(worker.pid)]:
                    _signal(pid, signal.SIGTERM)
        return None

    def _start(self, number: int, descriptors: list[int]) -> Inherited | None:
        try:
            pid = _spawn(self._pid, descriptors) if self._spawn else os.fork()
        except OSError as error:
            for descriptor in descriptors:
                os.close(descriptor)
            self._send("failed", id=number, error=f"{type(error).__name__}: {error}")
            return None
        if pid == 0:
            self._let_go()
            return Inherited(self._pid, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._workers[number] = _Worker(number, pid)
        self._send("started", id=number, pid=pid)
        return None

    def _let_go(self) -> None:
        """In the worker: give up all that belongs to the server, so that no object closes it later."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for own in (self._control, self._wake_read, self._wake_write):
            own.close()

    # -- ends ------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        """Notice who has ended, kill whose time is up, and report who is gone with all their own."""
        now = time.monotonic()
        for worker in list(self._workers.values()):
            if not worker.ended and _has_ended(worker.pid):
                worker.ended = True
                worker.kill_at = worker.kill_at or now + LEFTOVER_GRACE
            elif not worker.ended and worker.kill_at is not None and now >= worker.kill_at:
                # The worker first: then everything below it falls to the server.
                _signal(worker.pid, signal.SIGKILL)
        ended = [worker for worker in self._workers.values() if worker.ended]
        if ended:
            self._sweep(ended, now)

    def _sweep(self, ended: list[_Worker], now: float) -> None:
        present = self._leftovers(ended)
        for worker in ended:
            own = [process for process in present if self._owner[process] is worker]
            for process in own:
                if process not in worker.leftovers:
                    worker.leftovers[process] = processes.describe(process.pid)
                    _signal(process.pid, signal.SIGTERM)
            assert worker.kill_at is not None
            if own and now < worker.kill_at + GIVE_UP:
                if now >= worker.kill_at:
                    for process in own:
                        _signal(process.pid, signal.SIGKILL)
                continue
            self._report(worker)
        self._owner = {process: self._owner[process] for process in present}

    def _leftovers(self, ended: list[_Worker]) -> list[processes.Process]:
        """Everything that lives below the server and not below a living worker, with its owner."""
        leaders = {worker.pid for worker in self._workers.values()}
        found: list[processes.Process] = []
        for pid in processes.children(self._pid):
            if pid in leaders:
                continue
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            tree = [processes.find(one) for one in [pid, *processes.descendants(pid)]]
            living = [process for process in tree if process is not None]
            for process in living:
                self._owner.setdefault(process, _guess_owner(process.pid, ended))
            found += living
        return found

    def _report(self, worker: _Worker) -> None:
        _, status, usage = os.wait4(worker.pid, 0)
        del self._workers[worker.number]
        described = list(worker.leftovers.values())
        if len(described) > _LEFTOVER_LIMIT:
            more = len(described) - _LEFTOVER_LIMIT
            described[_LEFTOVER_LIMIT:] = [f"and {more} more"]
        self._send(
            "ended",
            id=worker.number,
            code=os.waitstatus_to_exitcode(status),
            cpu=usage.ru_utime + usage.ru_stime,
            leftovers=described,
        )

    def _end_everything(self) -> None:
        deadline = time.monotonic() + 3.0
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline:
                for pid in processes.descendants(self._pid):
                    _signal(pid, signal.SIGKILL)
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                time.sleep(_BUSY)


def _spawn(server: int, descriptors: list[int]) -> int:
    """Start a new interpreter as a worker; its pid. It has the environment and the options of this one."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    options = ["-I", "-u", "-X", "utf8", *(["-B"] if sys.dont_write_bytecode else [])]
    arguments = json.dumps([server, *descriptors, sys.path])
    argv = [sys.executable, *options, "-c", _BOOT, arguments]
    return os.posix_spawn(sys.executable, argv, os.environ)


def _has_ended(pid: int) -> bool:
    # WNOWAIT leaves the zombie, so that its pid cannot be given to another process yet.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def _guess_owner(pid: int, ended: list[_Worker]) -> _Worker:
    """Whose leftover this is: its session says so, unless it has its own and several ended at once."""
    with contextlib.suppress(ProcessLookupError):
        session = os.getsid(pid)
        for worker in ended:
            if worker.pid == session:
                return worker
    return ended[-1]


def main(control: int, parent: int, start: Start = "fork") -> NoReturn:
    """Run the server on the descriptor `control` for the process `parent`; never returns.

    `sys.path` is what the workers will search after the task's own directories.
    """
    try:
        # A crashing script must not leave a core file in the workspace.
        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, most))
        prctl.become_subreaper()
        if start == "fork":
            # Imported here and not above: this is the warm state that every worker inherits.
            from pytest_ageval.worker import child

            child.warm_up()
        inherited = Server(socket.socket(fileno=control), parent, spawn=start == "spawn").serve()
        if inherited is not None:
            child.work(inherited)
    except BaseException:
        # Ends here in a worker too: it must never run on as a second server.
        _break()
    os._exit(0)


def main_of_worker(server: int, channel: int, stdout: int, stderr: int) -> NoReturn:
    """Be the worker that `server` has spawned; never returns."""
    try:
        from pytest_ageval.worker import child

        child.name_sdk()
        child.work(Inherited(server, channel, stdout, stderr))
    except BaseException:
        _break()


def _break() -> NoReturn:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(BROKEN)
