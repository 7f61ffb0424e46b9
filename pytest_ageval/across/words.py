"""What workers on hosts say and ask beside pytest-xdist's reports, and what is done about it here."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.across.packing import below
from pytest_ageval.across.relay import PORTS, Here
from pytest_ageval.across.shipping import WORDS, Intake
from pytest_ageval.across.specs import HostError

if TYPE_CHECKING:
    import pytest

    from pytest_ageval.across.controller import Across
    from pytest_ageval.across.host import Host


class Incoming:
    """One worker's link at this end."""

    def __init__(self, worker: str, channel: Any, intake: Intake, workerinput: Mapping[str, Any]) -> None:
        self.worker = worker
        self.intake = intake
        self._channel = channel
        ports = (workerinput.get(name) for name in PORTS)
        self.relay = Here(self.tell, frozenset(port for port in ports if type(port) is int))

    def tell(self, word: str, value: Any) -> None:
        """Send a message, if the worker is still there."""
        with contextlib.suppress(OSError):
            self._channel.send((word, value))


class Words:
    """Messages are taken in the threads that receive; everything else happens in the main thread."""

    def __init__(self, config: pytest.Config, across: Across) -> None:
        self.config = config
        self.across = across
        #: Names of the variables whose values a worker has asked for and got.
        self.given: dict[str, set[str]] = {}

    def say(self, text: str) -> None:
        """A line in the terminal."""
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(f"ageval: {text}")

    # -- messages --------------------------------------------------------------------------------

    def take(self, source: Incoming, message: Any) -> None:
        """One message of a worker; None: there will be no other."""
        if message is None:
            source.intake.drop()
            source.relay.close()
            return
        word, value = message
        if word in WORDS:
            source.intake.take(word, value)
        elif word in ("relay", "relay_open"):
            source.relay.take(word, value)
        elif word == "begun":
            self._begun(*value)
        elif word == "paid":
            self._paid(*value)
        elif word == "note":
            self._note(source.worker, *value)
        elif word == "ask":
            number, name, what = value
            answer = self._secret(source.worker, what) if name == "secret" else self._cached(*what)
            source.tell("answer", (number, answer))

    def _begun(self, suite: str, row: dict[str, Any]) -> None:
        from pytest_ageval.suite import started

        if self._is_ours(suite):
            with contextlib.suppress(OSError):
                started.note(Path(suite), started.Started(**row))

    def _paid(self, suite: str, spent: dict[str, Any]) -> None:
        from pytest_ageval.accounting.budget import Account, Spent
        from pytest_ageval.suite.places import SuiteLayout

        if self._is_ours(suite):
            with contextlib.suppress(OSError):  # the suite run says itself that it cannot be written
                Account(SuiteLayout(Path(suite)).spent).add(Spent(**spent))

    def _is_ours(self, suite: str) -> bool:
        return any(str(place.root) == suite for place in self.across.job.suites.known().values())

    def _note(self, worker: str, name: str, note: dict[str, Any] | None) -> None:
        path = self._running / Path(name).name
        if not path.name.startswith(f"{worker}."):
            return
        with contextlib.suppress(OSError):
            if note is None:
                path.unlink(missing_ok=True)
            else:
                self._running.mkdir(mode=0o700, exist_ok=True)
                path.write_text(json.dumps(note), encoding="utf-8")

    def _secret(self, worker: str, name: str) -> str | None:
        value = os.environ.get(name)
        if value:
            self.given.setdefault(worker, set()).add(name)
        return value

    @staticmethod
    def _cached(cache: str, digest: str, attempt: int) -> Any:
        import msgspec

        from pytest_ageval.suite.cache import ResultCache

        row = ResultCache(Path(cache)).get(digest, attempt)
        return None if row is None else msgspec.to_builtins(row)

    @property
    def _running(self) -> Path:
        from pytest_ageval.job import running_dir

        return running_dir(self.config)

    # -- notes of workers ------------------------------------------------------------------------

    def _notes(self, workers: Collection[str]) -> Iterator[dict[str, Any]]:
        for path in sorted(self._running.glob("*.json")):
            if path.name.partition(".")[0] in workers:
                with contextlib.suppress(OSError, ValueError):
                    yield json.loads(path.read_bytes())

    def kinds(self, workers: Collection[str]) -> list[str]:
        """Kinds of the boxes of attempts that these workers were at."""
        return sorted({str(note["box"]) for note in self._notes(workers) if note.get("box")})

    def fetch(self, host: Host, workers: Collection[str]) -> None:
        """Have the agent send the evidence that these workers could not."""
        for note in self._notes(workers):
            where = Path(str(note.get("attempt_dir")))
            if where.is_absolute() and where not in self.across.shipped:
                host.call("ship", host.places.there(where), seconds=600)

    def clear_up(self, host: Host, worker: str) -> None:
        """A worker of a host that is there has died: its evidence comes here, its boxes go."""
        try:
            self.fetch(host, {worker})
            for line in host.call("reap", self.kinds({worker}), worker):
                self.say(f"{host.name}: {line}")
        except HostError as error:
            self.say(str(error))

    # -- what hosts have to know -----------------------------------------------------------------

    def push(self, host: Host, suites: Sequence[Path]) -> None:
        """Send records that are gone on with, and the attempts in them that can be continued."""
        from pytest_ageval.evidence.layout import Layout
        from pytest_ageval.suite import started
        from pytest_ageval.suite.places import SuiteLayout

        directories = list(suites)
        for suite in suites:
            evidence = SuiteLayout(suite).evidence
            for row in started.read(suite):
                attempt = evidence / row.attempt_dir
                if attempt.is_dir() and not Layout(attempt).result.exists():
                    directories.append(attempt)
        host.put(whole(dict.fromkeys(directories)))

    def verdict(self, report: pytest.TestReport, source: Host | None) -> None:
        """Tell all machines but that of the report what an attempt came to."""
        from pytest_ageval.sequencer import line_of

        found = line_of(self.config, report)
        if found is None:
            return
        name, line = found
        if source is not None:
            directory = self._running / "verdicts"
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (directory / name).open("ab", buffering=0) as stream:
                stream.write(line.encode())
        for host in self.across.hosts.values():
            if host is not source and host.here:
                with contextlib.suppress(HostError):
                    host.send(("call", 0, "verdicts", ([(name, line)],)))


def whole(directories: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Directories with all that is in them, as `Host.put` wants them."""
    for directory in directories:
        prefix = str(directory).lstrip("/")
        yield directory, prefix
        for path, name in below(directory):
            yield path, f"{prefix}/{name}"
