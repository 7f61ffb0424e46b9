"""What a vendor's interface must offer for a remote box, and the reports that come through it."""

from __future__ import annotations

import asyncio
import base64
import inspect
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ageval_boxes._remote_cloud import Account
from pytest_ageval.box import ExecResult
from pytest_ageval.errors import BoxError

#: Takes the next piece of a stream; may return an awaitable, which holds the stream back.
Sink = Callable[[str], Awaitable[None] | None]


#: Takes kind and rest of a line; may return an awaitable, which holds the stream back.
OnLine = Callable[[str, str], Awaitable[None] | None]


class Command(Protocol):
    """One command line that runs in a sandbox."""

    @property
    def ended(self) -> asyncio.Future[BaseException | None]:
        """Done when no more output will come; its result is what broke the connection, if that is why."""
        ...

    async def send(self, data: bytes) -> None:
        """Write all of `data` to stdin."""
        ...

    async def close_stdin(self) -> None:
        """Close stdin."""
        ...

    async def close(self) -> None:
        """Forget the command. What it started is not ended by this. Idempotent."""
        ...


class Link(Protocol):
    """One sandbox of one vendor. Methods raise the exceptions of the vendor's library."""

    #: stdin of a command takes lines of text only.
    encoded_stdin: bool

    @property
    def sandbox_id(self) -> str:
        """The vendor's name of the sandbox; "" before `open`."""
        ...

    @property
    def account(self) -> Account:
        """Where the sandbox is one of several. It shares our connections."""
        ...

    async def open(self, labels: Mapping[str, str], image: str | None) -> None:
        """Create the sandbox; BoxError ``environment_start_failed`` with the vendor's words.

        `image` is the vendor's name of the template or snapshot; None: what the options say.
        """
        ...

    async def join(self, sandbox_id: str) -> None:
        """Connect to a sandbox that exists; one that was stopped is started."""
        ...

    async def own(self, labels: Mapping[str, str]) -> None:
        """Record where `Account` finds it that the sandbox has these labels now."""
        ...

    async def command(
        self, line: str, *, stdout: Sink, stderr: Sink, stdin: bool = False, root: bool = False
    ) -> Command:
        """Start a shell command line, as the superuser with `root`."""
        ...

    async def put(self, path: str, source: Path) -> None:
        """Write a file of the host to `path` in the sandbox, without holding it in memory."""
        ...

    async def fetch(self, path: str, dest: Path) -> None:
        """Write a file of the sandbox to `dest`, without holding it in memory."""
        ...

    async def keep_alive(self) -> None:
        """Put off the end of the sandbox."""
        ...

    async def exists(self) -> bool:
        """The vendor still runs the sandbox."""
        ...

    async def disconnect(self) -> None:
        """Close our connections. Idempotent."""
        ...


class Report:
    """The lines of a supervisor: ``<token> <kind> <rest>``, cut anywhere, between lines of others.

    `on_line` gets the lines that do not end the report; without it they are kept in `lines`.
    """

    #: Kinds after which the report goes on.
    MORE = frozenset("oeKLNB")

    def __init__(self, token: str, on_line: OnLine | None = None) -> None:
        self.token = token
        self.lines: list[tuple[str, str]] = []
        #: Text on stderr, its beginning; for messages of the sandbox's shell.
        self.noise = ""
        self._on_line = on_line
        self._parts: list[str] = []
        self._end: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

    async def feed(self, text: str) -> None:
        """The next piece of stdout."""
        *complete, rest = text.split("\n")
        for piece in complete:
            line = "".join([*self._parts, piece]).rstrip("\r")
            self._parts = []
            await self._line(line)
        if rest:
            self._parts.append(rest)

    def note(self, text: str) -> None:
        """The next piece of stderr."""
        self.noise += text[: 2000 - len(self.noise)]

    async def _line(self, line: str) -> None:
        token, _, rest = line.partition(" ")
        if token != self.token:
            return
        kind, _, rest = rest.partition(" ")
        if kind not in self.MORE:
            if not self._end.done():
                self._end.set_result((kind, rest))
        elif self._on_line is None:
            self.lines.append((kind, rest))
        elif inspect.isawaitable(waiting := self._on_line(kind, rest)):
            await waiting

    @property
    def ended(self) -> bool:
        """The last line is there."""
        return self._end.done()

    async def end(self, command: Command, timeout: float | None = None) -> tuple[str, str]:
        """Kind and rest of the last line.

        Raises TimeoutError, and `Interrupted` when the command ended without having reported.
        """
        waiting: set[asyncio.Future[Any]] = {self._end, command.ended}
        done, _ = await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if self._end.done():
            return self._end.result()
        if not done:
            raise TimeoutError
        raise Interrupted(self.noise.strip()) from command.ended.result()

    def of(self, kind: str) -> list[str]:
        """The rests of the lines of that kind."""
        return [rest for found, rest in self.lines if found == kind]


class Interrupted(Exception):
    """A command's stream ended before its report did. The cause says what the vendor's library said."""


def decode(text: str) -> bytes:
    """A stream's bytes out of a line."""
    return base64.b64decode(text)


def result_of(report: Report, code: int, *, timed_out: bool) -> ExecResult:
    """What the report of a command that ran to its end says."""
    found: dict[str, Any] = {}
    truncated = False
    for name in ("o", "e"):
        total, _, text = next(iter(report.of(name)), "0 ").partition(" ")
        data = decode(text)
        cut = int(total) - len(data)
        if cut > 0:
            truncated = True
            half = len(data) // 2
            head, tail = (part.decode("utf-8", "replace") for part in (data[:half], data[half:]))
            found[name] = f"{head}\n[... {cut} bytes cut ...]\n{tail}"
        else:
            found[name] = data.decode("utf-8", "replace")
    return ExecResult(code, found["o"], found["e"], truncated, timed_out)


def gone(kind: str, sandbox_id: str, why: str) -> BoxError:
    """The error of a sandbox that is not there any more."""
    return BoxError(
        "environment_sandbox_gone", f"the {kind} sandbox {sandbox_id} does not run any more: {why}"
    )
