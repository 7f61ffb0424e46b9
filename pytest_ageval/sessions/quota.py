"""What one attempt may still ask of its agents."""

from __future__ import annotations

import asyncio


class Quota:
    """Counts invokes. One is used up just before the executor is called, and never given back."""

    def __init__(self, invocations: int | None, concurrency: int) -> None:
        self.invocations = invocations
        self.used = 0
        self.slots = asyncio.Semaphore(concurrency)

    def take(self) -> bool:
        """Use one up; False when none is left."""
        if self.invocations is not None and self.used >= self.invocations:
            return False
        self.used += 1
        return True

    @property
    def left(self) -> int | None:
        """How many are left; None without a limit."""
        return None if self.invocations is None else max(0, self.invocations - self.used)
