"""The hooks by which pytest takes items in the order in which their attempts are over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_ageval.collection import TaskItem
from pytest_ageval.inflight import logs
from pytest_ageval.inflight.worker import make_scheduler, worker_source

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_ageval.inflight.loop import Source


class InFlight:
    """Registered when ``--in-flight`` is more than 1."""

    def __init__(self, config: pytest.Config, limit: int) -> None:
        self.config = config
        self.limit = limit

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Every worker needs more items than it runs, to know which one comes next."""
        return make_scheduler(config, log, self.limit + 1)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """In place of pytest's loop, when there are attempts to start ahead."""
        if session.config.getoption("collectonly") or not any(isinstance(i, TaskItem) for i in session.items):
            return None
        if session.testsfailed and not session.config.getoption("continue_on_collection_errors"):
            return None
        source = self._source(session)
        if source is None:
            return None
        from pytest_ageval.inflight.loop import Loop
        from pytest_ageval.inflight.pool import POOL, Pool

        logs.divert()
        pool = session.config.stash[POOL] = Pool(self.config, self.limit)
        try:
            Loop(session, source, pool).run()
        finally:
            del session.config.stash[POOL]
            cancelled, waiting = pool.stop()
            self._say(cancelled, waiting)
            logs.restore()
        return True

    def _source(self, session: pytest.Session) -> Source | None:
        if hasattr(self.config, "workerinput"):
            return worker_source(session)
        if self.config.pluginmanager.hasplugin("dsession"):
            return None  # the controller of a distributed run has no items
        from pytest_ageval.inflight.loop import Session

        return Session(session)

    def _say(self, cancelled: int, waiting: int) -> None:
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None and (cancelled or waiting):
            reporter.ensure_newline()
            reporter.write_line(
                f"ageval: {cancelled} attempts in flight were cancelled, {waiting} were not begun"
            )

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        """Inside of pytest's capture of the log."""
        logs.divert()
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        """Inside of pytest's capture of the log."""
        logs.divert()
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        """Inside of pytest's capture of the log."""
        logs.divert()
        return (yield)
