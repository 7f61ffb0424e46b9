"""The routes of the gateway: one for each session, known by a random token, dead when it is closed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from pytest_ageval.evidence.redact import usable
from pytest_ageval.gateway.calls import CallRecord, Turn
from pytest_ageval.gateway.canonical import Canonical

if TYPE_CHECKING:
    from pytest_ageval.executor import Usage
    from pytest_ageval.gateway.recording import Player, Recorder
    from pytest_ageval.pacing import Holding

#: What a dummy key begins with; the rest is the token.
KEY_PREFIX = "sk-ageval-"

#: The first segment of a route's path.
PREFIX = "/s/"

#: Headers in which an API's key is sent, the first one that an agent uses is taken over.
KEY_HEADERS = ("x-api-key", "x-goog-api-key", "api-key", "authorization")
KEY_QUERY = "key"


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a route leads: scheme and host, the path below which it may go, the base's query, the key."""

    origin: str
    root: str = ""
    base_path: str = ""
    query: str = ""
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, base_url: str, key: str | None) -> Upstream:
        """From a role's base URL. Agents spell the version's segment themselves, or do not."""
        parts = urlsplit(base_url)
        path = parts.path.rstrip("/")
        root, _, last = path.rpartition("/")
        versioned = last[:1] == "v" and last[1:2].isdigit()
        return cls(f"{parts.scheme}://{parts.netloc}", root if versioned else path, path, parts.query, key)

    @property
    def secret(self) -> str | None:
        """The key, if it is one that must not come back in an answer.

        Servers without authentication get a word as a key (``EMPTY``, ``ollama``). To mask such a word
        would change what the model says, down to the names of JSON's members.
        """
        return self.key if self.key is not None and usable(self.key) else None

    def allows(self, path: str) -> bool:
        """`path` is below the base URL."""
        parts = unquote(path).split("/")
        inside = path == self.root or path.startswith(f"{self.root}/")
        return inside and ".." not in parts and "\\" not in path and not path.startswith("//")

    def url(self, path: str, query: str) -> str:
        """The provider's URL of a request, with what the base's query adds."""
        rows = [(name, value) for name, value in parse_qsl(query, True) if name != KEY_QUERY]
        given = {name for name, _ in rows}
        more = [(name, value) for name, value in parse_qsl(self.query, True) if name not in given]
        untouched = not more and len(rows) == len(parse_qsl(query, True))
        whole = query if untouched else urlencode([*rows, *more])
        return f"{self.origin}{path}" + (f"?{whole}" if whole else "")


@dataclass(eq=False)
class Route:
    """One session's way to its provider.

    `refuse` says why no further call may be made; `called` and `ended` get the usage and the record
    of each call that has ended. `scrub` masks secrets in text. `recorder` or `player`: the calls are
    recorded, or answered from a recording; `normalise` makes a request's canonical form, `missed` and
    `unrecorded` are told why one could not be answered or kept. `holding` says when one may go out.
    """

    upstream: Upstream
    refuse: Callable[[], str | None] = lambda: None
    called: Callable[[Usage], None] = lambda usage: None
    ended: Callable[[CallRecord], None] = lambda call: None
    missed: Callable[[str], None] = lambda message: None
    unrecorded: Callable[[str], None] = lambda message: None
    normalise: Callable[[str, str, Any], Canonical] = Canonical
    scrub: Callable[[str], str] = lambda text: text
    recorder: Recorder | None = None
    player: Player | None = None
    holding: Holding | None = None
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    calls: list[CallRecord] = field(default_factory=list)
    closed: bool = False
    _running: set[asyncio.Task[Any]] = field(default_factory=set)
    _writes: set[asyncio.Future[Any]] = field(default_factory=set)

    @property
    def key(self) -> str:
        """The dummy key that stands for the real one."""
        return KEY_PREFIX + self.token

    def base_url(self, address: str) -> str:
        """The base URL for an agent that reaches the gateway at `address` (``host:port``)."""
        upstream = self.upstream
        query = f"?{upstream.query}" if upstream.query else ""
        return f"http://{address}{PREFIX}{self.token}{upstream.base_path}{query}"

    def turn(self, since: int) -> Turn:
        """The calls from number `since` on."""
        return Turn(self.calls[since:], len(self._running))

    # -- for the server --------------------------------------------------------------------------

    def enter(self, task: asyncio.Task[Any]) -> None:
        """A call runs."""
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def leave(self, task: asyncio.Task[Any], call: CallRecord) -> None:
        """It has ended."""
        self._running.discard(task)
        self.calls.append(call)
        self.ended(call)
        if call.generates and call.usage is not None and call.usage.unavailable != "not_reported":
            self.called(call.usage)

    def write(self, work: Callable[..., Any], *args: Any) -> None:
        """Do what blocks beside the loop; `close` waits for it."""

        def done(future: asyncio.Future[Any]) -> None:
            self._writes.discard(future)
            if not future.cancelled() and (error := future.exception()) is not None:
                self.unrecorded(f"{type(error).__name__}: {error}")

        future = asyncio.ensure_future(asyncio.to_thread(work, *args))
        self._writes.add(future)
        future.add_done_callback(done)

    async def settled(self, seconds: float) -> None:
        """Wait for calls whose answer has just been read to its end by the agent."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=seconds)

    async def close(self) -> None:
        """No further call; those that run are dropped. Idempotent."""
        self.closed = True
        running = set(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=2.0)
        while self._writes:
            await asyncio.wait(set(self._writes))


def token_of(path: str, headers: Mapping[str, str], query: str) -> tuple[str | None, str]:
    """The token of a request, and its path without the route: by the path, else by the dummy key."""
    if path.startswith(PREFIX):
        token, slash, rest = path.removeprefix(PREFIX).partition("/")
        return token, slash + rest
    sent = [headers.get(name, "") for name in KEY_HEADERS]
    sent += [value for name, value in parse_qsl(query) if name == KEY_QUERY]
    for value in sent:
        word = value.rpartition(" ")[2]
        if word.startswith(KEY_PREFIX):
            return word.removeprefix(KEY_PREFIX), path
    return None, path
