"""The agent's process as a stream of JSON-RPC messages.

`Wire` is a message-level transport for the protocol library (``send``, ``receive``, ``close``) on top
of a box's `StdioTransport`. It sits below the library because the library drops what it cannot parse,
reads no stderr, and has no opinion about a process that is not an ACP agent at all. Done here, in
this order, for each line of stdout:

- a line above the cap ends the wire (`Failure` ``acp_message_too_large``);
- what is not a JSON-RPC message is counted, kept up to a bound, and skipped; too much of it before
  the handshake, or our own request coming back, ends the wire (``acp_not_a_server``);
- a notification goes to `on_notification` at once, so that the order of updates and the answer that
  follows them is the agent's order;
- requests and answers go to the library.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ageval_executors.acp.frames import (
    MAX_LINE,
    LineSplitter,
    LineTooLongError,
    parse_message,
    quote,
)

if TYPE_CHECKING:
    from pytest_ageval.box import StdioTransport
from pytest_ageval.errors import BoxError

log = logging.getLogger("pytest_ageval.acp")

#: Lines that are not messages, before the handshake is answered, until we stop believing.
NOISE_BEFORE_HANDSHAKE = 200
#: Lines that are not messages of which the text is kept.
NOISE_KEPT = 100
#: Seconds that a descendant may hold stdout open after the agent itself has ended.
HELD_PIPE_GRACE = 1.0
#: Bytes of stderr kept from its head, and from its tail.
STDERR_KEPT = 64 * 1024

OnNotification = Callable[[str, Any, int], None]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the wire can carry nothing more: a stable `code`, a message for people."""

    code: str
    message: str


