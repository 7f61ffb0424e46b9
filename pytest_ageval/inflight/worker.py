"""Attempts in flight in the workers of pytest-xdist: which items a worker is given, and how it takes them.

pytest-xdist has no public interface for a worker that runs its items in another order. What is used of its
inside is named in `attributes`; where one is missing, attempts run one after the other.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_ageval.inflight.loop import Source

#: What a worker of pytest-xdist must have.
ATTRIBUTES = ("torun", "channel", "handle_command", "sendevent", "pytest_runtest_logreport")


def worker_source(session: pytest.Session) -> Source | None:
    """The items that the controller gives to this worker; None when this pytest-xdist works otherwise."""
    for plugin in session.config.pluginmanager.get_plugins():
        if hasattr(plugin, "run_one_test") and hasattr(plugin, "torun"):
            marker = getattr(plugin.handle_command, "__globals__", {}).get("Marker")
            if marker is None or not all(hasattr(plugin, name) for name in ATTRIBUTES):
                return None
            return _Worker(session, plugin, marker.SHUTDOWN)
    return None


class _Worker:
    distributed = True

    def __init__(self, session: pytest.Session, interactor: Any, shutdown: object) -> None:
        self._session = session
        self._interactor = interactor
        self._shutdown = shutdown
        self._closed = False
        self._index: dict[pytest.Item, int] = {}
        interactor.channel.setcallback(interactor.handle_command, endmarker=shutdown)

    def more(self, *, wait: bool) -> list[pytest.Item]:
        """What has arrived."""
        found: list[pytest.Item] = []
        while not self._closed:
            if not (wait and not found):
                with self._interactor.torun.lock() as queue:
                    if not queue:
                        break
            index = self._interactor.torun.get()
            if index is self._shutdown:
                self._closed = True
                break
            item = self._session.items[index]
            self._index[item] = index
            found.append(item)
        return found

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """As the worker's own loop does, with the item's number for its reports."""
        index = self._interactor.item_index = self._index[item]
        start = time.perf_counter()
        self._session.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        self._interactor.sendevent(
            "runtest_protocol_complete", item_index=index, duration=time.perf_counter() - start
        )


def make_scheduler(
    config: pytest.Config,
    log: Any,
    depth_of: Callable[[Sequence[str]], int | None],
    order: Callable[[Sequence[str]], list[int]],
) -> Any:
    """A scheduler that keeps so many items at every worker as `depth_of` says of the items' ids.

    None: pytest-xdist's own number. `order` are the places of the ids in the order in which the items are to
    begin. No scheduler when another one was asked for.
    """
    if config.getoption("dist", "no") not in ("load", "no") or config.getoption("maxschedchunk", None):
        return None
    from xdist.scheduler import LoadScheduling

    class InFlightScheduling(LoadScheduling):  # type: ignore[misc]
        """Hands items out singly, `depth` to each worker."""

        depth: int | None = None
        ordered = False

        def schedule(self) -> None:
            """Begin with one item for each worker, so that all get some of the first."""
            begun = self.collection is not None
            if not begun:
                self.depth = depth_of(next(iter(self.node2collection.values()), []))
            if self.depth is None:
                super().schedule()
                return
            self.maxschedchunk = 1
            super().schedule()
            if not begun and self.collection:
                while self.pending and any(len(rows) < self.depth for rows in self.node2pending.values()):
                    for node in self.nodes:
                        self._send_tests(node, 1 if len(self.node2pending[node]) < self.depth else 0)
                if not self.pending:
                    for node in self.nodes:
                        node.shutdown()

        def _send_tests(self, node: Any, num: int) -> None:
            """The first time, put what is to come into the order in which it is to begin."""
            if self.depth is not None and not self.ordered:
                self.ordered = True
                self.pending[:] = order(self.collection)
            super()._send_tests(node, num)

        def check_schedule(self, node: Any, duration: float = 0) -> None:
            """Fill a worker up again."""
            if self.depth is None:
                super().check_schedule(node, duration)
                return
            if node.shutting_down:
                return
            if not self.pending:
                node.shutdown()
                return
            wanted = self.depth - len(self.node2pending[node])
            if wanted > 0:
                self._send_tests(node, wanted)

    return InFlightScheduling(config, log)
