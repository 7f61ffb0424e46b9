"""Signals: an interrupted run still cleans up. Active only once a task has been collected.

Ctrl-C (SIGINT) is an exception for pytest, and every teardown runs. SIGTERM and SIGHUP would end
the process at once, so they become the same exception. A second signal while the clean-up runs does
not break it off; with a third one the process leaves at once, and takes only the boxes with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    import pytest

#: Signals that arrive after the first one and are only noted.
PATIENCE = 1

#: Seconds that removing the boxes may take when the process leaves at once.
LEAVE_SECONDS = 10.0

#: pytest's own exit code of an interrupted run.
INTERRUPTED = 2


class Interrupts:
    """Handlers of SIGINT, SIGTERM and SIGHUP, from `install` until the session is over.

    `leave` is called, in a thread, before the process leaves at once.
    """

    def __init__(self, leave: Callable[[], object] = lambda: None) -> None:
        self._leave = leave
        self._leaving = False
        self._before: dict[int, Any] = {}
        self._seen = 0

    def install(self, config: pytest.Config) -> None:
        """Take over the signals that nobody else handles. Only the main thread can; idempotent."""
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        distributed = hasattr(config, "workerinput")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            current = signal.getsignal(number)
            ours = current in (signal.SIG_DFL, signal.default_int_handler)
            # A worker of a run in the background inherits "ignore" and could not be stopped.
            ours = ours or (distributed and number == signal.SIGINT and current == signal.SIG_IGN)
            if ours:
                self._before[number] = signal.signal(number, self._handle)
        config.add_cleanup(self.restore)

    def restore(self) -> None:
        """Put back what was there."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    @property
    def seen(self) -> bool:
        """A signal has arrived that nobody has dealt with yet."""
        return self._seen > 0

    def rearm(self) -> None:
        """A new test starts: whoever caught the last signal has dealt with it."""
        self._seen = 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._seen += 1
        if 1 < self._seen <= 1 + PATIENCE:
            sys.stderr.write("\nageval: cleaning up; once more to leave at once\n")
            return
        if self._seen > 1:
            self._leave_now()
            return
        raise KeyboardInterrupt(signal.Signals(number).name)

    def _leave_now(self) -> None:
        """End the process without pytest's help: an exception would come in the middle of that."""
        if self._leaving:
            return
        self._leaving = True
        # In a thread of its own: what was interrupted may hold a lock.
        work = threading.Thread(target=self._leave, daemon=True)
        work.start()
        work.join(LEAVE_SECONDS)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(INTERRUPTED)


class Worker:
    """What a process does that runs attempts for a controller."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.interrupts = Interrupts()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Handle signals, if there is something to clean up."""
        from pytest_ageval.discovery import has_tasks

        if has_tasks((item.nodeid for item in session.items), self.config.rootpath):
            self.interrupts.install(self.config)

    def pytest_runtest_logstart(self) -> None:
        """A test starts."""
        self.interrupts.rearm()
