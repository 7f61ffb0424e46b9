"""Says how a run went in the form of the CI system that it runs in (``--ageval-ci``)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_ageval.ci import Mode
    from pytest_ageval.ci.github import Mute
    from pytest_ageval.ci.outcomes import Ended, Kind

#: The variable that says where the checkout is.
CHECKOUT = {"github": "GITHUB_WORKSPACE", "gitlab": "CI_PROJECT_DIR", "jenkins": "WORKSPACE"}


class Reporter:
    """Collects how attempts ended. One for the process that has the reports of all."""

    def __init__(self, config: pytest.Config, mode: Mode) -> None:
        self.config = config
        self.mode = mode
        self._kinds: dict[str, Kind | None] = {}
        self._mute: Mute | None = None

    @property
    def _controller(self) -> Any:
        return self.config.pluginmanager.getplugin("ageval-controller")

    @property
    def _terminal(self) -> pytest.TerminalReporter | None:
        found: pytest.TerminalReporter | None = self.config.pluginmanager.getplugin("terminalreporter")
        return found

    # -- text of agents is no command ------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """From here on, attempts may print."""
        self._begin()

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """The same in a distributed run."""
        self._begin()

    def _begin(self) -> None:
        if self.mode != "github" or self._mute is not None or not self._controller.has_tasks:
            return
        from pytest_ageval.ci.github import Mute

        self._mute = Mute()
        self._write(self._mute.begin())

    def _end(self) -> None:
        line = None if self._mute is None else self._mute.end()
        if line is not None:
            self._write(line)

    def pytest_unconfigure(self) -> None:
        """A run that broke down wrote no summary."""
        self._end()

    def _write(self, line: str) -> None:
        terminal = self._terminal
        if terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(line)

    # -- what happened ---------------------------------------------------------------------------

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember how an attempt ended at last."""
        data = getattr(report, "ageval", None)
        if data is None or report.outcome == "rerun":  # type: ignore[comparison-overlap]
            return
        self._kinds[report.nodeid] = _kind(report, data["status"])

    def _ended(self) -> Iterator[Ended]:
        from pytest_ageval.ci.outcomes import ended

        checkout = os.environ.get(CHECKOUT.get(self.mode, ""))
        for nodeid, kind in self._kinds.items():
            data = self._controller.results.get(nodeid)
            if kind is not None and data is not None:
                yield ended(nodeid, data, kind, self.config.rootpath, checkout)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Below everything else that is said of the attempts."""
        self._end()
        found = list(self._ended())
        if self.mode == "github":
            self._github(terminalreporter, found)
        elif self.mode == "gitlab":
            from pytest_ageval.ci import gitlab

            for line in gitlab.attempts(found):
                terminalreporter.write_line(line)
        if self.mode in ("gitlab", "jenkins") and found and self._attachments_are_lost():
            terminalreporter.write_line(
                "attachments are not in the JUnit XML: add -o junit_logging=system-out to the command"
            )

    def _github(self, terminal: pytest.TerminalReporter, found: list[Ended]) -> None:
        from pytest_ageval.ci import github

        for line in github.annotate(found):
            terminal.ensure_newline()
            terminal.write_line(line)
        if self._controller.results:
            from pytest_ageval.report.terminal import groups

            gates = self.config.pluginmanager.getplugin("ageval-gates")
            lines = [] if gates is None else [decision.line for decision in gates.decisions()]
            table = groups(self._controller.results.values())
            github.append_summary(github.summary(table, lines, found))

    def _attachments_are_lost(self) -> bool:
        wanted = self.config.getini("junit_logging") in ("system-out", "out-err", "all")
        return bool(self.config.getoption("xmlpath", None)) and not wanted


def _kind(report: pytest.TestReport, status: str) -> Kind | None:
    if status == "PASS":
        strict = report.failed and str(report.longrepr).startswith("[XPASS(strict)]")
        return "unexpected" if strict or hasattr(report, "wasxfail") else None
    if status == "FAIL":
        return "known" if report.skipped else "FAIL"
    return "ERROR"
