"""The parent's side of the workers: start one, answer it, wait for it, end it.

    pool = WorkerPool()
    worker = await pool.start(spec, handler)
    outcome = await worker.wait()

Everything runs on one event loop, and nothing here blocks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import site
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pytest_ageval.errors import AgevalError
from pytest_ageval.worker import processes
from pytest_ageval.worker.output import OutputFile
from pytest_ageval.worker.protocol import ErrorInfo
from pytest_ageval.worker.running import Handler, Worker
from pytest_ageval.worker.spec import COOKIE, ScriptSpec, WorkerOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_ageval.worker.server import Start

__all__ = ["COOKIE", "ErrorInfo", "Handler", "ScriptSpec", "Worker", "WorkerOutcome", "WorkerPool"]

#: Marks the server, and what its workers forked without starting a program.
SERVER_COOKIE = "AGEVAL_WORKER_SERVER"

_BOOT = """\
import json, sys
found = json.loads(sys.argv[1])
sys.path[:0] = [path for path in found[0] if path not in sys.path]
sys.path += [path for path in found[1] if path not in sys.path]
from pytest_ageval.worker.server import main
main(*found[2:])
"""

#: Seconds for the fork server to end by itself when its socket is closed.
_CLOSE_SECONDS = 5.0

_MESSAGE_LIMIT = 64 * 1024


#: Seconds for which a server may be silent while a worker is to start; of one that spawns, the last resort.
_SILENT_SECONDS: dict[Start, float] = {"fork": 20.0, "spawn": 120.0}

#: Servers that could not fork a worker, in a row, after which none is asked to any more.
_FAULTS = 3


class WorkerPool:
    """Starts workers, by way of a server that is itself started when it is first needed.

    Make one for each process, and use it from one event loop. There is one server for each way to start
    (`ScriptSpec.start`). When a server dies, the workers of that moment are lost, and the next `start`
    has a new one.
    """

    def __init__(self) -> None:
        self._servers: dict[Start, _Server] = {}
        #: Servers that do not answer any more, and the workers that they still have.
        self._retired: list[_Server] = []
        self._starting = asyncio.Lock()
        self._closed = False
        #: Servers that could not fork, since a worker was forked last.
        self._faulty: set[int] = set()

    async def start(self, spec: ScriptSpec, handler: Handler) -> Worker:
        """Start a worker and let it run; `handler` is called for each of its operations.

        A worker that cannot be forked is spawned: `Worker.fault` then says why. Raises AgevalError
        ``worker_start_failed`` when no worker can be had, and OSError when a file for a stream cannot be
        made.
        """
        fault: str | None = None
        if spec.start == "fork" and len(self._faulty) < _FAULTS:
            try:
                worker = await self._start_by("fork", spec, handler)
            except StartFailed as error:
                # The script has not begun, so that nothing is repeated.
                fault = str(error)
            else:
                self._faulty.clear()
                return worker
        elif spec.start == "fork":
            fault = f"{_FAULTS} servers in a row could not fork a worker"
        try:
            worker = await self._start_by("spawn", spec, handler)
        except StartFailed as error:
            raise AgevalError("worker_start_failed", str(error)) from None
        worker.fault = fault
        return worker

    async def close(self) -> None:
        """Kill every worker, and end the servers. Idempotent."""
        self._closed = True
        async with self._starting:
            servers = [*self._servers.values(), *self._retired]
            self._servers.clear()
            self._retired.clear()
        for server in servers:
            await server.close()

    @property
    def server_pid(self) -> int | None:
        """The pid of the server that forks, or of the one that spawns, when there is one."""
        living = [self._servers[start] for start in sorted(self._servers) if not self._servers[start].lost]
        return living[0].pid if living else None

    async def _start_by(self, start: Start, spec: ScriptSpec, handler: Handler) -> Worker:
        async with self._starting:
            if self._closed:
                raise AgevalError("worker_start_failed", "the worker pool is closed")
            server = self._servers.get(start)
            if server is None or server.lost:
                server = self._servers[start] = _Server(asyncio.get_running_loop(), start)
        try:
            return await server.begin(spec, handler)
        except StartFailed as error:
            if start == "fork":
                self._faulty.add(server.pid)
            if isinstance(error, ServerSilent) and self._servers.get(start) is server:
                del self._servers[start]
                self._retired.append(server)
            raise


class StartFailed(Exception):
    """The script has certainly not begun."""


class ServerLost(StartFailed):
    """The server is gone."""


class ServerSilent(StartFailed):
    """The server is there and does not answer."""


class _Server:
    """One server, and the workers that it has started."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start: Start) -> None:
        self._loop = loop
        self._cookie = secrets.token_hex(16)
        self._count = 0
        self._started: dict[int, asyncio.Future[int]] = {}
        #: Ends that were heard before `begin` had gone on from hearing of the start.
        self._early: dict[int, dict[str, Any]] = {}
        self._workers: dict[int, Worker] = {}
        self._losing: asyncio.Task[None] | None = None
        self.lost = False
        self._last_words = ""
        self._patience = _SILENT_SECONDS[start]
        #: When the server was heard last.
        self._heard = loop.time()
        self._control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        with remote:
            self._process = subprocess.Popen(
                _command(remote.fileno(), start),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                cwd="/",
                env=self._environment(),
                pass_fds=[remote.fileno()],
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._control.setblocking(False)
        loop.add_reader(self._control, self._receive)

    def _environment(self) -> dict[str, str]:
        # A forked worker shows this one in /proc, whatever its own environment is.
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            SERVER_COOKIE: self._cookie,
        }

    async def begin(self, spec: ScriptSpec, handler: Handler) -> Worker:
        """Start a worker for `spec`. Raises StartFailed."""
        self._count += 1
        number = self._count
        started: asyncio.Future[int] = self._loop.create_future()
        self._started[number] = started
        here, there = socket.socketpair()
        try:
            with there:
                await self._send_start(number, there, spec)
            pid = await self._until_started(started)
        except BaseException:
            # Its socket is closed, so a worker that was started nevertheless ends at once.
            here.close()
            raise
        finally:
            self._started.pop(number, None)
        worker = Worker(
            spec, pid, handler, secrets.token_hex(16), lambda grace: self._ask_kill(number, grace)
        )
        self._workers[number] = worker
        try:
            await worker.begin(here)
        except BaseException:
            self._workers.pop(number, None)
            here.close()
            raise
        if number in self._early:
            self._take(self._early.pop(number))
        if self.lost and self._workers.pop(number, None) is not None:
            worker.ended(None)
        return worker

    async def _until_started(self, started: asyncio.Future[int]) -> int:
        """The pid. Raises ServerSilent; a server that has much to do is heard all the time."""
        asked = self._loop.time()
        while not started.done():
            silent = self._loop.time() - max(asked, self._heard)
            if silent >= self._patience:
                raise ServerSilent(f"the server of the workers did not answer for {silent:.0f} s")
            await asyncio.wait([started], timeout=self._patience - silent)
        return started.result()

    async def _send_start(self, number: int, there: socket.socket, spec: ScriptSpec) -> None:
        with contextlib.ExitStack() as files:
            descriptors = [there.fileno()]
            for path in (spec.stdout, spec.stderr):
                descriptor = OutputFile(path).open()
                files.callback(os.close, descriptor)
                descriptors.append(descriptor)
            message = json.dumps({"op": "start", "id": number}).encode()
            await self._send(lambda: socket.send_fds(self._control, [message], descriptors))

    async def _send(self, send: Callable[[], object]) -> None:
        while True:
            if self.lost:
                raise ServerLost(self._last_words)
            try:
                send()
            except BlockingIOError:
                await asyncio.sleep(0.005)
            except OSError:
                self._lose()
            else:
                return

    async def _ask_kill(self, number: int, grace: float) -> None:
        message = json.dumps({"op": "kill", "id": number, "grace": grace}).encode()
        with contextlib.suppress(ServerLost):
            await self._send(lambda: self._control.send(message))

    def _receive(self) -> None:
        while True:
            try:
                data = self._control.recv(_MESSAGE_LIMIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._lose()
                return
            self._heard = self._loop.time()
            self._take(json.loads(data))

    def _take(self, message: dict[str, Any]) -> None:
        number = message["id"]
        if message["event"] == "ended":
            worker = self._workers.pop(number, None)
            if worker is not None:
                worker.ended(message)
            elif number in self._started:
                self._early[number] = message
            return
        started = self._started.get(number)
        if started is None or started.done():
            return
        if message["event"] == "started":
            started.set_result(message["pid"])
        else:
            started.set_exception(StartFailed(message["error"]))

    # -- the end ---------------------------------------------------------------------------------

    def _lose(self) -> None:
        """The server has died by itself, or another's hand."""
        if self.lost:
            return
        self.lost = True
        self._loop.remove_reader(self._control)
        self._control.close()
        self._read_log()
        for started in self._started.values():
            if not started.done():
                started.set_exception(ServerLost(self._last_words))
        self._losing = self._loop.create_task(self._clean_up())

    async def _clean_up(self) -> None:
        """Its workers die with it; what they started is found here, since their subreaper is gone."""
        workers = list(self._workers.values())
        self._workers.clear()
        await asyncio.to_thread(self._kill_remains, [worker.cookie for worker in workers])
        for worker in workers:
            worker.ended(None)
            # Whoever never waits for it must not leave its socket open.
            await worker.concluded()

    def _kill_remains(self, cookies: list[str]) -> None:
        self._process.kill()
        self._process.wait()
        processes.kill_tree([], cookie=(SERVER_COOKIE, self._cookie))
        for cookie in cookies:
            processes.kill_tree([], cookie=(COOKIE, cookie))

    async def close(self) -> None:
        """End the server, and with it all workers."""
        if not self.lost:
            self.lost = True
            self._loop.remove_reader(self._control)
            self._control.close()
            for worker in self._workers.values():
                worker.kill_asked = True
            try:
                await asyncio.to_thread(self._process.wait, _CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._log.close()
            await self._clean_up()
        elif self._losing is not None:
            await self._losing

    def _read_log(self) -> None:
        """Keep what the server wrote before it died; nothing in the ordinary case."""
        self._log.seek(0)
        text = self._log.read(8192).decode("utf-8", "replace").strip()
        self._log.close()
        self._last_words = f"the server of the workers has died{': ' if text else ''}{text}"


def _command(control: int, start: Start) -> list[str]:
    front = [path for path in _python_path() if path in sys.path]
    back = [path for path in [site.getusersitepackages()] if path in sys.path]
    options = ["-I", "-u", "-X", "utf8", *(["-B"] if sys.dont_write_bytecode else [])]
    # The package's own place comes last: it is there already but for unusual installations.
    back.append(str(Path(__file__).resolve().parents[2]))
    arguments = json.dumps([front, back, control, os.getpid(), start])
    return [sys.executable, *options, "-c", _BOOT, arguments]


def _python_path() -> list[str]:
    """What the caller's PYTHONPATH adds; the interpreter's own paths are found by itself."""
    found = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [str(Path(path).absolute()) for path in found if path]
