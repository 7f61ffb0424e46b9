"""List prices of the package ``genai-prices`` (extra ``prices``): a table that comes with it.

The package can update its table from the network; that is never asked for here.
"""

from __future__ import annotations

import importlib.util
from datetime import UTC, date, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_ageval.executor import Usage


@cache
def installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("genai_prices") is not None


def load() -> None:
    """Import the package, if it is there, and read its table."""
    if installed():
        table()


@cache
def table() -> str:
    """``genai-prices 0.2.3 (2026-11-20)``: its version, and the day of the newest price in it."""
    from importlib import metadata

    newest = _newest()
    return f"genai-prices {metadata.version('genai-prices')}" + (f" ({newest})" if newest else "")


def _newest() -> date | None:
    from genai_prices.data_snapshot import get_snapshot

    today = datetime.now(tz=UTC).date()
    found = [
        day
        for provider in get_snapshot().providers
        for model in provider.models
        for row in (model.prices if isinstance(model.prices, list) else ())
        if isinstance(day := getattr(row.constraint, "start_date", None), date) and day <= today
    ]
    return max(found, default=None)


@cache
def find(model: str, base_url: str | None) -> LibraryPrice | None:
    """The price of a model: at the provider with that address, else at the model's own maker."""
    if not installed():
        return None
    from genai_prices.data_snapshot import get_snapshot

    # "litellm" is the package's word for a name that begins with its provider: openai/gpt-4o.
    tries = [(None, base_url), (None, None), *([("litellm", None)] if "/" in model else [])]
    for provider_id, url in dict.fromkeys(tries):
        try:
            provider, found = get_snapshot().find_provider_model(model, None, provider_id, url)
        except LookupError:
            continue
        return LibraryPrice(provider, found)
    return None


class LibraryPrice:
    """The price of one model at one provider, which may depend on the day and on the length of the input."""

    def __init__(self, provider: Any, model: Any) -> None:
        self._provider = provider
        self._model = model

    def cost(self, usage: Usage) -> float:
        """US dollars for `usage`."""
        from genai_prices import Usage as Counts

        counts = Counts(
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        found = self._model.calc_price(
            counts, self._provider, genai_request_timestamp=datetime.now(tz=UTC), auto_update_timestamp=None
        )
        return float(found.total_price)
