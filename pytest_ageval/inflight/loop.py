"""The order of a session in which attempts are in flight: the item whose attempt is over comes next.

Items are reported out of their order only among neighbours that share all collectors above their tasks, so
that a fixture of a package or a session is set up once, as ever.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

import pytest

from pytest_ageval.collection import TaskDirectory, TaskFile
from pytest_ageval.inflight.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Seconds between two looks at what else has changed.
LOOK = 0.1


class Source(Protocol):
    """Where items come from."""

    #: Somebody else decides what a stop means: the controller, to which a worker tells the reason.
    distributed: bool

    def more(self, *, wait: bool) -> list[pytest.Item]:
        """Further items. With `wait`: at least one, or none if there will never be another."""

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Take `item` through pytest's protocol."""


class _Group:
    """Neighbours in the order of the session that share what `_shared` says."""

    def __init__(self, shared: object) -> None:
        self.shared = shared
        self.items: dict[pytest.Item, None] = {}


class Loop:
    """One run through the items of `source`."""

    def __init__(self, session: pytest.Session, source: Source, pool: Pool) -> None:
        self.session = session
        self.source = source
        self.pool = pool
        self._groups: deque[_Group] = deque()

    def run(self) -> None:
        """Until there are no more items. Raises what pytest's own loop raises when the session is to stop.

        A worker of pytest-xdist raises nothing: the controller would take it for Ctrl-C.
        """
        while True:
            self._take_in(wait=not self._groups)
            if not self._groups:
                return
            item = self._choose(self._groups[0])
            self.pool.turn_of(item)
            self.source.run(item, self._next(item))
            self.pool.turn_over(item)
            if self.source.distributed and (self.session.shouldfail or self.session.shouldstop):
                return
            if self.session.shouldfail:
                raise self.session.Failed(self.session.shouldfail)
            if self.session.shouldstop:
                raise self.session.Interrupted(self.session.shouldstop)

    def _take_in(self, *, wait: bool) -> None:
        attempts = []
        for item in self.source.more(wait=wait):
            shared = _shared(item)
            if shared is not None:
                attempts.append(item)
            if not self._groups or self._groups[-1].shared != shared:
                self._groups.append(_Group(shared))
            self._groups[-1].items[item] = None
        self.pool.offer(attempts)

    def _choose(self, group: _Group) -> pytest.Item:
        """The item that comes next: one that is over, else one that only its turn can start."""
        while True:
            self.pool.fill()
            first = next(iter(group.items))
            if group.shared is None:
                return first
            found = self.pool.ready(group.items)
            if found is None:
                found = self.pool.waiting(group.items)
            if found is not None:
                return found
            self.pool.wait(LOOK)
            self._take_in(wait=False)

    def _next(self, item: pytest.Item) -> pytest.Item | None:
        """What pytest is told comes after `item`: something that shares with it what the real one will.

        Which one it will be, only time can tell. Of the same task only if no other is left: collectors
        that the two share stay set up.
        """
        group = self._groups[0]
        del group.items[item]
        if group.items:
            other = (found for found in group.items if found.parent is not item.parent)
            return next(other, None) or next(iter(group.items))
        self._groups.popleft()
        if not self._groups:
            self._take_in(wait=True)
        return next(iter(self._groups[0].items)) if self._groups else None


def _shared(item: pytest.Item) -> object:
    """The collector above the item's task; None for an item that is no attempt, which keeps its place."""
    file = item.parent
    if not isinstance(file, TaskFile):
        return None
    return file.parent.parent if isinstance(file.parent, TaskDirectory) else file.parent


class Session:
    """The items of a session that is not distributed."""

    distributed = False

    def __init__(self, session: pytest.Session) -> None:
        self._items: Iterable[pytest.Item] | None = session.items
        self._hook = session.config.hook

    def more(self, *, wait: bool) -> list[pytest.Item]:
        """All of them, once."""
        found, self._items = list(self._items or ()), None
        return found

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """As pytest's loop does."""
        self._hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
