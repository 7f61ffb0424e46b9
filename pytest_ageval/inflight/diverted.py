"""Keeps what attempts in flight log and print out of what pytest captures of its items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_ageval.inflight import logs, prints

if TYPE_CHECKING:
    from collections.abc import Generator


class Diverted:
    """What attempts log and print is theirs, for as long as this is registered.

    pytest's capture puts handlers and streams of its own in place for each phase of an item.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._divert()
        config.pluginmanager.register(self, "ageval-diverted")

    def _divert(self) -> None:
        logs.divert()
        # Without capture, what is printed is to be seen at once.
        if self.config.getoption("capture") != "no":
            prints.divert()

    def restore(self) -> None:
        """Leave logging and the streams as they were found."""
        self.config.pluginmanager.unregister(self)
        logs.restore()
        prints.restore()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        """Inside of pytest's capture."""
        self._divert()
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        """Inside of pytest's capture."""
        self._divert()
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        """Inside of pytest's capture."""
        self._divert()
        return (yield)
