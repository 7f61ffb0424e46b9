"""What must happen once in a run: the summary, crashed workers, leftovers, the exit code.

The only process has a controller, and so has the one that distributes to pytest-xdist's workers;
there it sees node ids and reports, never items. It does nothing until a task is among them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ageval.discovery import has_tasks
from pytest_ageval.interrupts import Interrupts

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    from pytest_ageval.accounting import Ledger
    from pytest_ageval.across.host import Host

#: Exit codes of ``--ageval-exit=verdict``; pytest and its plugins use 0 to 7.
EXIT_FAILS = 8
EXIT_ERRORS = 9

#: What of an attempt that a worker died in becomes a property of its test case.
SHOWN_OF_CRASH = ("dataset", "task", "agent", "model", "box", "attempt", "attempt_dir", "attempt_id")


class Failures:
    """What failed, as ``--ageval-exit=verdict`` tells it apart."""

    def __init__(self) -> None:
        self.fails = self.errors = self.others = False

    def add(self, data: Mapping[str, Any] | None, is_task: bool) -> None:
        """Take a failed report; `data` is what it says of the attempt.

        Of a task, all that is not the verdict FAIL is an error: a teardown, a known failure that passed.
        """
        if not is_task:
            self.others = True
        elif data is not None and data["status"] == "FAIL":
            self.fails = True
        else:
            self.errors = True

    def exit_code(self, code: int) -> int:
        """`code`, pytest's own, unless only attempts have failed."""
        if self.others or not (self.fails or self.errors):
            return code
        return EXIT_ERRORS if self.errors else EXIT_FAILS


