"""The standard streams of a long-lived process on this machine, as the box protocol wants them."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from typing import IO

from ageval_boxes._processes import DRAIN, Child, Pump, settle

_CHUNK = 256 * 1024
_HEAD = 4096

#: Bytes of stderr kept for a reader that is late; beyond it the oldest are dropped.
STDERR_LIMIT = 1024 * 1024


class Backlog:
    """stderr that nobody has asked for yet: bounded, so that neither the process blocks nor we grow."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._news = asyncio.Event()
        self._ended = False
        self.head = b""

    def feed(self, data: bytes) -> None:
        if len(self.head) < _HEAD:
            self.head += data[:_HEAD]
        self._chunks.append(data)
        self._size += len(data)
        while self._size > STDERR_LIMIT and len(self._chunks) > 1:
            old = self._chunks.popleft()
            self._size -= len(old)
            self._dropped += len(old)
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def take(self) -> bytes:
        while not self._chunks and not self._ended:
            self._news.clear()
            await self._news.wait()
        if self._dropped:
            note, self._dropped = f"\n[... {self._dropped} bytes cut ...]\n", 0
            return note.encode()
        if not self._chunks:
            return b""
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        return data


class PipeTransport:
    """`StdioTransport` over three pipes.

    stdout is read only when asked for, so that a slow reader slows the process down; stderr is
    always read, so that a flood of messages never blocks the process. `end` kills all that
    belongs to the process and verifies it; `code` turns an exit code and the
    beginning of stderr into the protocol's exit code.
    """

    def __init__(
        self,
        child: Child,
        end: Callable[[float], Awaitable[object]],
        code: Callable[[int, bytes], int] = lambda code, _stderr: code,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._child = child
        self._end = end
        self._code = code
        self._lock = asyncio.Lock()
        self._stdin = self._own(child.popen.stdin)
        self._stdout = self._own(child.popen.stdout)
        self._errors = Backlog()
        stderr = child.popen.stderr
        if stderr is None:
            raise ValueError("the process has no stderr pipe")
        self._pump = Pump(stderr.fileno(), self._errors.feed)
        stderr.close()
        self._pump.ended.add_done_callback(lambda _done: self._errors.end())
        self._over = False
        self._waiting: set[asyncio.Future[None]] = set()
        child.exited.add_done_callback(self._exited)

    @property
    def child(self) -> Child:
        """The process itself."""
        return self._child

    @staticmethod
    def _own(stream: IO[bytes] | None) -> int:
        if stream is None:
            raise ValueError("the process has no pipe")
        fd = os.dup(stream.fileno())
        stream.close()
        os.set_blocking(fd, False)
        return fd

    def _exited(self, _done: asyncio.Future[int]) -> None:
        # A descendant may hold the streams for ever; what is in them by then is still read.
        self._loop.call_later(DRAIN, self._finish)
        self._loop.call_later(DRAIN, self._pump.close)

    def _finish(self) -> None:
        self._over = True
        for ready in self._waiting:
            settle(ready)

    async def _ready(self, fd: int, *, write: bool) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(ready)
        watch = self._loop.add_writer if write else self._loop.add_reader
        watch(fd, settle, ready)
        try:
            await ready
        finally:
            self._waiting.discard(ready)
            # `close` may have given the number back; it can be someone else's by now.
            if fd in (self._stdin, self._stdout):
                (self._loop.remove_writer if write else self._loop.remove_reader)(fd)

    async def read(self) -> bytes:
        """The next chunk of stdout; b"" at end of file, or when the process is gone and nothing more came."""
        while self._stdout >= 0:
            over = self._over
            try:
                return os.read(self._stdout, _CHUNK)
            except BlockingIOError:
                if over:
                    return b""
                await self._ready(self._stdout, write=False)
        return b""

    async def read_stderr(self) -> bytes:
        """The next chunk of stderr; b"" at end of file. Beyond 1 MiB unread, the oldest is dropped."""
        return await self._errors.take()

    async def write(self, data: bytes) -> None:
        """Write all of `data`; BrokenPipeError when the process is gone or stdin was closed."""
        rest = memoryview(data)
        while rest:
            if self._stdin < 0 or self._child.exited.done():
                raise BrokenPipeError("the process is gone or its stdin was closed")
            try:
                rest = rest[os.write(self._stdin, rest[: 1024 * 1024]) :]
            except BlockingIOError:
                await self._ready(self._stdin, write=True)

    async def close_stdin(self) -> None:
        """Close stdin. Idempotent."""
        if self._stdin >= 0:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    async def wait(self, timeout: float | None = None) -> int | None:
        """The exit code (negative: killed by that signal), or None after `timeout` seconds."""
        found = await self._child.wait(timeout)
        if found is None:
            return None
        self._pump.catch_up()
        return self._code(found, self._errors.head)

    async def terminate(self, grace: float = 2.0) -> int | None:
        """TERM, wait `grace` seconds, KILL the process and all its children, verify. Idempotent."""
        async with self._lock:
            await self._end(grace)
            found = await self.wait(1.0)
            self.close()
            return found

    def close(self) -> None:
        """Close all streams on our side. Idempotent."""
        self._finish()
        self._pump.close()
        for fd in (self._stdin, self._stdout):
            if fd >= 0:
                self._loop.remove_reader(fd)
                self._loop.remove_writer(fd)
                os.close(fd)
        self._stdin = self._stdout = -1
