"""Gates in a run of pytest: they print their lines after the table, and decide on the exit code.

A gate takes charge of what it judges. With ``--fail-under`` or ``--baseline`` a FAIL alone no longer fails
the run, with ``--max-errors`` an ERROR alone does not; everything else still does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ageval.controller import EXIT_ERRORS, EXIT_FAILS
from pytest_ageval.discovery import has_tasks
from pytest_ageval.errors import AgevalError
from pytest_ageval.gates.rules import Decision, Gates, parse_alpha, parse_errors, parse_rate
from pytest_ageval.gates.wiring import GATES
from pytest_ageval.options import resolve

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

#: A gate did not pass.
EXIT_GATES = 10

#: Exit codes that say no more than how attempts went.
_OWN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, EXIT_FAILS, EXIT_ERRORS)


def read(config: pytest.Config) -> Gates:
    """The gates of the options; a baseline is read now, before the run writes a record of its own.

    Raises `pytest.UsageError`.
    """
    rate, errors, baseline = (resolve(config, name)[0] for name in GATES)
    alpha = resolve(config, "baseline_alpha")[0]
    try:
        return Gates(
            None if rate is None else parse_rate(rate),
            None if errors is None else parse_errors(errors),
            None if baseline is None else _baseline(config, baseline),
            0.05 if alpha is None else parse_alpha(alpha),
        )
    except AgevalError as error:
        raise pytest.UsageError(str(error)) from error


def _baseline(config: pytest.Config, name: str) -> Any:
    from pytest_ageval import stats
    from pytest_ageval.gates import baseline

    stats.require("--baseline")
    base = config.rootpath if resolve(config, "baseline")[1] == "ini" else config.invocation_params.dir
    given, source = resolve(config, "dir")
    evidence = None
    if given is not None:
        evidence = (config.rootpath if source == "ini" else config.invocation_params.dir) / given
    found = str(base / name) if (base / name).exists() else name
    return baseline.load(found, evidence, allow_incomplete=_allowed(config))


def _allowed(config: pytest.Config) -> bool:
    """What is not complete is judged all the same."""
    return bool(resolve(config, "allow_incomplete")[0])


class GateKeeper:
    """Watches the reports of a run; one for the process that has the reports of all."""

    def __init__(self, config: pytest.Config, gates: Gates) -> None:
        self.config = config
        self.gates = gates
        self.fails = self.errors = self.others = False
        self._expected: set[str] = set()
        self._seen: set[str] = set()
        self._decisions: list[Decision] | None = None

    @property
    def _controller(self) -> Any:
        return self.config.pluginmanager.getplugin("ageval-controller")

    # -- what happens ----------------------------------------------------------------------------

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Which attempts are to be made."""
        self._expect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """The same, from a worker; all find the same."""
        if not self._expected:
            self._expect(ids)

    def _expect(self, nodeids: Iterable[str]) -> None:
        files: dict[str, bool] = {}
        for nodeid in nodeids:
            file = nodeid.partition("::")[0]
            if file not in files:
                files[file] = has_tasks([nodeid], self.config.rootpath)
            if files[file]:
                self._expected.add(nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """What cannot be collected is no attempt."""
        self.others = self.others or report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell the verdicts from everything else that fails."""
        data: Mapping[str, Any] | None = getattr(report, "ageval", None)
        if data is not None or report.skipped:
            self._seen.add(report.nodeid)
        if not report.failed:
            return
        status = None if data is None else data["status"]
        if status == "FAIL":
            self.fails = True
        elif status == "ERROR":
            self.errors = True
        else:
            self.others = True  # another test, a clean-up, a known failure that passed

    # -- what is decided -------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Every attempt was made, or skipped for a reason of its own."""
        return self._expected <= self._seen and not self._controller.not_run

    def decisions(self) -> list[Decision]:
        """The gates' decisions; the same each time."""
        if self._decisions is None:
            self._decisions = self._judge()
        return self._decisions

    def _judge(self) -> list[Decision]:
        results = self._controller.results
        found: list[Decision] = []
        if not self.whole:
            why = f"{len(results)} of {len(self._expected)} attempts were made"
            if not _allowed(self.config):
                return [Decision(name, None, why) for name in self.gates.names()]
            found.append(Decision("complete", None, why))
        from pytest_ageval.suite.rows import to_row

        return [*found, *self.gates.judge([to_row(nodeid, data, None) for nodeid, data in results.items()])]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """After everybody else: the exit code."""
        result = yield
        if self._controller.has_tasks and session.exitstatus in _OWN:
            session.exitstatus = self._exit_code(session.exitstatus)
        return result

    def _exit_code(self, code: int) -> int:
        found = self.decisions()
        if not self.whole and not _allowed(self.config):
            return code or EXIT_GATES
        if any(decision.passed is False for decision in found):
            return code if self.others else EXIT_GATES
        left = (
            self.others
            or (self.fails and not self.gates.judges_fails)
            or (self.errors and not self.gates.judges_errors)
        )
        return code if left else pytest.ExitCode.OK

    # -- what is said ----------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """A line for each decision, below the table."""
        if not self._controller.has_tasks:
            return
        found = self.decisions()
        for decision in found:
            terminalreporter.write_line(
                decision.line, **({"red": True} if decision.passed is False else {"bold": False})
            )
        if self.whole and all(decision.passed is not False for decision in found):
            left = [name for name, there in self._ungoverned().items() if there]
            if left:
                terminalreporter.write_line(f"no gate is about {' and '.join(left)}: the run fails")

    def _ungoverned(self) -> dict[str, bool]:
        return {
            "FAILs (--fail-under, --baseline)": self.fails and not self.gates.judges_fails,
            "ERRORs (--max-errors)": self.errors and not self.gates.judges_errors,
            "other failures": self.others,
        }


def place(config: pytest.Config, name: str) -> Path | None:
    """The file of an option: an ini value is relative to the rootdir, others to the current directory."""
    given, source = resolve(config, name)
    if given is None:
        return None
    base = config.rootpath if source == "ini" else config.invocation_params.dir
    return Path(base) / Path(given).expanduser()
