"""Budgets of money and tokens, and what has been spent of them.

A budget is checked before a model call, never during one: what is spent can exceed it by the calls
that were under way when it was used up. Tokens are input and output tokens, cached ones included.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import threading
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ageval.report.numbers import dollars

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes of the file of an `Account`: it is written whole, in one call: a killed process tears nothing.
RECORD = 512


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent. `max_cost_usd` is US dollars; None means no limit."""

    max_cost_usd: float | None = None
    max_tokens: int | None = None

    def __bool__(self) -> bool:
        return self.max_cost_usd is not None or self.max_tokens is not None

    def as_dict(self) -> dict[str, float]:
        """The limits that there are."""
        found = {"max_cost_usd": self.max_cost_usd, "max_tokens": self.max_tokens}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent in `calls` settled calls.

    `unknown_cost` and `unknown_tokens` count the calls of which that could not be known: the figures
    are then only a lower bound. `estimated` is the part of the cost that is an estimate.
    """

    cost_usd: float = 0.0
    tokens: int = 0
    calls: int = 0
    estimated_usd: float = 0.0
    unknown_cost: int = 0
    unknown_tokens: int = 0

    def without(self, other: Spent) -> Spent:
        """What is left when `other` is taken away, as far as it is there."""
        return Spent(
            **{
                each.name: max(getattr(self, each.name) - getattr(other, each.name), 0)
                for each in fields(self)
            }
        )

    def plus(self, other: Spent) -> Spent:
        """The sum of both."""
        return Spent(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )

    def exhausted(self, budget: Budget) -> str | None:
        """The limit that is used up, ``max_cost`` or ``max_tokens``; None while there is some left."""
        if budget.max_cost_usd is not None and self.cost_usd >= budget.max_cost_usd:
            return "max_cost"
        if budget.max_tokens is not None and self.tokens >= budget.max_tokens:
            return "max_tokens"
        return None

    def words(self, limit: str, budget: Budget) -> str:
        """``$1.02 of $1.00`` or ``10500 of 10000 tokens``."""
        if limit == "max_cost":
            return f"{dollars(self.cost_usd)} of {dollars(budget.max_cost_usd or 0.0)}"
        return f"{self.tokens} of {budget.max_tokens} tokens"


class Account:
    """A sum of what was spent, in a file that several processes share.

    The directory is made when the first thing is spent. Every method may be called from any thread.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def spent(self) -> Spent:
        """The sum so far."""
        try:
            with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as descriptor:
                return _read(descriptor)
        except FileNotFoundError:
            return Spent()

    def add(self, spent: Spent) -> Spent:
        """Add to the sum, and return it."""
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        with self._locked(os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX) as descriptor:
            total = _read(descriptor).plus(spent)
            os.pwrite(descriptor, json.dumps(asdict(total)).encode().ljust(RECORD), 0)
            return total

    @contextlib.contextmanager
    def _locked(self, flags: int, lock: int) -> Iterator[int]:
        descriptor = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, lock)  # of the open file: threads exclude each other too
            yield descriptor
        finally:
            os.close(descriptor)


class Ledger:
    """What may still be spent: the account of a run with its budget, and what is to outlast the run.

    `before` is what earlier sessions of the suite runs had spent that the run goes on with; it is a part of
    the account. `record` is an account of one suite run, which is kept with or without a budget, so that a
    later session knows it.
    """

    def __init__(self, path: Path, budget: Budget, record: Account | None = None) -> None:
        self.budget = budget
        self.before = Spent()
        self._account = Account(path)
        self._record = record

    @property
    def path(self) -> Path:
        """The file of the run's account."""
        return self._account.path

    def recorded_in(self, record: Account | None) -> Ledger:
        """The same account, for calls that count in `record` too."""
        return Ledger(self._account.path, self.budget, record)

    def begin(self, before: Spent) -> None:
        """The run goes on with what earlier sessions have spent `before`. Once, before the first call."""
        self.before = before
        if before != Spent():
            self._account.add(before)

    def spent(self) -> Spent:
        """The sum so far."""
        return self._account.spent()

    def add(self, spent: Spent) -> None:
        """Add to the sum."""
        if self.budget:
            self._account.add(spent)
        if self._record is not None:
            with contextlib.suppress(OSError):  # the suite run says itself that it cannot be written
                self._record.add(spent)

    def exhausted(self) -> tuple[str, str] | None:
        """The limit that is used up, and how far in words; None while there is some left."""
        if not self.budget:
            return None
        spent = self.spent()
        limit = spent.exhausted(self.budget)
        return None if limit is None else (limit, spent.words(limit, self.budget))


def _read(descriptor: int) -> Spent:
    data = os.pread(descriptor, RECORD, 0)
    return Spent(**json.loads(data)) if data.strip() else Spent()


class Tally:
    """What one attempt has spent. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spent = Spent()

    def add(self, spent: Spent) -> None:
        """Add to the sum."""
        with self._lock:
            self._spent = self._spent.plus(spent)

    def spent(self) -> Spent:
        """The sum so far."""
        with self._lock:
            return self._spent


def finite(value: float) -> bool:
    """Whether `value` can be a budget: a number above 0."""
    return math.isfinite(value) and value > 0
