"""Counts the model calls of one attempt against its own budget and against that of the whole run."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pytest_ageval.accounting.budget import Budget, Ledger, Spent, Tally
from pytest_ageval.accounting.prices import Prices
from pytest_ageval.executor import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The figures that a call is counted with.
_FIGURES = (
    *("prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens"),
    "cost_usd",
)


#: The flag of an attempt whose own budget does not cover all of its calls.
UNCOUNTED = "budget_uncounted"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no further call may be made. `limit` is ``max_cost`` or ``max_tokens``.

    `whole_run`: the budget of the run is used up, which says nothing of this attempt.
    """

    limit: str
    whole_run: bool
    message: str


class Meter:
    """One attempt's spending. `ledger` is shared by all attempts of the run, or None without a budget."""

    def __init__(self, budget: Budget, ledger: Ledger | None, prices: Prices) -> None:
        self.budget = budget
        self.ledger = ledger
        self.prices = prices
        self.tally = Tally()

    def refuse(self, surface: Literal["run", "evaluate"]) -> Refusal | None:
        """Why a call may not be made now. A judge's call counts for the run only."""
        if self.ledger is not None:
            found = self.ledger.exhausted()
            if found is not None:
                return Refusal(found[0], True, f"the run's budget is used up ({found[1]})")
        if surface == "run" and self.budget:
            spent = self.tally.spent()
            limit = spent.exhausted(self.budget)
            if limit is not None:
                words = spent.words(limit, self.budget)
                return Refusal(limit, False, f"the attempt's budget is used up ({words})")
        return None

    @property
    def uncounted(self) -> bool:
        """The attempt's own budget could not count all of its calls."""
        spent = self.tally.spent()
        cost = self.budget.max_cost_usd is not None and spent.unknown_cost > 0
        return cost or (self.budget.max_tokens is not None and spent.unknown_tokens > 0)

    def charge(self, spent: Spent, surface: Literal["run", "evaluate"], paid: Spent | None = None) -> None:
        """Count a call (see `spent_of`). The run has `paid` so much of it in an earlier session."""
        if surface == "run":
            self.tally.add(spent)
        new = spent if paid is None else spent.without(paid)
        if self.ledger is not None and new != Spent():
            self.ledger.add(new)

    def row(self, usage: Usage, model: str | None, base_url: str | None) -> dict[str, Any]:
        """See `Prices.row`."""
        return self.prices.row(usage, model, base_url)


def spent_of(row: dict[str, Any]) -> Spent:
    """One call's share, from its usage with its cost."""
    prompt, completion = row.get("prompt_tokens"), row.get("completion_tokens")
    cost = row.get("cost_usd")
    estimated = cost if row.get("cost_source") == "estimated" else None
    gap = row.get("unavailable") is not None
    return Spent(
        cost_usd=cost or 0.0,
        tokens=(prompt or 0) + (completion or 0),
        calls=1,
        estimated_usd=estimated or 0.0,
        unknown_cost=int(cost is None or (gap and estimated is not None)),
        unknown_tokens=int(prompt is None or completion is None or gap),
    )


class CallMeter:
    """The calls of one session. `begin` and `settle` enclose one try of one invoke.

    An executor that makes several calls in one invoke tells each with `called`; at the end only what
    the result has beyond those is counted.
    """

    def __init__(
        self, meter: Meter, surface: Literal["run", "evaluate"], model: str | None, base_url: str | None
    ) -> None:
        self.meter = meter
        self.surface = surface
        self.model = model
        self.base_url = base_url
        #: The last refusal of the try that runs.
        self.refused: Refusal | None = None
        self._counted: list[Usage] = []
        self._paid = Spent()
        self._lock = threading.Lock()

    def replays(self, usages: Iterable[Usage]) -> None:
        """Calls that another process made and paid for will be told once more, before any other."""
        for usage in usages:
            self._paid = self._paid.plus(spent_of(self.meter.row(usage, self.model, self.base_url)))

    def refuse(self) -> str | None:
        """`Session.refuse_call`."""
        found = self.meter.refuse(self.surface)
        if found is None:
            return None
        self.refused = found
        return found.message

    def called(self, usage: Usage) -> None:
        """`Session.called`."""
        with self._lock:
            self._counted.append(usage)
        self._charge(self.meter.row(usage, self.model, self.base_url))

    def _charge(self, row: dict[str, Any]) -> None:
        spent = spent_of(row)
        with self._lock:
            paid, self._paid = self._paid, self._paid.without(spent)
        self.meter.charge(spent, self.surface, paid)

    def begin(self) -> None:
        """A try begins."""
        self.refused = None
        with self._lock:
            self._counted = []

    def settle(self, usage: Usage, *, answered: bool, model: str | None = None) -> None:
        """A try has ended with `usage`. What failed without any answer has used nothing."""
        with self._lock:
            counted = list(self._counted)
        if usage.source == "none":  # no model was called
            return
        if counted:
            rest = beyond(usage, counted)
            if rest is None:
                return
            usage = rest
        elif not answered and usage.unavailable == "not_reported" and not _known(usage):
            return
        self._charge(self.meter.row(usage, model or self.model, self.base_url))


def _known(usage: Usage) -> bool:
    return any(getattr(usage, name) is not None for name in _FIGURES)


def beyond(usage: Usage, counted: Iterable[Usage]) -> Usage | None:
    """What `usage` holds beyond the calls in `counted`; None when that is nothing."""
    rows = list(counted)
    found: dict[str, Any] = {}
    for name in _FIGURES:
        value = getattr(usage, name)
        if value is not None:
            found[name] = max(value - sum(getattr(row, name) or 0 for row in rows), 0)
    if not any(found.values()):
        return None
    return replace(usage, **found, unavailable=None)


def add(usages: Iterable[Usage]) -> Usage:
    """The usage of several tries of one invoke; a try of which nothing is known makes it ``partial``."""
    rows = [usage for usage in usages if _known(usage) or usage.unavailable not in (None, "not_reported")]
    if len(rows) == 1:
        return rows[0]
    if not rows:
        return Usage(unavailable="not_reported")
    found: dict[str, Any] = {}
    for name in _FIGURES:
        values = [getattr(row, name) for row in rows if getattr(row, name) is not None]
        found[name] = sum(values) if values else None
    gap = any(row.unavailable for row in rows) or any(
        value is not None and any(getattr(row, name) is None for row in rows)
        for name, value in found.items()
        if name in ("prompt_tokens", "completion_tokens")
    )
    return Usage(**found, source=rows[-1].source, unavailable="partial" if gap else None)
