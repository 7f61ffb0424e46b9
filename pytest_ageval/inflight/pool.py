"""The attempts of this process that were started before their turn."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

import pytest

from pytest_ageval.attempt_face import AttemptFace
from pytest_ageval.inflight.admission import Admission, Need
from pytest_ageval.inflight.eligible import Eligibility
from pytest_ageval.inflight.order import longest_first
from pytest_ageval.job import Job

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from pytest_ageval.collection import TaskItem
    from pytest_ageval.config import LockedTask

#: The session's pool.
POOL = pytest.StashKey["Pool"]()

#: Seconds that attempts get to clean up when the session ends before them.
GRACE = 10.0

_log = logging.getLogger("pytest_ageval.inflight")


class Pool:
    """At most `limit` attempts run at once. For the main thread.

    `ordered`: the items come in the order in which they are to begin.
    """

    def __init__(self, config: pytest.Config, limit: int, *, ordered: bool = False) -> None:
        self.limit = limit
        self._job = Job.of(config)
        self._ordered = ordered
        self._eligible = Eligibility(config)
        self._admission = Admission(self._job)
        self._queue: deque[pytest.Item] = deque()
        #: Those of the queue whose configuration is known already.
        self._locked: dict[pytest.Item, tuple[LockedTask, Need]] = {}
        self._faces: dict[pytest.Item, AttemptFace] = {}
        self._running = 0
        self._ready: deque[pytest.Item] = deque()
        self._changed = threading.Condition()
        #: Nobody starts these but pytest. In their order, without those whose turn has come.
        self._in_turn: dict[pytest.Item, None] = {}
        self._needs: dict[pytest.Item, Need] = {}
        #: Why they are not started ahead.
        self.in_turn: Counter[str] = Counter()

    # -- what is to come -------------------------------------------------------------------------

    def offer(self, items: Sequence[pytest.Item]) -> None:
        """Start these when there is room, the longest first."""
        ahead = []
        for item in items:
            reason = self._eligible.why_not(item)
            if reason is None:
                ahead.append(item)
            else:
                self._wait_for_turn(item, reason)
        if not self._ordered and len(ahead) > 1:
            ahead = [ahead[place] for place in longest_first(self._job, [item.nodeid for item in ahead])]
        self._queue.extend(ahead)

    def _wait_for_turn(self, item: pytest.Item, reason: object) -> None:
        _log.debug("not started ahead: %s: %s", item.nodeid, reason)
        self._in_turn[item] = None
        if not isinstance(reason, BaseException):
            self.in_turn[str(reason)] += 1
        else:  # there is nothing to run, and nothing that it takes
            self._needs[item] = Need({})

    def waiting(self, among: Container[pytest.Item]) -> pytest.Item | None:
        """The first of these that waits for its turn, if what it needs is there."""
        item = next((item for item in self._in_turn if item in among), None)
        return None if item is None or self._short_in_turn(item) else item

    def _short_in_turn(self, item: pytest.Item) -> set[str]:
        need = self._need_in_turn(item)
        with self._changed:
            return self._admission.short_of(need)

    def _need_in_turn(self, item: pytest.Item) -> Need:
        if item not in self._needs:
            try:
                locked = self._job.lock(item, credentials=False)  # type: ignore[arg-type]
                self._needs[item] = self._admission.need_of(locked)
            except (Exception, pytest.skip.Exception):  # said in its turn
                self._needs[item] = Need({})
        return self._needs[item]

    def turn_of(self, item: pytest.Item) -> None:
        """The turn of `item` has come."""
        if item in self._in_turn:
            del self._in_turn[item]
            with self._changed:
                self._admission.enter(self._needs.setdefault(item, Need({})))

    def turn_over(self, item: pytest.Item) -> None:
        """The turn of `item` is over."""
        need = self._needs.pop(item, None)
        if need is not None:
            with self._changed:
                self._admission.leave(need)

    def fill(self) -> None:
        """Start as many as there is room for. What cannot be started says why in its turn.

        An item that waits for a resource is passed by such as do not need it, at most `limit` of them.
        """
        first = next(iter(self._in_turn), None)
        short = set() if first is None else self._short_in_turn(first)
        passed: list[pytest.Item] = []
        while self._queue and len(passed) <= self.limit and self._has_room():
            item = self._queue.popleft()
            found = self._look_at(item)
            if found is None:
                continue
            locked, need = found
            with self._changed:
                missing = self._admission.short_of(need)
            if missing or short & need.amounts.keys():
                short |= missing
                passed.append(item)
                continue
            del self._locked[item]
            self._start(item, locked, need)
        self._queue.extendleft(reversed(passed))

    def _has_room(self) -> bool:
        # Where reports are slower than attempts, one begins for each that is reported: no waves of them.
        return self._running < self.limit and self._running + len(self._ready) < 2 * self.limit

    def _look_at(self, item: pytest.Item) -> tuple[LockedTask, Need] | None:
        """The item's configuration and what it takes; None when it has to wait for its turn."""
        if item not in self._locked:
            try:
                locked = AttemptFace.lock_ahead(item)  # type: ignore[arg-type]
                self._locked[item] = locked, self._admission.need_of(locked)
            except (Exception, pytest.skip.Exception) as error:
                self._wait_for_turn(item, error)
                return None
        return self._locked[item]

    def _start(self, item: pytest.Item, locked: LockedTask, need: Need) -> None:
        try:
            face = AttemptFace.ahead(item, locked)  # type: ignore[arg-type]
        except (Exception, pytest.skip.Exception) as error:
            self._wait_for_turn(item, error)
            return
        self._faces[item] = face
        with self._changed:
            self._running += 1
            self._admission.enter(need)
        face.start(lambda: self._over(item, need))

    def _over(self, item: pytest.Item, need: Need) -> None:
        with self._changed:
            self._running -= 1
            self._admission.leave(need)
            self._ready.append(item)
            self._changed.notify_all()

    # -- what is over ----------------------------------------------------------------------------

    def ready(self, among: Container[pytest.Item]) -> pytest.Item | None:
        """The first of these whose attempt is over."""
        with self._changed:
            return next((item for item in self._ready if item in among), None)

    def wait(self, seconds: float) -> None:
        """Until another attempt is over, or for so long."""
        with self._changed:
            self._changed.wait(seconds)

    def take(self, item: TaskItem) -> AttemptFace | None:
        """The attempt of `item`, if it was started ahead. Once: a test that is run again runs anew."""
        face = self._faces.pop(item, None)
        with self._changed:
            if item in self._ready:
                self._ready.remove(item)
        return face

    # -- the end ---------------------------------------------------------------------------------

    def stop(self) -> tuple[int, int]:
        """Cancel what runs, and wait until it has cleaned up. How many ran, and how many never began."""
        waiting, self._queue = len(self._queue), deque()
        faces, self._faces = list(self._faces.values()), {}
        running = [face for face in faces if not face.raw.settled]
        for face in running:
            face.cancel()
        deadline = time.monotonic() + GRACE
        for face in faces:
            face.abandon(deadline - time.monotonic())
        return len(running), waiting
