"""The hooks by which pytest takes items in the order in which their attempts are over.

Loaded in every run, also in those without a task: what only attempts need is imported when there are some.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ageval.collection import TaskItem
from pytest_ageval.discovery import has_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_ageval.inflight.loop import Source


#: In the output of a worker: attempts that it could not start ahead, by reason.
IN_TURN = "ageval_in_turn"


class InFlight:
    """Registered unless ``--in-flight 1`` was given. What the number is shows when the items are known."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._in_turn: Counter[str] = Counter()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Every worker needs more items than it runs, to know which one comes next."""
        from pytest_ageval.inflight.worker import make_scheduler

        return make_scheduler(config, log, self._depth, self._order)

    def _order(self, nodeids: Sequence[str]) -> list[int]:
        from pytest_ageval.inflight.order import longest_first
        from pytest_ageval.job import Job

        return longest_first(Job.of(self.config), nodeids)

    def _depth(self, nodeids: Sequence[str]) -> int | None:
        """Items that a worker is to have; None: as ever."""
        if not has_tasks(nodeids, self.config.rootpath):
            return None
        from pytest_ageval.inflight.number import number

        limit = number(self.config, nodeids).limit
        return limit + 1 if limit > 1 else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """In place of pytest's loop, when there are attempts to start ahead."""
        if session.config.getoption("collectonly") or not any(isinstance(i, TaskItem) for i in session.items):
            return None
        if session.testsfailed and not session.config.getoption("continue_on_collection_errors"):
            return None
        from pytest_ageval.inflight.number import number

        limit = number(self.config, (item.nodeid for item in session.items)).limit
        source = self._source(session) if limit > 1 else None
        if source is None:
            return None
        from pytest_ageval.inflight.diverted import Diverted
        from pytest_ageval.inflight.files import FILES, SPARE_FILES, allow_files
        from pytest_ageval.inflight.loop import Loop
        from pytest_ageval.inflight.pool import POOL, Pool

        allow_files(limit * FILES + SPARE_FILES)
        diverted = Diverted(self.config)
        ordered = hasattr(self.config, "workerinput")  # by the controller
        pool = session.config.stash[POOL] = Pool(self.config, limit, ordered=ordered)
        try:
            Loop(session, source, pool).run()
        finally:
            del session.config.stash[POOL]
            self._took_turns(pool.in_turn)
            cancelled, waiting = pool.stop()
            self._say(cancelled, waiting)
            diverted.restore()
        return True

    def _took_turns(self, reasons: Counter[str]) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput[IN_TURN] = dict(reasons)
        else:
            self._in_turn += reasons

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What a worker could not start ahead counts for the run."""
        self._in_turn.update((getattr(node, "workeroutput", None) or {}).get(IN_TURN, {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Attempts that ran one at a time, and why: whoever asked for several would wonder."""
        for reason, count in self._in_turn.most_common(3):
            attempts = "1 attempt" if count == 1 else f"{count} attempts"
            terminalreporter.write_line(f"ageval: {attempts} ran in turn, not ahead: {reason}")

    def _source(self, session: pytest.Session) -> Source | None:
        if hasattr(self.config, "workerinput"):
            from pytest_ageval.inflight.worker import worker_source

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
