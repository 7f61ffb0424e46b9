"""Failures that are known: tasks that an agent is expected to fail, and why.

A row becomes ``xfail(raises=TaskFailed)`` on the attempts that it matches, so an ERROR is still one.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ageval.collection import TaskItem
from pytest_ageval.errors import ConfigError, TaskFailed

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

MARKER = "ageval_known_failure"
MARKER_LINE = (
    f"{MARKER}(reason, agent='*', model='*', box='*', strict=None): attempts of these agents are known to "
    "FAIL; an ERROR is still one"
)

#: Where a worker tells the controller which rows match nothing.
OUTPUT = "ageval_known_unmatched"


@dataclass(frozen=True, slots=True)
class Known:
    """One known failure. The names are patterns with ``*``, ``?`` and ``[...]``; case counts."""

    task: str
    reason: str
    agent: str = "*"
    model: str = "*"
    box: str = "*"
    strict: bool | None = None
    line: int | None = None

    def matches(self, item: TaskItem) -> bool:
        """It is about this attempt."""
        if not fnmatch.fnmatchcase(item.file.task_id, self.task):
            return False
        variant = item.variant
        agents = [variant.agent, *(agent for _, agent in variant.role_agents)]
        return (
            any(_like(agent, self.agent) for agent in agents)
            and _like(model_of(item) if self.model != "*" else None, self.model)
            and _like(variant.box, self.box)
        )

    def mark(self) -> pytest.MarkDecorator:
        """The mark for pytest; without `strict` the ini key ``xfail_strict`` decides."""
        given: dict[str, Any] = {} if self.strict is None else {"strict": self.strict}
        return pytest.mark.xfail(raises=TaskFailed, reason=self.reason, **given)

    def __str__(self) -> str:
        who = [
            f"{name} {value}" for name in ("agent", "model", "box") if (value := getattr(self, name)) != "*"
        ]
        where = "" if self.line is None else f" (line {self.line})"
        return ", ".join([self.task, *who]) + where


def _like(value: str | None, pattern: str) -> bool:
    return pattern == "*" or (value is not None and fnmatch.fnmatchcase(value, pattern))


def model_of(item: TaskItem) -> str | None:
    """The model of the command line, else that of the agent's package."""
    variant = item.variant
    if variant.model is not None or variant.agent is None:
        return variant.model
    from pytest_ageval.config import load_agent
    from pytest_ageval.job import Job

    try:
        model = load_agent(variant.agent, Job.of(item.config).registry).binding.get("model")
    except ConfigError:  # said when the options are checked
        return None
    found = model.get("id") if isinstance(model, dict) else model
    return None if found is None else str(found)


def load(path: Path) -> list[Known]:
    """The rows of a file (``ageval.known-failures/1``). Raises ConfigError."""
    from pytest_ageval.config.check import Source, check_format, convert
    from pytest_ageval.config.formats import KNOWN_FAILURES_FORMAT, KnownFailuresFile
    from pytest_ageval.config.yamlio import find_line, load_yaml

    if not path.is_file():
        raise ConfigError("invalid_option", f"--known-failures: there is no file {path}")
    source, data = Source(path), load_yaml(path)
    check_format(data, KNOWN_FAILURES_FORMAT, source)
    rows = convert(data, KnownFailuresFile, source).known_failures
    return [
        Known(
            row.task,
            row.reason,
            row.agent,
            row.model,
            row.box,
            row.strict,
            find_line(path, f"/known_failures/{index}"),
        )
        for index, row in enumerate(rows)
    ]


class KnownFailures:
    """Marks attempts while they are collected, and tells what did not come as expected."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.unmatched: list[str] = []
        self.passed: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, Any, Any]:
        """Mark what is known: rows of the file first, marks when every conftest.py has set its own.

        So a row counts as matched whatever ``-k`` leaves of it.
        """
        self._mark_rows([item for item in items if isinstance(item, TaskItem)])
        result = yield
        for item in items:
            if isinstance(item, TaskItem):
                for known in list(_marked(item)):
                    item.add_marker(known.mark())
        return result

    def _mark_rows(self, items: Sequence[TaskItem]) -> None:
        if not items:
            return
        from pytest_ageval.gates.session import place
        from pytest_ageval.job import Job

        path = place(self.config, "known_failures")
        if path is None:
            return
        try:
            rows = load(path)
        except ConfigError as error:
            job = Job.of(self.config)
            job.usage_error = job.usage_error or error
            return
        unmatched = dict.fromkeys(rows)
        for item in items:
            for known in rows:
                if known.matches(item):
                    unmatched.pop(known, None)
                    item.add_marker(known.mark())
        self.unmatched = [str(known) for known in unmatched]
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput[OUTPUT] = self.unmatched

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended; all have found the same."""
        output = getattr(node, "workeroutput", None) or {}
        self.unmatched = output.get(OUTPUT, self.unmatched)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A known failure that passed."""
        data = getattr(report, "ageval", None)
        if data is None or data["status"] != "PASS" or report.when != "call":
            return
        if report.passed and hasattr(report, "wasxfail"):
            self.passed[report.nodeid] = str(report.wasxfail)
        elif report.failed and (text := str(report.longrepr)).startswith("[XPASS(strict)]"):
            self.passed[report.nodeid] = text.removeprefix("[XPASS(strict)]").strip()

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Rows to take out: what they say is no longer so, or they are about nothing."""
        for nodeid, reason in self.passed.items():
            terminalreporter.write_line(f"known failure passed: {nodeid} ({reason or 'no reason given'})")
        for row in self.unmatched:
            terminalreporter.write_line(f"known failure matches no attempt of this run: {row}")


def _marked(item: TaskItem) -> Iterator[Known]:
    """From marks that a conftest.py has set. Raises `pytest.UsageError` for arguments that are none."""
    for mark in item.iter_markers(MARKER):
        try:
            known = Known(
                task="*", **{"reason": "", **dict(zip(("reason",), mark.args, strict=False)), **mark.kwargs}
            )
        except TypeError as error:
            raise pytest.UsageError(f"{item.nodeid}: {MARKER}: {error}") from None
        if known.matches(item):
            yield known
