"""The standard streams of a long-lived process in a remote box."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable

from ageval_boxes._remote_link import Command, Interrupted, Report, decode
from ageval_boxes._stdio import Backlog
from pytest_ageval.errors import BoxError

#: Bytes of stdout that wait for a reader before the stream is held back.
_ROOM = 1024 * 1024
#: Bytes of stdin that go in one request.
_PIECE = 36 * 1024


class RemoteTransport:
    """`StdioTransport` over a supervisor's report.

    stdout is held back when nobody reads it; of stderr the oldest is dropped. `end` ends all that
    belongs to the process, `lost` turns a broken connection into a BoxError.
    """

    def __init__(
        self,
        token: str,
        encode: Callable[[bytes], bytes] | None,
        end: Callable[[float], Awaitable[object]],
        lost: Callable[[BaseException], Awaitable[BoxError]],
    ) -> None:
        self.report = Report(token, self._stdout_line)
        self._errors_report = Report(token, self._stderr_line)
        self._encode = encode
        self._end = end
        self._lost = lost
        self._command: Command | None = None
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._changed = asyncio.Condition()
        self._errors = Backlog()
        self._begun = asyncio.Event()
        self._closed = False
        self._stdin_open = True
        self._terminating = asyncio.Lock()
        self._outcome: asyncio.Task[int] | None = None

    # -- from the box ----------------------------------------------------------------------------

    async def feed_stdout(self, text: str) -> None:
        """The next piece of the supervisor's stdout."""
        await self.report.feed(text)

    async def feed_stderr(self, text: str) -> None:
        """The next piece of the supervisor's stderr."""
        self.report.note(text)
        await self._errors_report.feed(text)

    async def _stdout_line(self, kind: str, rest: str) -> None:
        if kind == "B":
            self._begun.set()
        if kind != "o" or self._closed:
            return
        data = decode(rest)
        async with self._changed:
            await self._changed.wait_for(lambda: self._size < _ROOM or self._closed)
            self._chunks.append(data)
            self._size += len(data)
            self._changed.notify_all()

    def _stderr_line(self, kind: str, rest: str) -> None:
        if kind == "e":
            self._errors.feed(decode(rest))

    # -- life ------------------------------------------------------------------------------------

    async def begin(self, command: Command, timeout: float) -> tuple[str, str] | None:
        """Wait until the process has been started; the last line of a report that says why it was not."""
        self._command = command
        self._outcome = asyncio.create_task(self._watch(command))
        begun = asyncio.create_task(self._begun.wait())
        await asyncio.wait({begun, self._outcome}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if self._begun.is_set():
            return None
        if not self._outcome.done():
            raise BoxError("environment_connection_lost", f"no process within {timeout:.0f} seconds")
        self._outcome.result()
        return await self.report.end(command)

    async def _watch(self, command: Command) -> int:
        try:
            kind, rest = await self.report.end(command)
            code = int(rest) if kind == "X" else 125
            return 128 - code if 128 < code <= 128 + 64 else code
        except Interrupted as error:
            raise await self._lost(error) from error
        finally:
            # The other stream comes on its own; what is on the way is still taken.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(command.ended), 0.5)
            self._errors.end()
            async with self._changed:
                self._changed.notify_all()

    # -- StdioTransport --------------------------------------------------------------------------

    @property
    def _exited(self) -> bool:
        return self._outcome is None or self._outcome.done()

    async def read(self) -> bytes:
        """The next chunk of stdout; b"" at end of file. BoxError when the connection was lost."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._chunks or self._closed or self._exited)
            if self._chunks and not self._closed:
                data = b"".join(self._chunks)
                self._chunks.clear()
                self._size = 0
                self._changed.notify_all()
                return data
        if self._outcome is not None and self._outcome.done() and not self._closed:
            self._outcome.result()
        return b""

    async def read_stderr(self) -> bytes:
        """The next chunk of stderr; b"" at end of file. Beyond 1 MiB unread, the oldest is dropped."""
        return await self._errors.take()

    async def write(self, data: bytes) -> None:
        """Write all of `data`; BrokenPipeError when the process is gone or stdin was closed."""
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            await self._send(piece if self._encode is None else self._encode(piece))

    async def _send(self, data: bytes) -> None:
        if self._command is None or self._closed or not self._stdin_open or self.report.ended or self._exited:
            raise BrokenPipeError("the process is gone or its stdin was closed")
        try:
            await self._command.send(data)
        except Exception as error:
            # The vendor's word for a process that is gone comes before or after the report of its end.
            assert self._outcome is not None
            await asyncio.wait({self._outcome}, timeout=2.0)
            if self.report.ended:
                raise BrokenPipeError("the process is gone") from error
            raise await self._lost(error) from error

    async def close_stdin(self) -> None:
        """Close stdin. Idempotent."""
        if not self._stdin_open or self._command is None:
            return
        try:
            if self._encode is not None:
                await self._send(b".\n")
            else:
                await self._command.close_stdin()
        except BrokenPipeError:
            pass
        except Exception as error:
            if not self.report.ended:
                raise await self._lost(error) from error
        finally:
            self._stdin_open = False

    async def wait(self, timeout: float | None = None) -> int | None:
        """The exit code (negative: killed by that signal), or None after `timeout` seconds.

        BoxError when the connection was lost.
        """
        if self._outcome is None:
            return None
        await asyncio.wait({self._outcome}, timeout=timeout)
        return self._outcome.result() if self._outcome.done() else None

    async def terminate(self, grace: float = 2.0) -> int | None:
        """TERM, wait `grace` seconds, KILL the process and all its children, verify. Idempotent."""
        async with self._terminating:
            if self._closed:
                return await self.wait(0)
            # A reader who is gone must not hold the report of the end back.
            await self.close()
            await self._end(grace)
            found = await self.wait(5.0)
            await self.let_go()
            return found

    async def close(self) -> None:
        """Forget what was not read. Idempotent."""
        async with self._changed:
            self._closed = True
            self._chunks.clear()
            self._size = 0
            self._changed.notify_all()

    async def let_go(self) -> None:
        """Close our side of everything; `wait` no longer waits. Idempotent."""
        await self.close()
        if self._command is not None:
            await self._command.close()
        if self._outcome is not None:
            await asyncio.wait({self._outcome}, timeout=1.0)
            if not self._outcome.done():
                self._outcome.cancel()
                await asyncio.wait({self._outcome})
            elif not self._outcome.cancelled():
                self._outcome.exception()
