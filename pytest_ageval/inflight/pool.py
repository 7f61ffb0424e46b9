"""The attempts of this process that were started before their turn."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import pytest

from pytest_ageval.attempt_face import AttemptFace
from pytest_ageval.inflight.eligible import Eligibility

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from pytest_ageval.collection import TaskItem

#: The session's pool.
POOL = pytest.StashKey["Pool"]()

#: Seconds that attempts get to clean up when the session ends before them.
GRACE = 10.0

_log = logging.getLogger("pytest_ageval.inflight")


class Pool:
    """At most `limit` attempts run at once. For the main thread."""

    def __init__(self, config: pytest.Config, limit: int) -> None:
        self.limit = limit
        self._eligible = Eligibility(config)
        self._queue: deque[pytest.Item] = deque()
        self._faces: dict[pytest.Item, AttemptFace] = {}
        self._running = 0
        self._ready: deque[pytest.Item] = deque()
        self._changed = threading.Condition()
        #: Nobody starts these but pytest. In their order, without those whose turn has come.
        self._in_turn: dict[pytest.Item, None] = {}

    # -- what is to come -------------------------------------------------------------------------

    def offer(self, items: Iterable[pytest.Item]) -> None:
        """Start these when there is room, in their order."""
        for item in items:
            reason = self._eligible.why_not(item)
            if reason is None:
                self._queue.append(item)
            else:
                _log.debug("not started ahead: %s: %s", item.nodeid, reason)
                self._in_turn[item] = None

    def waiting(self, among: Container[pytest.Item]) -> pytest.Item | None:
        """The first of these that waits for its turn."""
        return next((item for item in self._in_turn if item in among), None)

    def turn_of(self, item: pytest.Item) -> None:
        """The turn of `item` has come."""
        self._in_turn.pop(item, None)

    def fill(self) -> None:
        """Start as many as there is room for. What cannot be started says why in its turn."""
        while self._queue and self._running < self.limit and len(self._ready) < 2 * self.limit:
            item = self._queue.popleft()
            try:
                face = AttemptFace.ahead(item)  # type: ignore[arg-type]
            except (Exception, pytest.skip.Exception) as error:
                _log.debug("not started ahead: %s: %s", item.nodeid, error)
                self._in_turn[item] = None
                continue
            self._faces[item] = face
            self._running += 1
            face.start(lambda item=item: self._over(item))  # type: ignore[misc]

    def _over(self, item: pytest.Item) -> None:
        with self._changed:
            self._running -= 1
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
