"""The evidence of an attempt as an export needs it: sessions, invocations, rows, times."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.errors import ConfigError
from pytest_ageval.evidence.files import read_document, read_jsonl
from pytest_ageval.evidence.layout import INVOCATION_METADATA, Layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Row = dict[str, Any]


@dataclass(slots=True)
class Invocation:
    """One invoke: its rows without the last, the terminal row, and its metadata.json."""

    rows: list[Row]
    terminal: Row
    document: Row = field(default_factory=dict)

    @property
    def metadata(self) -> Row:
        """What the terminal row says of the invoke."""
        found: Row = self.terminal.get("metadata") or {}
        return found

    @property
    def session_id(self) -> str:
        """The session that it belongs to."""
        return str(self.terminal.get("session_id"))

    @property
    def role(self) -> str:
        """Who played."""
        return str(self.terminal.get("profile_id"))

    @property
    def model(self) -> str | None:
        """The model that answered."""
        found = self.metadata.get("model")
        return None if found is None else str(found)

    @property
    def usage(self) -> Row:
        """Tokens and cost, with their marks."""
        found: Row = self.terminal.get("usage") or {}
        return found

    @property
    def started_at(self) -> str | None:
        """When it began, as the evidence has it."""
        found: str | None = self.document.get("started_at")
        return found

    @property
    def finished_at(self) -> str | None:
        """When it ended."""
        return self.document.get("finished_at") or self.started_at


@dataclass(frozen=True)
class Recorded:
    """One attempt directory."""

    root: Path

    @cached_property
    def lock(self) -> Row:
        """lock.json; empty when it is not there."""
        return read_document(Layout(self.root).lock) or {}

    @cached_property
    def result(self) -> Row:
        """result.json; empty when the attempt did not end."""
        return read_document(Layout(self.root).result) or {}

    @cached_property
    def summary(self) -> Row:
        """summary.json; empty when it is not there."""
        return read_document(Layout(self.root).summary) or {}

    @property
    def timing(self) -> Row:
        """The ``phase_timing`` of summary.json."""
        found: Row = self.summary.get("phase_timing") or {}
        return found

    @cached_property
    def activity(self) -> list[Row]:
        """The step log of the run."""
        return read_jsonl(Layout(self.root).activity, broken="activity_log_corrupt")

    @property
    def attempt_id(self) -> str:
        """Its id, which is the name of its directory."""
        return str(self.result.get("attempt_id") or self.root.name)

    def binding(self, role: str) -> Mapping[str, Any]:
        """Who was locked for a role: executor, agent, model."""
        overlay = self.lock.get("job_overlay") or {}
        found: Mapping[str, Any] = (overlay.get("agent_profiles") or {}).get(role) or {}
        return found

    def agent_name(self, role: str) -> str:
        """The agent that played a role; its executor when it has no name."""
        row = self.binding(role)
        return str(row.get("agent") or row.get("executor") or role)

    @cached_property
    def invocations(self) -> list[Invocation]:
        """The invokes of the run phase, in the order of the trajectory."""
        return self.of_rows(read_jsonl(Layout(self.root).trajectory))

    def of_rows(self, trajectory: Iterable[Mapping[str, Any]]) -> list[Invocation]:
        """The invokes that the rows of a trajectory are of."""
        found: list[Invocation] = []
        rows: list[Row] = []
        documents = self._documents()
        for row in map(dict, trajectory):
            if row.get("type") != "terminal":
                rows.append(row)
                continue
            key = str((row.get("metadata") or {}).get("invocation_id"))
            found.append(Invocation(rows, row, documents.get(key, {})))
            rows = []
        return found

    def _documents(self) -> dict[str, Row]:
        paths = sorted(Layout(self.root).invocations("run").glob(f"*/{INVOCATION_METADATA}"))
        documents = (read_document(path) or {} for path in paths)
        return {str(document.get("invocation_id")): document for document in documents}

    def sessions(self) -> dict[str, list[Invocation]]:
        """The invokes of each session."""
        found: dict[str, list[Invocation]] = {}
        for invocation in self.invocations:
            found.setdefault(invocation.session_id, []).append(invocation)
        return found


def attempts(path: Path) -> tuple[list[Recorded], list[Path]]:
    """The attempts at `path`, and those among them that have no trajectory (they did not end).

    `path` is an attempt, a directory of attempts, a suite run, or a data set. Raises ConfigError
    ``no_evidence``.
    """
    places = (path, path / "runs", path / ".ageval" / "runs")
    found: Sequence[Path] = [path] if _is_attempt(path) else _of_suite(path)
    for place in places:
        if not found and place.is_dir():
            found = sorted(child for child in place.iterdir() if child.is_dir() and _is_attempt(child))
    if not found:
        raise ConfigError("no_evidence", f"there is no attempt at {path}")
    whole = [each for each in found if Layout(each).trajectory.is_file()]
    return [Recorded(each) for each in whole], [each for each in found if each not in whole]


def _of_suite(path: Path) -> list[Path]:
    """The attempts that count in a suite run, in its order; none when `path` is no suite run."""
    from pytest_ageval.suite import SuiteLayout, read_suite

    layout = SuiteLayout(path)
    if not layout.header.is_file():
        return []
    rows = read_suite(path).rows
    return [layout.evidence / row.attempt_dir for row in rows if row.attempt_dir is not None]


def _is_attempt(path: Path) -> bool:
    return Layout(path).lock.is_file()


def nanoseconds(stamp: Any) -> int | None:
    """A time of the evidence as nanoseconds since 1970; None for what is no time."""
    if not isinstance(stamp, str):
        return None
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    # Not through a float of seconds, which has no place for microseconds and more.
    return int(moment.replace(microsecond=0).timestamp()) * 1_000_000_000 + moment.microsecond * 1000
