"""What a model call costs: reported by its source, or estimated from list prices.

Prices come from the user's file (``ageval.prices/1``) and, for models that it does not name, from the
package ``genai-prices`` if it is installed. Nothing is fetched.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pytest_ageval.accounting import library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_ageval.executor import Usage

#: Tokens that a price is for.
MILLION = 1_000_000

#: Why the cost of a call is not known, besides the reasons for which its usage is not.
CostGap = Literal["no_price", "no_price_table", "model_unknown"]


class Quote(Protocol):
    """The price of one model."""

    def cost(self, usage: Usage) -> float:
        """US dollars for `usage`, whose prompt and completion tokens are known."""


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens. Without its own price a cached token costs what any other does."""

    match: str
    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def cost(self, usage: Usage) -> float:
        """See `Quote`. What is not known to have come from a cache counts as read anew."""
        cached, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
        fresh = max((usage.prompt_tokens or 0) - cached - written, 0)
        read_price = self.input if self.cache_read is None else self.cache_read
        write_price = self.input if self.cache_write is None else self.cache_write
        dollars = fresh * self.input + cached * read_price + written * write_price
        return (dollars + (usage.completion_tokens or 0) * self.output) / MILLION


@dataclass(frozen=True, slots=True)
class PriceFile:
    """The user's own prices. `name` and `date` are told with every estimate; the first match wins."""

    name: str
    date: str
    rows: Sequence[Price]

    def find(self, model: str) -> Price | None:
        """The price of `model`. Patterns are those of a shell, and do not mind upper and lower case."""
        return next((row for row in self.rows if fnmatch.fnmatchcase(model.lower(), row.match.lower())), None)


@dataclass(frozen=True, slots=True)
class Prices:
    """All prices of a run: the user's file first, then the package."""

    file: PriceFile | None = None

    def find(self, model: str, base_url: str | None = None) -> tuple[Quote, str] | None:
        """The price of `model` and the table that has it, with its date; None when none has."""
        own = self.own(model)
        if own is not None and self.file is not None:
            return own, f"{self.file.name} ({self.file.date})"
        found = library.find(model, base_url)
        return None if found is None else (found, library.table())

    def own(self, model: str) -> Price | None:
        """The price in the user's file."""
        return self.file.find(model) if self.file is not None else None

    @property
    def has_table(self) -> bool:
        """Whether there is any table to look into."""
        return self.file is not None or library.installed()

    def row(self, usage: Usage, model: str | None, base_url: str | None = None) -> dict[str, Any]:
        """`usage` as evidence has it, with its cost.

        ``cost_source`` is ``reported`` or ``estimated``; an estimate names its table in
        ``price_table``. Where there is no cost, ``cost_unavailable`` is the reason.
        """
        found = usage.as_dict()
        if usage.source == "none":  # no model was called
            return found
        if usage.cost_usd is not None:
            return {**found, "cost_source": "reported"}
        cost, word = self._estimate(usage, model, base_url)
        if cost is None:
            return {**found, "cost_unavailable": word}
        return {**found, "cost_usd": cost, "cost_source": "estimated", "price_table": word}

    def _estimate(self, usage: Usage, model: str | None, base_url: str | None) -> tuple[float | None, str]:
        """The cost and its table, or None and the reason."""
        if usage.prompt_tokens is None or usage.completion_tokens is None:
            return None, usage.unavailable or "partial"
        if usage.unavailable == "ambiguous":
            return None, usage.unavailable
        if not model:
            return None, "model_unknown"
        found = self.find(model, base_url)
        if found is None:
            return None, "no_price" if self.has_table else "no_price_table"
        quote, table = found
        # Figures that contradict each other would make a price out of nothing.
        cost = quote.cost(replace(usage, cost_usd=None))
        return round(cost, 9), table