class HeadTail:
    """The first and the last `limit` bytes of a stream."""

    def __init__(self, limit: int = STDERR_KEPT) -> None:
        self.limit = limit
        self.total = 0
        self._head = b""
        self._tail = b""

    def add(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total += len(chunk)
        room = self.limit - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail = (self._tail + chunk)[-self.limit :]

    def text(self) -> str:
        """Both ends, and how much is missing between them."""
        cut = self.total - len(self._head) - len(self._tail)
        middle = f"\n[... {cut} bytes cut ...]\n".encode() if cut else b""
        return (self._head + middle + self._tail).decode("utf-8", "replace")

    def last_lines(self, count: int = 10, width: int = 300) -> str:
        """The last `count` lines that are not empty, each cut to `width` characters."""
        end = (self._head + self._tail if not self._tail else self._tail).decode("utf-8", "replace")
        lines = [line.rstrip()[:width] for line in end.split("\n") if line.strip()]
        return "\n".join(lines[-count:])


def describe_exit(code: int | None) -> str:
    """``exit code 1``, ``killed by SIGKILL``, or that it still runs."""
    if code is None:
        return "still running, its stdout closed"
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


class Wire:
    """Messages in and out of one agent process. See the module's text for what is done to each line."""

    def __init__(
        self,
        transport: StdioTransport,
        on_notification: OnNotification,
        *,
        max_line: int | None = None,
    ) -> None:
        self.process = transport
        self.failure: Failure | None = None
        self.ready = False
        self.ended = False
        self.half_line: str | None = None
        self.pipe_held = False
        self.noise_count = 0
        self.noise: list[str] = []
        self.stderr = HeadTail()
        self.last_activity = asyncio.get_running_loop().time()
        self._on_notification = on_notification
        self._splitter = LineSplitter(max_line or MAX_LINE)
        self._queue: deque[bytes] = deque()
        self._sent_ids: set[Any] = set()
        self._unanswered: set[Any] = set()
        self._answered = asyncio.Event()
        self._write_lock = asyncio.Lock()
        self._exit: asyncio.Task[int | None] = asyncio.create_task(transport.wait())
        self._stderr_task = asyncio.create_task(self._drain_stderr())

    # -- the library's transport protocol ----------------------------------------------------------

    async def send(self, message: dict[str, Any]) -> None:
        """Write one message. A request to a dead agent raises BrokenPipeError; an answer is dropped."""
        data = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        is_answer = "method" not in message
        if not is_answer and "id" in message:
            self._sent_ids.add(message["id"])
        try:
            async with self._write_lock:
                await self.process.write(data.encode("utf-8", "replace") + b"\n")
        except (OSError, BoxError) as error:
            if not is_answer:
                raise BrokenPipeError(str(error)) from error
            log.info("the agent ended before it took the answer to its request %r", message.get("id"))
        finally:
            if is_answer:
                self._unanswered.discard(message.get("id"))
                self._answered.set()

    async def receive(self) -> dict[str, Any] | None:
        """The next request or answer; None when the wire has ended."""
        while self.failure is None:
            while self._queue:
                message = self._take(self._queue.popleft())
                if message is not None:
                    return message
                if self.failure is not None:
                    self._finish()
                    return None
            chunk = await self._read()
            if not chunk:
                break
            self.last_activity = asyncio.get_running_loop().time()
            try:
                self._queue.extend(self._splitter.feed(chunk))
            except LineTooLongError as error:
                self.failure = Failure("acp_message_too_large", str(error))
        self._finish()
        return None

    async def close(self) -> None:
        """Close stdin, give the agent a second, then end it and everything it started."""
        with contextlib.suppress(OSError, BoxError):
            await self.process.close_stdin()
        await asyncio.wait({self._exit}, timeout=1.0)
        await self.terminate()
        await asyncio.wait({self._stderr_task}, timeout=0.5)
        for task in (self._stderr_task, self._exit):
            task.cancel()
        await asyncio.gather(self._stderr_task, self._exit, return_exceptions=True)

    # -- what the executor asks --------------------------------------------------------------------

    async def terminate(self, grace: float = 1.0) -> None:
        """End the agent's processes now."""
        await self.process.terminate(grace)

    async def exit_code(self, timeout: float) -> int | None:
        """The exit code if the agent ends within `timeout` seconds."""
        await asyncio.wait({self._exit}, timeout=timeout)
        if self._exit.done() and not self._exit.cancelled() and self._exit.exception() is None:
            return self._exit.result()
        return None

    async def answers_sent(self, timeout: float) -> None:
        """Wait until every request of the agent has been answered, at most `timeout` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout
        while self._unanswered and (left := deadline - asyncio.get_running_loop().time()) > 0:
            self._answered.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._answered.wait(), left)

    @property
    def asked(self) -> bool:
        """The agent waits for an answer of ours."""
        return bool(self._unanswered)

    async def ending(self) -> Failure:
        """Why the wire ended. Waits a moment for the exit code; an agent that runs on is ended."""
        if self.failure is not None:
            return self.failure
        code = await self.exit_code(0.7)
        if code is None:
            await self.terminate()
        if not self._stderr_task.done():
            await asyncio.wait({self._stderr_task}, timeout=0.3)
        message = f"the agent ended ({describe_exit(code)})"
        if self.half_line is not None:
            message = f"the agent ended mid-message ({describe_exit(code)}): {self.half_line}"
        if self.pipe_held:
            message += "; a process it left behind held its stdout open"
        if lines := self.stderr.last_lines():
            message += f"; last lines of stderr:\n{lines}"
        self.failure = Failure("acp_unexpected_eof", message)
        return self.failure

    # -- inside ------------------------------------------------------------------------------------

    async def _read(self) -> bytes:
        read = asyncio.ensure_future(self.process.read())
        try:
            await asyncio.wait({read, self._exit}, return_when=asyncio.FIRST_COMPLETED)
            if not read.done():
                # The agent is gone. Whoever inherited its stdout does not keep us.
                await asyncio.wait({read}, timeout=HELD_PIPE_GRACE)
            if read.done():
                return read.result()
            self.pipe_held = True
            return b""
        except (OSError, BoxError) as error:
            log.info("reading from the agent failed: %s", error)
            return b""
        finally:
            read.cancel()

    def _take(self, line: bytes) -> dict[str, Any] | None:
        message = parse_message(line)
        if message is None:
            self._note_noise(line)
            return None
        method = message.get("method")
        if method is None:
            return message
        if not self.ready and message.get("id") in self._sent_ids and method == "initialize":
            self.failure = Failure("acp_not_a_server", "it sent our own request back")
            return None
        if "id" in message:
            self._unanswered.add(message["id"])
            return message
        try:
            self._on_notification(method, message.get("params"), len(line))
        except Exception:
            # A shape that nobody foresaw must not end the session; it is a bug here, so be loud.
            log.exception("could not take the agent's notification %s", quote(line))
        return None

    def _note_noise(self, line: bytes) -> None:
        self.noise_count += 1
        text = quote(line)
        if len(self.noise) < NOISE_KEPT:
            self.noise.append(text)
        log.debug("the agent printed a line that is no message: %s", text)
        if not self.ready and self.noise_count > NOISE_BEFORE_HANDSHAKE:
            self.failure = Failure(
                "acp_not_a_server",
                f"it printed {self.noise_count} lines that are no messages and did not answer "
                f"initialize; the first one: {self.first_noise()}",
            )

    def first_noise(self) -> str:
        """The first line that was no message and not empty, or nothing."""
        return next((line for line in self.noise if line), "")

    def _finish(self) -> None:
        rest = self._splitter.flush()
        if rest.strip() and self.failure is None:
            self.half_line = quote(rest)
        self.ended = True

    async def _drain_stderr(self) -> None:
        with contextlib.suppress(OSError, BoxError):
            while chunk := await self.process.read_stderr():
                self.stderr.add(chunk)
