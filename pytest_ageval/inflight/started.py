"""An attempt that runs before its item's turn, and what came of each of its phases."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pytest_ageval import portal
from pytest_ageval.errors import AgevalError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Future

    from pytest_ageval.attempt import Attempt

#: The attempt on whose behalf code runs, if it was started ahead: for what that code logs.
CURRENT: ContextVar[Started | None] = ContextVar("ageval_started", default=None)

#: Characters that a report carries of what an attempt logged, and of each of its streams, in each phase.
SAID_LIMIT = 16_000

#: What pytest calls the phases.
WHEN = {"environment": "setup", "cleanup": "teardown"}


class _Text:
    """A text of bounded length."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._room = SAID_LIMIT

    def add(self, text: str) -> None:
        """Append what there is room for."""
        if self._room > 0:
            self.parts.append(text[: self._room])
            self._room -= len(text)
            if self._room <= 0:
                self.parts.append("\n[... the rest is left out ...]\n")


class Started:
    """One attempt in flight. Its errors are raised where the item, in its turn, asks for the phase."""

    def __init__(self, raw: Attempt) -> None:
        self.raw = raw
        self.environment_error: BaseException | None = None
        self.verdict_error: BaseException | None = None
        self.cleanup_error: BaseException | None = None
        self._said: dict[tuple[str, str], _Text] = {}
        self._lock = threading.Lock()
        self._begun = False
        self._over = threading.Event()
        self._future: Future[None] | None = None

    def start(self, done: Callable[[], object]) -> None:
        """Let it run; `done` is called in another thread when all is over."""
        self._future = portal.submit(self._run(done))

    async def _run(self, done: Callable[[], object]) -> None:
        self._begun = True
        CURRENT.set(self)
        try:
            self.environment_error = await _error_of(self.raw.environment())
            if self.environment_error is None:
                self.verdict_error = await _error_of(self._judged())
            self.verdict_error = await _error_of(self.raw.record()) or self.verdict_error
            self.cleanup_error = await _error_of(self.raw.cleanup())
        finally:
            self._over.set()
            done()

    async def _judged(self) -> None:
        await self.raw.run()
        await self.raw.evaluate()

    def cancel(self) -> None:
        """Interrupt it: it cleans up after itself, see `wait`."""
        if self._future is not None:
            self._future.cancel()

    def wait(self, seconds: float) -> bool:
        """True when it is over and cleaned up within `seconds`."""
        portal.run(asyncio.sleep(0))  # what was said to the loop has arrived
        if not self._begun:  # cancelled before its first step
            self.raw.fail(AgevalError("interrupted", "before it began"))
            portal.run(self.raw.record())
            portal.run(self.raw.cleanup())
            return True
        return self._over.wait(max(0.0, seconds))

    def logged(self, line: str) -> None:
        """Keep a line of its log."""
        self._keep("log", f"{line}\n")

    def printed(self, stream: str, text: str) -> None:
        """Keep what it wrote to ``stdout`` or ``stderr``."""
        self._keep(stream, text)

    def _keep(self, what: str, text: str) -> None:
        with self._lock:
            said = self._said.setdefault((WHEN.get(self.raw.phase, "call"), what), _Text())
            said.add(text)

    def said(self, when: str) -> list[tuple[str, str]]:
        """What it logged and printed in the phases that pytest calls `when`, by stream."""
        with self._lock:
            found = {what: "".join(said.parts) for (at, what), said in self._said.items() if at == when}
        return [(what, found[what]) for what in ("stdout", "stderr", "log") if found.get(what)]

    def seconds(self, when: str) -> float:
        """What the phases took that pytest calls setup, call and teardown."""
        phases = {"setup": ("environment",), "call": ("run", "evaluate", "record"), "teardown": ("cleanup",)}
        return sum(self.raw.timing.get(name, 0.0) for name in phases.get(when, ())) / 1000


async def _error_of(work: Awaitable[None]) -> BaseException | None:
    """What `work` raises, an interrupt included: the phases after it are still to come."""
    try:
        await portal.guard(work)
    except BaseException as error:
        return error
    return None
