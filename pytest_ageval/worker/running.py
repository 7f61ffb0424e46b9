"""One running worker, as its parent sees it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from pytest_ageval.worker import processes, protocol
from pytest_ageval.worker.output import KEPT_LIMIT, RUNNING_LIMIT, OutputFile
from pytest_ageval.worker.spec import COOKIE, ScriptSpec, Status, WorkerOutcome

if TYPE_CHECKING:
    import socket

    from pytest_ageval.worker.protocol import ErrorInfo

#: Answers one operation of a worker: its name, the request, to the reply (see `protocol`).
Handler = Callable[[str, dict[str, Any]], Awaitable[Mapping[str, Any]]]

#: Seconds that a script's threads and exit functions have after it has sent its result.
SETTLE_SECONDS = 5.0

#: Seconds for frames and handlers to end after the process has.
_DRAIN_SECONDS = 1.0

#: Seconds between two looks at the size of the streams' files.
_LOOK_SECONDS = 1.0


class Worker:
    """A script that runs. `pid` is its process; its session and process group have the same number.

    If `handler` raises, the worker is killed and `wait` raises the same exception: an error of the
    parent's is never told to a task as if it were an answer.
    """

    def __init__(
        self,
        spec: ScriptSpec,
        pid: int,
        handler: Handler,
        cookie: str,
        ask_kill: Callable[[float], Awaitable[None]],
    ) -> None:
        self.spec = spec
        self.pid = pid
        self.cookie = cookie
        self._handler = handler
        self._ask_kill = ask_kill
        loop = asyncio.get_running_loop()
        self._end: asyncio.Future[Mapping[str, Any] | None] = loop.create_future()
        self._results: list[dict[str, Any]] = []
        self._got_result = asyncio.Event()
        self._requests: set[asyncio.Task[None]] = set()
        #: Why it was not forked although it should have been.
        self.fault: str | None = None
        self._broken: BaseException | None = None
        #: Its end is the parent's wish.
        self.kill_asked = False
        self._streams = [OutputFile(spec.stdout), OutputFile(spec.stderr)]
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._reading: asyncio.Task[None]
        self._outcome: asyncio.Task[WorkerOutcome]

    async def begin(self, connection: socket.socket) -> None:
        """Send the script its work. Called once, by the pool."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=connection, limit=1024 * 1024)
        self._write({"t": "launch", **self.spec.launch(self.cookie)})
        self._reading = asyncio.create_task(self._read())
        self._outcome = asyncio.create_task(self._conclude())

    def ended(self, message: Mapping[str, Any] | None) -> None:
        """The process has ended, says the server; None: nobody knows how. Called by the pool."""
        if not self._end.done():
            self._end.set_result(message)

    async def concluded(self) -> None:
        """Return when its end has been dealt with, whatever it was. Called by the pool."""
        await asyncio.wait([self._outcome])

    async def wait(self) -> WorkerOutcome:
        """What came of it, once it and everything that it started have ended.

        May be called any number of times; cancelling the caller does not touch the worker.
        """
        outcome = await asyncio.shield(self._outcome)
        if self._broken is not None:
            raise self._broken
        return outcome

    async def kill(self, grace: float = 1.0) -> list[str]:
        """End it and all that it started; returns when they are gone.

        SIGTERM to all of them, and after `grace` seconds SIGKILL. Returns a description of each
        process that was still there when the script itself had ended. After a normal end it does
        nothing but return what was left then.
        """
        if not self._end.done():
            self.kill_asked = True
            await self._ask_kill(grace)
        outcome = await asyncio.shield(self._outcome)
        if self.kill_asked:
            # The server has ended everything below the worker. What is not below it any more
            # can only have got out with the help of a privileged process; look all the same.
            mark = (COOKIE, self.cookie)
            return [*outcome.leftovers, *await asyncio.to_thread(_kill_marked, mark)]
        return list(outcome.leftovers)

    # -- frames ----------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(protocol.HEADER), "big")
                if size > protocol.FRAME_LIMIT:
                    raise ValueError(f"a frame of {size} bytes")
                self._take(protocol.decode(await self._reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        except (ValueError, KeyError) as error:
            # The SDK never sends such a thing: the script has written to the socket itself.
            self._results += [_broken_protocol(f"the worker sent {error}")]
            self._got_result.set()

    def _take(self, frame: dict[str, Any]) -> None:
        if frame["t"] == "result":
            self._results.append(frame)
            self._got_result.set()
            return
        request = asyncio.create_task(self._answer(frame))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)

    async def _answer(self, frame: dict[str, Any]) -> None:
        try:
            reply = await self._handler(frame["op"], frame["payload"])
            if frame["t"] == "call":
                self._write({"t": "reply", "id": frame["id"], "reply": reply})
                await self._writer.drain()
        except ConnectionError:
            return  # the script ended without waiting for the answer
        except Exception as error:
            if self._broken is None:
                self._broken = error
            self.kill_asked = True
            await self._ask_kill(0.0)

    def _write(self, frame: Mapping[str, Any]) -> None:
        try:
            data = protocol.encode(frame)
        except protocol.FrameTooLarge as error:
            refusal = {"ok": False, "error": str(error)}
            data = protocol.encode({"t": "reply", "id": frame.get("id"), "reply": refusal})
        self._writer.write(data)

    # -- the end ---------------------------------------------------------------------------------

    async def _conclude(self) -> WorkerOutcome:
        end = await self._watch()
        # Whatever held the other end of the socket is gone, so this ends by itself.
        await asyncio.wait([self._reading], timeout=_DRAIN_SECONDS)
        self._reading.cancel()
        await self._end_requests()
        self._writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        await self._bound_streams(KEPT_LIMIT)
        return self._judge(end)

    async def _watch(self) -> Mapping[str, Any] | None:
        """Wait for the end; keep the streams' files small; do not wait for ever after the result."""
        loop = asyncio.get_running_loop()
        result = asyncio.create_task(self._got_result.wait())
        settle_until: float | None = None
        try:
            while not self._end.done():
                if result.done() and settle_until is None:
                    settle_until = loop.time() + SETTLE_SECONDS
                waiting: set[asyncio.Future[Any]] = {self._end} if result.done() else {self._end, result}
                await asyncio.wait(waiting, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                await self._bound_streams(RUNNING_LIMIT)
                if settle_until is not None and loop.time() > settle_until:
                    settle_until = float("inf")
                    await self._ask_kill(0.5)
        finally:
            result.cancel()
        return self._end.result()

    async def _bound_streams(self, limit: int) -> None:
        for stream in self._streams:
            if stream.size() > limit:
                await asyncio.to_thread(stream.bound, limit)

    async def _end_requests(self) -> None:
        """Notes are still heard; who waits for the answer of a call is gone."""
        if self._requests:
            await asyncio.wait(self._requests, timeout=0.1)
        for request in list(self._requests):
            request.cancel()
        if self._requests:
            await asyncio.wait(self._requests, timeout=_DRAIN_SECONDS)

    def _judge(self, end: Mapping[str, Any] | None) -> WorkerOutcome:
        code = None if end is None else int(end["code"])
        status, value, error = self._story(code)
        return WorkerOutcome(
            status=status,
            value=value,
            error=error,
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            stdout_tail=self._streams[0].text(),
            stderr_tail=self._streams[1].text(),
            leftovers=() if end is None else tuple(end["leftovers"]),
            cpu_seconds=None if end is None else float(end["cpu"]),
        )

    def _story(self, code: int | None) -> tuple[Status, Any, ErrorInfo | None]:
        name = self.spec.script.name
        result = self._results[0] if self._results else {}
        if self.kill_asked:
            return "killed", result.get("value"), _error("worker_killed", f"{name} was ended")
        if len(self._results) > 1:
            return "raised", None, _broken_protocol("the worker sent two results")["error"]
        if result and result["status"] == "exited":
            place: ErrorInfo = result["error"]
            message = f"{name} exited {result['exit_code']} without a result"
            return "exited", None, {**place, "title": NO_RESULT, "message": message}
        if result:
            return result["status"], result.get("value"), result.get("error")
        if code is None:
            message = f"{name} was lost, because the process that started it has died"
            return "lost", None, _error("worker_lost", message)
        if code < 0:
            message = f"{name} was ended by {_signal_name(-code)} without a result"
            return "killed", None, _error(NO_RESULT, message)
        return "exited", None, _error(NO_RESULT, f"{name} exited {code} without a result")


#: Title of the error of a script that ended in any way but returning or raising.
NO_RESULT = "task_worker_no_result"


def _error(title: str, message: str) -> ErrorInfo:
    return {"title": title, "message": message, "traceback": None, "file": None, "line": None}


def _broken_protocol(message: str) -> dict[str, Any]:
    return {"t": "result", "status": "raised", "error": _error("worker_protocol", message)}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _kill_marked(mark: tuple[str, str]) -> list[str]:
    found = processes.find_by_cookie(*mark)
    return processes.kill_tree(found, cookie=mark) if found else []
