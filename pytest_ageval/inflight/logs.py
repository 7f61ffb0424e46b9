"""What an attempt logs belongs to it, and not to the item that pytest happens to be at."""

from __future__ import annotations

import logging

from pytest_ageval.inflight.started import CURRENT

_FORMAT = logging.Formatter("%(levelname)-8s %(name)s:%(filename)s:%(lineno)d %(message)s")


class _Kept(logging.Handler):
    """Gives a record to the attempt on whose behalf it was made."""

    def emit(self, record: logging.LogRecord) -> None:
        started = CURRENT.get()
        if started is not None:
            started.logged(_FORMAT.format(record))


class _NotAhead(logging.Filter):
    """Lets a record pass unless it was made on behalf of an attempt that was started ahead."""

    def filter(self, record: logging.LogRecord) -> bool:
        return CURRENT.get() is None


_handler = _Kept()
_filter = _NotAhead()


def divert() -> None:
    """Keep the records of attempts out of pytest's capture, whose handlers come and go. Idempotent."""
    root = logging.getLogger()
    if _handler not in root.handlers:
        root.addHandler(_handler)
    for handler in root.handlers:
        # pytest has no public name for it.
        if type(handler).__name__ == "LogCaptureHandler" and _filter not in handler.filters:
            handler.addFilter(_filter)


def restore() -> None:
    """Leave logging as it was found."""
    logging.getLogger().removeHandler(_handler)
