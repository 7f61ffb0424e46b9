"""A worker on a host: what it tells the controller and asks it, beside what pytest-xdist says."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_ageval.accounting.budget import Account, Spent
from pytest_ageval.across.places import Places
from pytest_ageval.across.relay import There
from pytest_ageval.across.shipping import Shipper

#: Seconds for an answer of the controller.
ANSWER_SECONDS = 60.0


class Link:
    """One worker's connection to the controller. Methods may be called from any thread.

    `channel` is execnet's. Nothing is raised when the connection is gone: the worker ends soon then.
    """

    def __init__(self, channel: Any, places: Places, running: Path) -> None:
        self.places = places
        self.running = running
        self._channel = channel
        self._shipper = Shipper(channel.send, places)
        self._answers: dict[int, tuple[threading.Event, list[Any]]] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._secrets: dict[str, str | None] = {}
        self.relay = There(self._tell)
        channel.setcallback(self._take)

    def _take(self, message: Any) -> None:
        word, value = message
        if word == "answer":
            number, answer = value
            event, found = self._answers.get(number, (threading.Event(), []))
            found.append(answer)
            event.set()
        elif word == "suites":
            self._write_suites(value)
        elif word == "relay":
            self.relay.take(value)

    def _tell(self, word: str, value: Any) -> None:
        with contextlib.suppress(OSError):
            self._channel.send((word, value))

    def _ask(self, word: str, value: Any) -> Any:
        with self._lock:
            self._count += 1
            number = self._count
            event, found = self._answers[number] = (threading.Event(), [])
        self._tell("ask", (number, word, value))
        event.wait(ANSWER_SECONDS)
        del self._answers[number]
        return found[0] if found else None

    # -- what the controller decides -------------------------------------------------------------

    def _write_suites(self, rows: Mapping[str, list[Any]]) -> None:
        """Where the suite runs are, as `pytest_ageval.suites` reads it."""
        from pytest_ageval.suites import FILE

        there = {
            self.places.there(evidence): [self.places.there(root), resumed]
            for evidence, (root, resumed) in rows.items()
        }
        aside = self.running / f".{FILE}.{os.getpid()}.tmp"
        aside.write_text(json.dumps({"suites": there}), encoding="utf-8")
        aside.replace(self.running / FILE)

    # -- attempts --------------------------------------------------------------------------------

    def begun(self, suite: Path, row: Mapping[str, Any]) -> None:
        """An attempt of a suite run has its directory."""
        self._tell("begun", (str(self.places.here(suite)), self.places.shown(dict(row))))

    def account(self, suite: Path) -> Account:
        """What is spent in a suite run; the controller keeps it."""
        return _Elsewhere(self, suite)

    def spent(self, suite: Path, spent: Spent) -> None:
        """A call of a suite run has cost something."""
        self._tell("paid", (str(self.places.here(suite)), asdict(spent)))

    def noted(self, name: str, note: Mapping[str, Any] | None) -> None:
        """What this worker is at; None: it is not any more."""
        self._tell("note", (name, None if note is None else self.places.shown(dict(note))))

    def ship(self, *directories: Path) -> None:
        """Send evidence; it is there before whatever is said later."""
        for directory in directories:
            if directory.is_dir():
                with contextlib.suppress(OSError):
                    self._shipper.ship(directory)

    # -- questions -------------------------------------------------------------------------------

    def secret(self, name: str) -> str | None:
        """The value of a variable in the controller's environment."""
        if name not in self._secrets:
            self._secrets[name] = self._ask("secret", name)
        return self._secrets[name]

    def export(self, name: str | None) -> None:
        """Take over a variable that a vendor's library reads from the environment itself."""
        if name and (value := self.secret(name)):
            os.environ[name] = value

    def cached(self, cache: Path, digest: str, attempt: int) -> Any:
        """A result of the controller's cache, as `ResultCache.get` finds it, in plain types; or None."""
        return self._ask("cached", (str(self.places.here(cache)), digest, attempt))


class _Elsewhere(Account):
    """An account that is not on this machine: nothing is read of it here."""

    def __init__(self, link: Link, suite: Path) -> None:
        super().__init__(suite)
        self._link = link

    def spent(self) -> Spent:
        """Only the controller knows."""
        return Spent()

    def add(self, spent: Spent) -> Spent:
        """Tell the controller."""
        self._link.spent(self.path, spent)
        return spent
