"""A long-lived process in a container, as the box protocol wants it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from ageval_boxes._stdio import STDERR_LIMIT
from ageval_boxes.docker_box._stream import ExecStream

#: Bytes of stdout that wait for a slow reader before the process is slowed down.
STDOUT_LIMIT = 4 * 1024 * 1024


class _Waiting:
    """Chunks between the reader of the connection and the reader of the transport."""

    def __init__(self, limit: int, *, drop: bool) -> None:
        self._limit = limit
        self._drop = drop
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False

    async def put(self, data: bytes) -> None:
        """Take a chunk; wait for room, or forget the oldest."""
        if not self._drop:
            await self._room.wait()
        if self._ended:
            return
        self._chunks.append(data)
        self._size += len(data)
        while self._drop and self._size > self._limit and len(self._chunks) > 1:
            old = self._chunks.popleft()
            self._size -= len(old)
            self._dropped += len(old)
        if self._size >= self._limit:
            self._room.clear()
        self._news.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._news.set()
        self._room.set()

    async def take(self) -> bytes:
        """All that waits; b"" at the end."""
        while not self._chunks and not self._ended:
            self._news.clear()
            await self._news.wait()
        if self._dropped:
            note, self._dropped = f"\n[... {self._dropped} bytes cut ...]\n", 0
            return note.encode()
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        self._room.set()
        return data


class ExecTransport:
    """`StdioTransport` over one connection to the engine.

    stdout and stderr come on the same connection: stderr beyond `STDERR_LIMIT` that nobody reads is
    forgotten, stdout beyond `STDOUT_LIMIT` slows the process down. `exit_code` asks the engine
    (None while the process runs); `end` kills all that belongs to the process and verifies it.
    """

    def __init__(
        self,
        stream: ExecStream,
        exit_code: Callable[[], Awaitable[int | None]],
        end: Callable[[float], Awaitable[object]],
    ) -> None:
        self._stream = stream
        self._exit_code = exit_code
        self._end = end
        self._lock = asyncio.Lock()
        self._stdout = _Waiting(STDOUT_LIMIT, drop=False)
        self._stderr = _Waiting(STDERR_LIMIT, drop=True)
        self._stdin_open = True
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pump = asyncio.create_task(self._run())
        self._watch = asyncio.create_task(self._wait_for_exit())

    async def _run(self) -> None:
        try:
            await self._stream.pump(self._stdout.put, self._stderr.put)
        finally:
            self._stdout.end()
            self._stderr.end()

    async def _wait_for_exit(self) -> None:
        # The end of the streams is the news; the question in between finds a process whose streams
        # are held open by another one.
        try:
            while True:
                await asyncio.wait({self._pump}, timeout=5)
                found = await self._exit_code()
                if found is not None:
                    break
                await asyncio.sleep(0.05)
        except Exception:  # the container or the engine is gone, and with it the process
            found = 137
        if not self.exited.done():
            # Codes above 128 are signals, as `StdioTransport.wait` tells them.
            self.exited.set_result(128 - found if 128 < found < 128 + 65 else found)
        await asyncio.wait({self._pump}, timeout=1)
        self._pump.cancel()

    async def read(self) -> bytes:
        """The next chunk of stdout; b"" at its end."""
        return await self._stdout.take()

    async def read_stderr(self) -> bytes:
        """The next chunk of stderr; b"" at its end. Beyond 1 MiB unread, the oldest is dropped."""
        return await self._stderr.take()

    async def write(self, data: bytes) -> None:
        """Write all of `data`; BrokenPipeError when the process is gone or stdin was closed."""
        if self.exited.done() or not self._stdin_open:
            raise BrokenPipeError("the process is gone or its stdin was closed")
        await self._stream.write(data)

    async def close_stdin(self) -> None:
        """Close stdin. Idempotent."""
        if self._stdin_open:
            self._stdin_open = False
            self._stream.close_stdin()

    async def wait(self, timeout: float | None = None) -> int | None:
        """The exit code (negative: killed by that signal), or None after `timeout` seconds."""
        await asyncio.wait({self.exited}, timeout=timeout)
        return self.exited.result() if self.exited.done() else None

    async def terminate(self, grace: float = 2.0) -> int | None:
        """TERM, wait `grace` seconds, KILL the process and all its children, verify. Idempotent."""
        async with self._lock:
            await self._end(grace)
            found = await self.wait(3.0)
            await self.close()
            return found

    async def close(self) -> None:
        """Close the connection on our side. Idempotent."""
        self._stdin_open = False
        self._stream.close()
        if not self.exited.done():
            self.exited.set_result(-9)
        for task in (self._watch, self._pump):
            task.cancel()
        await asyncio.wait({self._watch, self._pump}, timeout=2)
        self._stdout.end()
        self._stderr.end()
