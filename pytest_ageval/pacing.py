"""The pace of requests to providers, shared by all attempts of a process.

A provider allows so many requests a minute, and after too many it says how long to stay away
(``Retry-After``). Both concern everybody who calls with the same key, not only the attempt that was told.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

#: The longest time for which nobody calls, because a provider asked for it once (seconds). After it one
#: request finds out whether that still holds.
LONGEST_HOLD = 300.0

MINUTE = 60.0

#: While a call is held back, nobody knows for how long; look again not more often than this (seconds).
LOOK = 0.05


class Pace:
    """One provider's: when the next request may go out. On one event loop; who waits longest goes first."""

    def __init__(self, per_minute: int | None = None, window: float = MINUTE) -> None:
        self._begun: deque[float] = deque(maxlen=per_minute)
        self._limited = per_minute is not None
        self._window = window
        self._until = 0.0
        self._order = asyncio.Lock()

    def free(self) -> bool:
        """A request may go out now."""
        return not self._order.locked() and self._wait() <= 0

    async def turn(self) -> None:
        """Return when the caller's request may go out; it counts from then on."""
        async with self._order:
            while (seconds := self._wait()) > 0:  # noqa: ASYNC110 - it is time that passes
                await asyncio.sleep(seconds)
            if self._limited:
                self._begun.append(time.monotonic())

    def hold(self, seconds: float) -> None:
        """The provider asked for that pause."""
        self._until = max(self._until, time.monotonic() + min(seconds, LONGEST_HOLD))

    def _wait(self) -> float:
        now = time.monotonic()
        full = self._limited and len(self._begun) == self._begun.maxlen
        return max(self._until - now, self._begun[0] + self._window - now if full else 0.0)


class Pacer:
    """The paces of all providers. `limits` are requests a minute, by a name that stands for a host.

    The name is the host (``api.example.com``, ``localhost:8000``) or a part of it (``openai``). Of each limit
    one of `processes` equal processes keeps its share, which is at least 1.
    """

    def __init__(self, limits: Mapping[str, float] | None = None, processes: int = 1) -> None:
        self._limits = {name: max(1, int(rate / processes)) for name, rate in (limits or {}).items()}
        self._paces: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Pace]] = (
            weakref.WeakKeyDictionary()
        )

    def of(self, url: str | None) -> Pace:
        """The pace of the provider at `url`. Requests to the hosts of one limit share it."""
        if url is None:
            return Pace()
        name, limit = self._limit_of(url)
        paces = self._paces.setdefault(asyncio.get_running_loop(), {})
        if name not in paces:
            paces[name] = Pace(limit)
        return paces[name]

    def _limit_of(self, url: str) -> tuple[str, int | None]:
        parts = urlsplit(url)
        host = parts.hostname or ""
        for name in (parts.netloc.rpartition("@")[2], host, *host.split(".")):
            if name in self._limits:
                return name, self._limits[name]
        return f"//{parts.netloc}", None


class Holding:
    """How long the calls of one session were held back. Meanwhile `freeze` lets its clocks stand still.

    A session with several calls under way is held back only while all of them are.
    """

    def __init__(self, pace: Pace, freeze: Callable[[], AbstractContextManager[None]]) -> None:
        self.pace = pace
        self._freeze = freeze
        self._calls = 0
        self._waiting = 0
        self._seconds = 0.0
        self._since: float | None = None
        self._frozen = ExitStack()

    def seconds(self) -> float:
        """So far, the wait of this moment included."""
        return self._seconds + (0.0 if self._since is None else time.monotonic() - self._since)

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call is under way."""
        self._change(1, 0)
        try:
            yield
        finally:
            self._change(-1, 0)

    async def turn(self) -> None:
        """Wait until a call that is under way may go out."""
        if self.pace.free():
            await self.pace.turn()
            return
        self._change(0, 1)
        try:
            await self.pace.turn()
        finally:
            self._change(0, -1)

    def _change(self, calls: int, waiting: int) -> None:
        self._calls += calls
        self._waiting += waiting
        held = 0 < self._waiting == self._calls
        if held and self._since is None:
            self._since = time.monotonic()
            self._frozen.enter_context(self._freeze())
        elif not held and self._since is not None:
            self._seconds, self._since = self.seconds(), None
            self._frozen.close()

    async def ends_within(self, running: asyncio.Future[Any], seconds: float | None) -> bool:
        """Wait for the end of a turn; False when its time is up first. What is held back takes none of it."""
        start = time.monotonic() - self.seconds()
        while not running.done():
            left = None if seconds is None else seconds - (time.monotonic() - self.seconds() - start)
            if left is not None and left <= 0:
                return False
            await asyncio.wait({running}, timeout=None if left is None else max(left, LOOK))
        return True
