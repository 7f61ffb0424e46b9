"""What the commands write."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pytest_ageval.config.where import printable

if TYPE_CHECKING:
    from pytest_ageval.errors import ConfigError


def say(text: str) -> None:
    """One line of output."""
    sys.stdout.write(f"{printable(text)}\n")


def complain(error: ConfigError | str) -> None:
    """An error as every configuration error is shown."""
    sys.stderr.write(f"{printable(str(error))}\n")
