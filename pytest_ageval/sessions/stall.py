"""Waiting for a provider that is down: exponential backoff with jitter, Retry-After honoured.

The jitter is "full jitter": a wait drawn evenly from nothing to the exponential step, which keeps many
attempts from coming back at the same moment (M. Brooker, "Exponential Backoff And Jitter", AWS 2015).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
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

    def __iter__(self) -> Iterator[float]:
        while (wait := self.next()) is not None:
            yield wait
