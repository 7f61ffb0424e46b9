"""What an attempt prints belongs to it, and not to the item that pytest happens to be at.

The streams stay the objects that they are: pytest exchanges `sys.stdout` for every phase of an item, and
code may hold on to either. Their ``write`` gives to an attempt what was written on its behalf, and passes on
the rest. What goes past it (a subprocess, ``sys.stdout.buffer``, a thread that a hook started itself) is
pytest's.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from pytest_ageval.inflight.started import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable

_diverted: dict[int, Any] = {}


def divert() -> None:
    """Look at the streams of this moment. Idempotent."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and id(stream) not in _diverted and hasattr(stream, "write"):
            with contextlib.suppress(AttributeError):  # a stream whose methods cannot be replaced
                stream.write = _write(name, stream.write)
                _diverted[id(stream)] = stream


def restore() -> None:
    """Leave the streams as they were found."""
    while _diverted:
        _, stream = _diverted.popitem()
        with contextlib.suppress(AttributeError):
            del stream.write


def _write(name: str, write: Callable[[str], Any]) -> Callable[[str], Any]:
    def divided(text: str) -> Any:
        started = CURRENT.get()
        if started is None or not isinstance(text, str):
            return write(text)
        started.printed(name, text)
        return len(text)

    return divided
