"""What pytest-xdist starts on a host in place of its own module: it makes the worker at home there first."""

from __future__ import annotations

if __name__ == "__channelexec__":
    from pytest_ageval.across.worker import work

    work(channel)  # type: ignore[name-defined]  # noqa: F821
