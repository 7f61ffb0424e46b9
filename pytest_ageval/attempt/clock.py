"""The clock of one phase: a budget that stands still while a provider is down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_ageval import portal

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.errors import AgevalError

#: While the clock stands still nobody knows when it will go on; look again this often (seconds).
POLL = 0.25


class PhaseClock:
    """Counts one phase's seconds against `budget` (None or 0: no limit). Frozen time does not count.

    `spent` are the seconds that other processes have used of it.
    """

    def __init__(self, budget: float | None, spent: float = 0.0) -> None:
        self.budget = budget or None
        self.started = time.monotonic() - spent
        self.frozen_seconds = 0.0
        self._freezes = 0
        self._frozen_at = 0.0

    @property
    def frozen(self) -> bool:
        """Somebody waits for a provider just now."""
        return self._freezes > 0

    def elapsed(self) -> float:
        """Seconds that count."""
        now = time.monotonic()
        frozen = self.frozen_seconds + (now - self._frozen_at if self._freezes else 0.0)
        return now - self.started - frozen

    def remaining(self) -> float | None:
        """Seconds left, not below 0; None without a limit."""
        return None if self.budget is None else max(0.0, self.budget - self.elapsed())

    @contextmanager
    def freeze(self) -> Iterator[None]:
        """Stop the clock; several freezes at once count once."""
        if self._freezes == 0:
            self._frozen_at = time.monotonic()
        self._freezes += 1
        try:
            yield
        finally:
            self._freezes -= 1
            if self._freezes == 0:
                self.frozen_seconds += time.monotonic() - self._frozen_at

    async def wait(self, task: asyncio.Future[Any], grace: float = 0.0) -> bool:
        """Wait for `task` while there is time; False when the time is up first (`task` goes on).

        `grace` are seconds beyond it, for work that looks at the clock itself.
        """
        while not task.done():
            left = self.remaining()
            if left is not None and grace:
                left = self.budget - self.elapsed() + grace if self.budget else None
            if left is not None and left <= 0:
                return False
            await asyncio.wait({task}, timeout=POLL if self.frozen else left)
        return True


async def within(
    attempt: Attempt, work: Coroutine[Any, Any, None], too_long: AgevalError, grace: float = 0.0
) -> None:
    """Run `work` inside the phase's budget; raise `too_long` when it is used up."""
    task = asyncio.ensure_future(portal.guard(work))
    try:
        if await attempt.clock.wait(task, grace):
            task.result()
            return
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=5)
    raise too_long
