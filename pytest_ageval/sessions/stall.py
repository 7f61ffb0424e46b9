"""Waiting for a provider that is down: exponential backoff with jitter, Retry-After honoured.

The jitter is "full jitter": a wait drawn evenly from nothing to the exponential step, which keeps many
attempts from coming back at the same moment (M. Brooker, "Exponential Backoff And Jitter", AWS 2015).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

#: The first step and the longest one, in seconds.
FIRST = 1.0
LONGEST = 60.0


@dataclass(slots=True)
class Backoff:
    """The waits of one invoke, until `budget` seconds are used up."""

    budget: float
    tries: int = 0
    waited: float = 0.0

    def next(self, retry_after: float | None = None) -> float | None:
        """How long to wait now, or None when the budget does not allow another try.

        A provider's own `retry_after` (seconds) is a lower bound: coming back earlier is refused anyway.
        """
        if self.budget <= 0:
            return None
        step = min(LONGEST, FIRST * 2**self.tries)
        wait = random.uniform(step / 10, step)  # noqa: S311 - spreading load, not secrecy
        if retry_after is not None:
            wait = max(retry_after, 0.0) + random.uniform(0.0, FIRST / 2)  # noqa: S311
        if self.waited + wait > self.budget:
            return None
        self.tries += 1
        self.waited += wait
        return wait


class Stalls:
    """Stops the phase's clock while every invoke that runs waits for its provider, and only then.

    `held` is told for how many seconds it stood still because of the run's own pace, and not for a provider
    that is down.
    """

    def __init__(
        self,
        freeze: Callable[[], AbstractContextManager[None]],
        held: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._freeze = freeze
        self._held = held
        self._running = 0
        self._waiting = 0
        self._paced = 0
        self._frozen: ExitStack | None = None
        self._last = 0.0

    @contextmanager
    def invoke(self) -> Iterator[None]:
        """An invoke runs."""
        self._change(1, 0)
        try:
            yield
        finally:
            self._change(-1, 0)

    @contextmanager
    def waiting(self, *, paced: bool = False) -> Iterator[None]:
        """One of them waits. `paced`: for its turn to call, see `pytest_ageval.pacing`."""
        self._change(0, 1, int(paced))
        try:
            yield
        finally:
            self._change(0, -1, -int(paced))

    def _change(self, running: int, waiting: int, paced: int = 0) -> None:
        if self._frozen is not None and self._paced:
            self._held(time.monotonic() - self._last)
        self._last = time.monotonic()
        self._running += running
        self._waiting += waiting
        self._paced += paced
        stand_still = 0 < self._running == self._waiting
        if stand_still and self._frozen is None:
            self._frozen = ExitStack()
            self._frozen.enter_context(self._freeze())
        elif not stand_still and self._frozen is not None:
            self._frozen.close()
            self._frozen = None
