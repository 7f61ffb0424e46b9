"""A command on an ssh channel: its streams, how it ended, and its face as `StdioTransport`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING

from ageval_boxes._processes import DRAIN
from ageval_boxes._ssh_connection import BROKEN, Host, in_thread, lost, start_thread
from ageval_boxes._stdio import Backlog
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from paramiko import Channel

_CHUNK = 256 * 1024

#: Seconds for which output that still comes after the end of a command is waited for, at most.
_FLUSH = 30.0

#: Seconds after the end of an attached process in which its output must have come over the wire.
_HELD = 2.0


class _Stream(threading.Event):
    """One direction of a channel, read from the event loop.

    Serves paramiko's buffer as its event: `set` comes from paramiko's thread when there is news.
    """

    def __init__(self, channel: Channel, *, errors: bool) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._recv = channel.recv_stderr if errors else channel.recv
        self._ready = channel.recv_stderr_ready if errors else channel.recv_ready
        self._news = asyncio.Event()
        (channel.in_stderr_buffer if errors else channel.in_buffer).set_event(self)

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._news.set)

    def clear(self) -> None:
        """`read` looks for itself."""

    async def read(self) -> bytes:
        """The next chunk; b"" at the end. What is not read holds the sender up."""
        while True:
            self._news.clear()
            if self._ready() or self._channel.eof_received or self._channel.closed:
                try:
                    return self._recv(_CHUNK)
                except BROKEN:
                    return b""  # the exit code says that the connection is lost
            await self._news.wait()


class Process:
    """A command that was started by a runner. `mark` is what the runner says on stderr before anything else.

    `exited` is its exit code as a shell has it (128+n for signal n), or None if the connection was lost.
    """

    def __init__(self, host: Host, channel: Channel, number: int, mark: str) -> None:
        self.host = host
        self.channel = channel
        self.number = number
        self.stdout = _Stream(channel, errors=False)
        self._stderr = _Stream(channel, errors=True)
        self._mark = mark.encode()
        self.pid: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.exited = asyncio.ensure_future(self._exit())
        self.received = 0
        self._pumps: list[asyncio.Task[None]] = []
        self._released = False

    async def _exit(self) -> int | None:
        code = await in_thread(self.channel.recv_exit_status)
        if code >= 0:
            return code
        # Without a code: the runner itself was killed, or we lost it from sight.
        return 137 if self.host.alive(self.channel) else None

    def pump_stderr(self, sink: Callable[[bytes], None]) -> asyncio.Task[None]:
        """Read stderr to its end: first the runner's word, then the command's, to `sink`."""
        return self._pump(self._read_stderr(sink))

    def pump_stdout(self, sink: Callable[[bytes], None]) -> asyncio.Task[None]:
        """Read stdout to its end."""
        return self._pump(self._read(self.stdout, sink))

    def _pump(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._pumps.append(task)
        return task

    async def _read(self, stream: _Stream, sink: Callable[[bytes], None]) -> None:
        while data := await stream.read():
            self.received += len(data)
            sink(data)

    async def _read_stderr(self, sink: Callable[[bytes], None]) -> None:
        head = bytearray()
        while not self.pid.done():
            data = await self._stderr.read()
            head += data
            before, found, rest = head.partition(self._mark)
            word, newline, rest = rest.partition(b"\n")
            if found and newline:
                self._take_word(bytes(word))
                if rest:
                    sink(bytes(rest))
            elif not data:
                self._fail(bytes(before))
                return
        await self._read(self._stderr, sink)

    def _take_word(self, word: bytes) -> None:
        if word.isdigit():
            self.pid.set_result(int(word))
        else:
            self.pid.set_exception(BoxError("environment_exec_invalid", "the directory does not exist"))

    def _fail(self, said: bytes) -> None:
        if not self.host.alive(self.channel):
            self.pid.set_exception(lost(self.host.address, "before the command began"))
            return
        text = said.decode("utf-8", "replace").strip()[-500:]
        self.pid.set_exception(BoxError("environment_exec_failed", f"the host started nothing: {text}"))

    async def started(self, timeout: float) -> int:
        """The runner's process id on the host. Raises BoxError."""
        await asyncio.wait({self.pid}, timeout=timeout)
        if not self.pid.done():
            raise lost(self.host.address, f"no answer within {timeout:g} s")
        return self.pid.result()

    async def drain(self) -> None:
        """Wait for the rest of the output of a command that has ended; not for its descendants."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _FLUSH
        while loop.time() < deadline:
            before = self.received
            _, waiting = await asyncio.wait(self._pumps, timeout=DRAIN)
            if not waiting or self.received == before:
                return

    @property
    def drained(self) -> bool:
        """Both streams are at their end."""
        return all(pump.done() for pump in self._pumps)

    def release(self) -> None:
        """Close the channel; nothing more is read. Idempotent."""
        if self._released:
            return
        self._released = True
        for pump in self._pumps:
            pump.cancel()
        if self.pid.done() and not self.pid.cancelled():
            self.pid.exception()  # somebody has looked
        start_thread(lambda: self.host.release(self.channel))


class SshTransport:
    """`StdioTransport` over a channel. stdout is read when asked for, stderr always.

    After a lost connection `read` gives b"", `write` raises BrokenPipeError and `wait` raises
    BoxError ``environment_connection_lost``.
    """

    def __init__(self, process: Process, end: Callable[[float], Awaitable[None]], errors: Backlog) -> None:
        self.process = process
        self._end = end
        self._errors = errors
        self._lock = asyncio.Lock()
        self._over = asyncio.Event()
        self._closed = False
        self._eof = False
        process.exited.add_done_callback(self._exited)

    def _exited(self, _done: object) -> None:
        # A descendant may hold the streams for ever; what is in them by then is still read.
        asyncio.get_running_loop().call_later(_HELD, self._finish)

    def _finish(self) -> None:
        self._over.set()
        self._errors.end()

    async def read(self) -> bytes:
        """The next chunk of stdout; b"" at end of file, or when the process is gone and nothing more came."""
        if self._eof:
            return b""
        reading = asyncio.ensure_future(self.process.stdout.read())
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({reading, over}, return_when=asyncio.FIRST_COMPLETED)
            data = reading.result() if reading.done() else b""
        finally:
            reading.cancel()
            over.cancel()
        self._eof = not data
        return data

    async def read_stderr(self) -> bytes:
        """The next chunk of stderr; b"" at end of file. Beyond 1 MiB unread, the oldest is dropped."""
        return await self._errors.take()

    async def write(self, data: bytes) -> None:
        """Write all of `data`; BrokenPipeError when the process is gone or stdin was closed."""
        channel = self.process.channel
        if self._closed or channel.closed or self.process.exited.done():
            raise BrokenPipeError("the process is gone or its stdin was closed")
        sending = asyncio.ensure_future(in_thread(lambda: channel.sendall(data)))
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({sending, over}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise BrokenPipeError("the process is gone")
            sending.result()
        except BROKEN as error:
            raise BrokenPipeError(str(error) or "the channel is closed") from error
        finally:
            sending.cancel()
            over.cancel()

    async def close_stdin(self) -> None:
        """Close stdin. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(*BROKEN):
            await in_thread(self.process.channel.shutdown_write)

    async def wait(self, timeout: float | None = None) -> int | None:
        """The exit code (negative: killed by that signal), or None after `timeout` seconds."""
        await asyncio.wait({self.process.exited}, timeout=timeout)
        if not self.process.exited.done():
            return None
        code = self.process.exited.result()
        if code is None:
            raise lost(self.process.host.address, "while a process was attached")
        return 128 - code if 128 < code <= 128 + 64 else code

    async def terminate(self, grace: float = 2.0) -> int | None:
        """TERM, wait `grace` seconds, KILL the process and all its children, verify. Idempotent."""
        async with self._lock:
            try:
                await self._end(grace)
                return await self.wait(1.0)
            finally:
                self.close()

    def close(self) -> None:
        """Close all streams on our side. Idempotent."""
        self._closed = True
        self._finish()
        self.process.release()
