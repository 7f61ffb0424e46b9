"""The user's price table (``ageval.prices/1``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ageval.accounting import Price, PriceFile
from pytest_ageval.config.check import Source, check_format, convert
from pytest_ageval.config.formats import PRICES_FORMAT, PricesFile
from pytest_ageval.config.yamlio import load_yaml
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_ageval.accounting import Prices
    from pytest_ageval.config.locked import LockedTask


def load_prices(path: Path) -> PriceFile:
    """The table in the file at `path`. Raises ConfigError."""
    if not path.is_file():
        raise ConfigError("invalid_option", f"--ageval-prices: there is no file {path}")
    source = Source(path)
    data = load_yaml(path)
    check_format(data, PRICES_FORMAT, source)
    file = convert(data, PricesFile, source)
    rows = [Price(row.match, row.input, row.output, row.cache_read, row.cache_write) for row in file.models]
    return PriceFile(path.name, file.date, tuple(rows))


def check_priced(locked: LockedTask, prices: Prices) -> None:
    """A budget of money needs a price for every model that is named. Raises ConfigError ``no_price``.

    A model that an agent chooses itself is not known before it is called.
    """
    for role, binding in locked.bindings.items():
        model = binding.model.id
        if model is not None and prices.find(model, binding.base_url) is None:
            raise ConfigError(
                "no_price",
                f"there is a budget of money, but no price of the model {model!r} of the role {role!r}",
                hint="name it in a price table (--ageval-prices FILE), install pytest-ageval[prices], "
                "or limit the tokens instead",
            )