class Controller:
    """The part of the plugin that only one process of a run has."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.interrupts = Interrupts(self._leave)
        self.has_tasks = False
        self.results: dict[str, dict[str, Any]] = {}
        self.warnings: dict[str, dict[str, Any]] = {}
        self.unbound: dict[str, list[str]] = {}
        #: Attempts that were not begun, with the budget that was used up.
        self.not_run: dict[str, str] = {}
        #: Attempts that ran on other machines, whose boxes are not ours to look for.
        self._elsewhere: set[str] = set()
        self.failures = Failures()
        self.usage_error: str | None = None
        self.html_report: Any = None

    # -- tasks become known ----------------------------------------------------------------------

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The only process has collected."""
        self._collected([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """A worker has collected; all of them find the same."""
        if self.has_tasks:
            return
        self._collected(ids)
        if not self.has_tasks:
            return
        self._recall(ids)
        self._one_by_one()
        reporter = self._reporter()
        if reporter is not None and self.config.get_verbosity() >= 0:
            from pytest_ageval.report.terminal import headline, leftovers

            lines = [*filter(None, [headline(self.config, ids)]), *leftovers()]
            if lines:
                reporter.ensure_newline()
            for line in lines:
                reporter.write_line(line)

    def _recall(self, ids: Sequence[str]) -> None:
        """Have the options of the suite run that is gone on with, as the workers do."""
        from pytest_ageval.options import resolve

        if resolve(self.config, "resume")[0] is None:
            return
        from pytest_ageval.job import Job
        from pytest_ageval.recalled import recall
        from pytest_ageval.suite_recorder import by_dataset, tasks_of

        for root in by_dataset(tasks_of(ids)[:1], self.config.rootpath):
            recall(Job.of(self.config), root)

    def _collected(self, ids: Sequence[str]) -> None:
        if not has_tasks(ids, self.config.rootpath):
            return
        self.has_tasks = True
        self.interrupts.install(self.config)
        if self.html_report is not None:
            from pytest_ageval.report.html import HEADER

            self.html_report.table_header = [*self.html_report.table_header, *HEADER]

    def _one_by_one(self) -> None:
        """Attempts are long and unequal: hand them out singly, unless the user said otherwise."""
        scheduler = getattr(self.config.pluginmanager.getplugin("dsession"), "sched", None)
        if getattr(scheduler, "maxschedchunk", 0) is None:
            scheduler.maxschedchunk = 1  # type: ignore[union-attr]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """All workers work for one run."""
        from pytest_ageval.job import run_id

        node.workerinput["ageval_run_id"] = run_id(self.config)

    # -- reports ---------------------------------------------------------------------------------

    def pytest_runtest_logstart(self) -> None:
        """A test starts."""
        self.interrupts.rearm()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what an attempt came to; when it was repeated, what it came to at last."""
        data = getattr(report, "ageval", None)
        if data is not None and report.outcome != "rerun":  # type: ignore[comparison-overlap]
            self.results[report.nodeid] = data
            if self._host(getattr(report, "worker_id", "")) is not None:
                self._elsewhere.add(report.nodeid)
        unbound = getattr(report, "ageval_unbound", None)
        if unbound:
            self.unbound[report.nodeid] = unbound
        not_run = getattr(report, "ageval_not_run", None)
        if not_run:
            self.not_run[report.nodeid] = not_run
            self.failures.errors = True
        if report.failed:
            self.failures.add(data, has_tasks([report.nodeid], self.config.rootpath))
        warning = getattr(report, "ageval_cleanup", None)
        if warning:
            self.warnings[report.nodeid] = {"message": warning}
        if getattr(report, "ageval_crash", False):
            self._close_crashed(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A data set that is broken, or another file."""
        if report.failed:
            self.failures.add(None, has_tasks([report.nodeid], self.config.rootpath))

    def _close_crashed(self, report: pytest.TestReport) -> None:
        """pytest-html waits for the teardown of every test, which a dead worker cannot send."""
        end = pytest.TestReport(
            report.nodeid,
            report.location,
            {},
            "passed",
            None,
            "teardown",
            user_properties=report.user_properties,
        )
        end.node = report.node  # type: ignore[attr-defined]
        self.config.hook.pytest_runtest_logreport(report=end)

    # -- workers that die ------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """A worker is gone. If it died, its boxes are still there."""
        output = getattr(node, "workeroutput", None) or {}
        self.usage_error = output.get("ageval_usage_error", self.usage_error)
        if error and self._ran_attempts() and self._host(node.gateway.id) is None:
            kinds = {
                str(note["box"]) for note in self._notes(node.gateway.id) if "box" in note
            } or self._kinds()
            self._reap(kinds, **{"ageval.worker": node.gateway.id})

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """The attempt that a worker died in is one ERROR: in the terminal, in JUnit XML, in HTML."""
        if not has_tasks([crashitem], self.config.rootpath):
            return
        gateway = report.node.gateway.id
        host = self._host(gateway)
        note = next((n for n in self._notes(gateway) if n.get("nodeid") == crashitem), {})
        where = note.get("attempt_dir")
        if host is None or host.lost is None:
            message = f"the process {gateway} died while it ran this attempt" + (
                f"; its evidence so far: {where}" if where else ""
            )
        else:
            message = f"the host {host.name} was lost while {gateway} ran this attempt there: {host.lost}"
        report.location = (report.location[0], None, crashitem.partition("::")[2])
        report.longrepr = f"WorkerCrashed: {message}"
        if crashitem in self.results:
            # The verdict had been told: it stands, and what failed is the clean-up.
            report.when = "teardown"
            self.warnings[crashitem] = {"message": message}
            from pytest_ageval.suite.crashed import write_result

            write_result(self.results[crashitem], message)
            return
        report.when = "setup"
        report.ageval_crash = True  # type: ignore[attr-defined]
        kept = (
            *("dataset", "task", "agent", "model", "effort", "box", "variant", "parameters", "attempt"),
            *("attempt_dir", "attempt_id", "digest", "slot", "suite_run_id", "source", "of"),
        )
        report.ageval = {  # type: ignore[attr-defined]
            **{name: note[name] for name in kept if name in note},
            "status": "ERROR",
            "score": None,
            "error": {"phase": None, "title": "worker_crashed", "message": message},
        }
        report.user_properties = [
            ("ageval.status", "ERROR"),
            ("ageval.error.title", "worker_crashed"),
            *((f"ageval.{name}", str(note[name])) for name in SHOWN_OF_CRASH if note.get(name)),
        ]

    def _host(self, gateway: str) -> Host | None:
        """The other machine on which a worker runs; None for this one."""
        across = self.config.pluginmanager.getplugin("ageval-across")
        return None if across is None else across.owns(gateway)

    def _notes(self, gateway: str) -> list[dict[str, Any]]:
        """What a worker wrote down about the attempts that it is at."""
        return [_read(path) for path in self._running.glob(f"{gateway}.*.json")]

    @property
    def _running(self) -> Path:
        from pytest_ageval.job import running_dir

        return running_dir(self.config)

    # -- the end ---------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """After the workers are gone: remove what they left, then decide on the exit code."""
        try:
            result = yield
        finally:
            if self._ran_attempts():
                self._sweep()
            self._export()
        if self.usage_error is not None:
            sys.stderr.write(f"ERROR: {self.usage_error}\n")
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
            return result
        if self.not_run and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED  # a part of a run is no success
        if session.exitstatus == pytest.ExitCode.TESTS_FAILED:
            from pytest_ageval.options import resolve

            if resolve(self.config, "exit")[0] == "verdict":
                session.exitstatus = self.failures.exit_code(session.exitstatus)
        return result

    def _export(self) -> None:
        """The files of the job, beside the trials that the attempts' processes have written."""
        from pytest_ageval.options import resolve

        if not self.results or resolve(self.config, "export")[0] is None:
            return
        from pytest_ageval.export.harbor import write_jobs

        for line in write_jobs(
            str(row["attempt_dir"]) for row in self.results.values() if "attempt_dir" in row
        ):
            self._say(line)

    def _ran_attempts(self) -> bool:
        return self.has_tasks and self._running.is_dir()

    def _sweep(self) -> None:
        self._reap(self._kinds())
        self._remove_directories()

    def _remove_directories(self) -> None:
        from pytest_ageval.job import work_dir

        shutil.rmtree(self._running, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: somebody asked to keep a workspace
            work_dir(self.config).rmdir()

    def _leave(self) -> None:
        """Remove the boxes of a run that ends at once, those of its workers as soon as they are gone."""
        from pytest_ageval.interrupts import LEAVE_SECONDS
        from pytest_ageval.job import Job, run_id

        deadline = time.monotonic() + LEAVE_SECONDS - 1
        kinds = self._kinds() if self._ran_attempts() else set()
        labels = {"ageval.run": run_id(self.config)}
        while kinds and time.monotonic() < deadline:
            self._reap(kinds)
            with contextlib.suppress(Exception):
                kinds = {kind for kind in kinds if Job.of(self.config).registry.box(kind).leftovers(labels)}
            time.sleep(0.1)
        self._remove_directories()

    def _kinds(self) -> set[str]:
        """Kinds of the boxes of this run, those of attempts that did not end included."""
        notes = [_read(path) for path in self._running.glob("*.json") if self._is_here(path.name)]
        rows = (row for nodeid, row in self.results.items() if nodeid not in self._elsewhere)
        return {str(row["box"]) for row in (*rows, *notes) if row.get("box")}

    def _is_here(self, note: str) -> bool:
        return self._host(note.partition(".")[0]) is None

    def _reap(self, kinds: set[str], **labels: str) -> None:
        """Remove boxes by their labels. A kind that cannot be swept is told and stops nobody."""
        from pytest_ageval.job import Job, run_id

        for line in Job.of(self.config).registry.reap(
            kinds, {"ageval.run": run_id(self.config), **labels}, "later"
        ):
            self._say(line)

    def _say(self, text: str) -> None:
        reporter = self._reporter()
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(f"ageval: {text}")

    def _reporter(self) -> Any:
        return self.config.pluginmanager.getplugin("terminalreporter")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table, where the evidence is, and how to repeat the errors."""
        if self.results or self.unbound or self.not_run:
            from pytest_ageval.report.terminal import summarize

            summarize(terminalreporter, self.config, self.results, self.warnings, self.unbound, self.not_run)

    def _ledger(self) -> Ledger | None:
        from pytest_ageval.job import Job

        return Job.of(self.config).ledger

    # -- pytest-html -----------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_report_title(self, report: Any) -> None:
        """The report asks for its columns before anything is collected; ours are added later."""
        self.html_report = report

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(self, summary: list[str]) -> None:
        """The table of the terminal."""
        if self.results:
            from pytest_ageval.report import html

            summary.append(html.summary(self.results.values(), self._ledger()))

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_row(self, report: Any, cells: list[str]) -> None:
        """Score, agent, tokens and time of an attempt, in a report that has those columns."""
        if self.has_tasks:
            from pytest_ageval.report import html

            cells.extend(html.cells(getattr(report, "ageval", None)))


def _read(path: Path) -> dict[str, Any]:
    """A note; empty when there is none or it is not whole."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
