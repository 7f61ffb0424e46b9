"""What can be concluded from attempts. The modules in here need numpy and scipy (the extra ``stats``).

Call `require` before one of them is imported, except for `tally`, which needs neither.
"""

from __future__ import annotations

import importlib.util

from pytest_ageval.errors import ConfigError

NEEDS = ("numpy", "scipy")


def available() -> bool:
    """numpy and scipy are installed."""
    return all(importlib.util.find_spec(name) is not None for name in NEEDS)


def require(what: str) -> None:
    """Raise ConfigError ``stats_missing`` unless numpy and scipy are installed; `what` needs them."""
    if not available():
        raise ConfigError(
            "stats_missing",
            f"{what} needs {' and '.join(NEEDS)}",
            hint="install them with: pip install 'pytest-ageval[stats]'",
        )
