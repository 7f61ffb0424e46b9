"""``--attempts auto`` in a run: attempts that no conclusion needs are skipped, and the summary says how many.

The processes of a run share what they know through files in the run's own directory, one for each task and
variant, to which every settled attempt adds a line.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ageval.options import parse_attempts, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pytest_ageval.collection import TaskItem
    from pytest_ageval.suite.sequential import Decision, Rule

_KEY = pytest.StashKey["Sequencer"]()

#: Fields of `Rule` and the options that they come from.
_OPTIONS = {"bound": "pass_bound", "confidence": "confidence"}

#: Tasks that the summary names.
NAMED = 5


def configure(config: pytest.Config) -> None:
    """Have the summary of the run say what was concluded, if anything is to be."""
    try:
        attempts = resolve(config, "attempts")[0]
    except pytest.UsageError:  # said when the options are checked
        return
    if str(attempts).startswith("auto") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Tally(config), "ageval-tally")


def stopping(config: pytest.Config) -> Rule | None:
    """When there are enough attempts at a task; None when their number is fixed. Raises ConfigError."""
    from pytest_ageval.errors import ConfigError

    most, auto = parse_attempts(resolve(config, "attempts")[0])
    given = {field: resolve(config, option) for field, option in _OPTIONS.items()}
    if auto:
        from pytest_ageval.suite.sequential import Rule

        return Rule(most=most, **{field: value for field, (value, _) in given.items() if value is not None})
    for field, (value, source) in given.items():
        if source == "cli":
            flag = f"--{_OPTIONS[field].replace('_', '-')}"
            raise ConfigError("invalid_option", f"{flag} {value:g} is for --attempts auto")
    return None


def start(config: pytest.Config) -> None:
    """Begin to keep count in a process that runs attempts. Raises ConfigError."""
    rule = stopping(config)
    if rule is not None:
        config.pluginmanager.register(Sequencer(rule, config), "ageval-sequencer")


@dataclass(frozen=True, slots=True)
class Saved:
    """Why an attempt need not run."""

    decision: Decision
    rule: Rule

    def words(self) -> str:
        """For the reason of the skip."""
        found = self.decision
        seen = f"decided after {found.after} attempts ({found.passed} passed)"
        if found.conclusion == "undecided":
            return f"{seen}: {self.rule.most} attempts cannot tell on which side of {self.rule.bound:g} it is"
        return f"{seen}: pass probability {found.conclusion} {self.rule.bound:g}"

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return {"conclusion": self.decision.conclusion, "after": self.decision.after}


def decided(item: TaskItem) -> Saved | None:
    """Why an attempt need not run; None when it must, or when the number of attempts is fixed."""
    sequencer = item.config.stash.get(_KEY, None)
    return None if sequencer is None else sequencer.decided(item)


class Sequencer:
    """Notes what the attempts of this process come to, and knows those of the others."""

    def __init__(self, rule: Rule, config: pytest.Config) -> None:
        from pytest_ageval.job import running_dir

        self.rule = rule
        self._directory: Path = running_dir(config) / "verdicts"
        config.stash[_KEY] = self

    def decided(self, item: TaskItem) -> Saved | None:
        """Why the attempt need not run."""
        found = self.rule.conclude(_verdicts(self._read(_key(item.nodeid, item.variant.name))))
        return None if found is None else Saved(found, self.rule)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """An attempt is settled (again, if it was repeated: the last time counts)."""
        found = _line(report)
        if found is None:
            return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._directory / found[0]).open("ab", buffering=0) as stream:
            stream.write(found[1].encode())

    def _read(self, key: str) -> dict[int, str]:
        try:
            lines = (self._directory / _name(key)).read_text("ascii").splitlines()
        except FileNotFoundError:
            return {}
        rows = [line.split() for line in lines]
        return {int(number): status for number, status in rows}


def line_of(config: pytest.Config, report: pytest.TestReport) -> tuple[str, str] | None:
    """The file of the verdicts that a report adds to, and the line; None unless their number is open."""
    return _line(report) if config.pluginmanager.hasplugin("ageval-tally") else None


def _line(report: pytest.TestReport) -> tuple[str, str] | None:
    data = getattr(report, "ageval", None)
    if data is None or report.outcome == "rerun" or not data.get("variant"):  # type: ignore[comparison-overlap]
        return None
    return _name(_key(report.nodeid, data["variant"])), f"{data['attempt']} {data['status']}\n"


def _name(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _key(nodeid: str, variant: str) -> str:
    """The task and the variant; the node id of a task begins with the path of its file."""
    return f"{nodeid.partition('::')[0]}::{variant}"


def _verdicts(statuses: Mapping[int, str]) -> list[bool]:
    from pytest_ageval.suite.sequential import in_order

    return in_order(statuses)


class Tally:
    """What was concluded of each task, for the summary. In the one process that sees every report."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._statuses: dict[tuple[str, str], dict[int, str]] = {}
        self._words: dict[tuple[str, str], str] = {}
        self._saved: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the status of every attempt."""
        if getattr(report, "ageval_decided", None) is not None:
            self._saved.add(report.nodeid)
        data = getattr(report, "ageval", None)
        if data is None or report.outcome == "rerun" or not data.get("variant"):  # type: ignore[comparison-overlap]
            return
        key = (report.nodeid.partition("::")[0], str(data["variant"]))
        self._statuses.setdefault(key, {})[int(data["attempt"])] = data["status"]
        self._words[key] = f"{data.get('task')}[{data['variant']}]"

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """How many tasks are above, below and undecided, and how many attempts were not needed."""
        if not self._statuses:
            return
        rule = stopping(self.config)
        for line in self.lines(rule) if rule is not None else ():
            terminalreporter.write_line(line)

    def lines(self, rule: Rule) -> Iterable[str]:
        """The lines of the summary."""
        found: dict[str, list[str]] = {"above": [], "below": [], "undecided": [], "open": []}
        for key, statuses in self._statuses.items():
            decision = rule.conclude(_verdicts(statuses))
            found["open" if decision is None else decision.conclusion].append(self._words[key])
        made = sum(map(len, self._statuses.values()))
        yield (
            f"attempts auto: pass probability above {rule.bound:g}: {len(found['above'])}, "
            f"below: {len(found['below'])}, undecided: {len(found['undecided'])} "
            f"(confidence {rule.confidence:g} each); {made} attempts made, {len(self._saved)} not needed"
        )
        for name, words in (("undecided", "undecided within"), ("open", "not decided yet, of")):
            if rows := sorted(found[name]):
                more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
                yield f"{words} {rule.most} attempts: {', '.join(rows[:NAMED])}{more}"
