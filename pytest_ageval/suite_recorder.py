"""The part of the controller that keeps the record of suite runs: one writer, also of a distributed run."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ageval.discovery import TASK_FILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_ageval.interrupts import Interrupts
    from pytest_ageval.suite.run import SuiteRun

#: Seconds between two looks at whether somebody asks the session to stop.
POLL_SECONDS = 0.5


class SuiteRecorder:
    """Hooks of the controller. It does nothing until a task is collected that is going to run."""

    def __init__(self, config: pytest.Config, interrupts: Interrupts) -> None:
        self.config = config
        self.interrupts = interrupts
        self.runs: dict[Path, SuiteRun] = {}
        self.problem: str | None = None
        #: Attempts that were not run, with their reports' data.
        self.shown: dict[str, Mapping[str, Any]] = {}
        self._made: list[Path] = []
        self._homes: dict[str, SuiteRun] = {}
        self._pending: dict[str, dict[str, Any]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # -- the beginning ---------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The only process has collected."""
        looks = any(self.config.getoption(name, False) for name in ("collectonly", "setupplan", "setuponly"))
        if not looks:
            self._open([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """A worker has collected, all find the same; attempts begin when the last one has."""
        if not self._homes:
            self._open(ids)

    def _open(self, nodeids: Sequence[str]) -> None:
        """Begin a suite run, or go on with one, for each root of evidence that the items belong to.

        Raises `pytest.UsageError` when one that is to be resumed cannot be.
        """
        tasks = tasks_of(nodeids)
        if not tasks:
            return
        from pytest_ageval.errors import AgevalError
        from pytest_ageval.job import Job

        job = Job.of(self.config)
        homes = by_dataset(tasks, self.config.rootpath)
        if not homes or job.usage_error is not None:
            return
        from pytest_ageval.inflight.limits import workers
        from pytest_ageval.inflight.number import number
        from pytest_ageval.suite_opening import open_runs

        at_once = workers(self.config) * number(self.config, nodeids).limit
        try:
            opened = open_runs(job, homes, at_once)
        except AgevalError as error:
            raise pytest.UsageError(str(error)) from None
        except OSError as error:  # the attempts say that nothing can be written here
            self.problem = f"no suite run is recorded: {error.strerror or error}"
            return
        self.runs, self._homes, self._made = opened.runs, opened.homes, opened.made
        if job.ledger is not None:
            from pytest_ageval.suite.spending import spending

            job.ledger.begin(spending(run.layout.root for run in opened.runs.values() if not run.is_new))
        self._say_what_goes_on()
        distributed = self.config.pluginmanager.hasplugin("dsession")
        from pytest_ageval.suites import FILE

        job.suites.assign(opened.places, job.running / FILE if distributed else None)
        self._thread = threading.Thread(target=self._poll, name="ageval-suites", daemon=True)
        self._thread.start()

    def _say_what_goes_on(self) -> None:
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is None or self.config.get_verbosity() < 0:
            return
        from pytest_ageval.recalled import notes

        for run in self.runs.values():
            if not run.is_new:
                reporter.ensure_newline()
                for line in notes(run.header, run.new_slots, run.layout.root):
                    reporter.write_line(f"ageval: {line}")

    def _poll(self) -> None:
        """Write what is due, and end the session when somebody asks for it."""
        from pytest_ageval.inflight.notes import Notes
        from pytest_ageval.job import running_dir

        asked, notes = False, Notes(running_dir(self.config))
        while not self._stop.wait(POLL_SECONDS):
            under_way = notes.under_way()
            for run in self.runs.values():
                mine = {nodeid: at for nodeid, at in under_way.items() if self._homes.get(nodeid) is run}
                run.under_way(mine)
                run.tick()
            if not asked and any(run.cancelling for run in self.runs.values()):
                asked = True
                if not self.interrupts.seen:
                    os.kill(os.getpid(), signal.SIGINT)

    # -- what happens ----------------------------------------------------------------------------

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """An item starts."""
        if (run := self._homes.get(nodeid)) is not None:
            run.begun(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """An item has ended."""
        if (run := self._homes.get(nodeid)) is not None:
            run.ended(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what an attempt came to, once it has been cleaned up.

        Before the controller's own part, which may add the report of a teardown that a dead worker owes.
        """
        run = self._homes.get(report.nodeid)
        if run is None:
            return
        data = getattr(report, "ageval", None)
        if data is not None:
            self._pending[report.nodeid] = data
        elif report.skipped and report.when == "setup" and not hasattr(report, "ageval_not_run"):
            run.skipped(report.nodeid)  # what a budget left out is still to be run
        repeated = report.outcome == "rerun"  # type: ignore[comparison-overlap]
        if report.when == "teardown" or repeated:
            data = self._pending.pop(report.nodeid, None)
            timing = getattr(report, "ageval_timing", None)
            if data is not None:
                self._record(run, report.nodeid, {**data, "timing": timing} if timing else data)

    def _record(self, run: SuiteRun, nodeid: str, data: Mapping[str, Any]) -> None:
        from pytest_ageval.suite.rows import to_row
        from pytest_ageval.suite.run import is_unfinished

        slot = str(data.get("slot") or nodeid)
        if (data.get("error") or {}).get("title") == "resume_digest_changed":
            run.refused(nodeid)
            return
        row = to_row(slot, data, run.evidence)
        if "recorded" in data:
            self.shown[nodeid] = data
            old = run.rows.get(slot)
            if old is not None and old.attempt_id == row.attempt_id and not is_unfinished(old):
                run.shown(slot, nodeid)
                return
        run.settle(row, nodeid)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """``PASSED (recorded)`` where the words are long."""
        data = getattr(report, "ageval", None)
        if data is None or "recorded" not in data or not report.passed or hasattr(report, "wasxfail"):
            return None
        return "passed", ".", f"PASSED ({'reused' if data.get('source') == 'reused' else 'recorded'})"

    # -- the end ---------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Workers are gone: write everything."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)
        interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
        for evidence, run in list(self.runs.items()):
            run.close(interrupted=interrupted)
            if run.is_empty and run.is_new:
                run.remove()
                del self.runs[evidence]
                self._remove_made(evidence)

    def _remove_made(self, evidence: Path) -> None:
        """The root of the evidence, if it was made for a suite run in which nothing happened."""
        files = (path for path in evidence.rglob("*") if path.is_file())
        if evidence in self._made and all(path.name == ".gitignore" for path in files):
            shutil.rmtree(evidence, ignore_errors=True)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The suite run's name, what was not run, and how to go on."""
        if not self.runs and self.problem is None:
            return
        from pytest_ageval.report import suite

        for line in suite.lines(
            self.config, list(self.runs.values()), list(self.shown.values()), self.problem
        ):
            terminalreporter.write_line(line)


def tasks_of(nodeids: Iterable[str]) -> list[str]:
    """Those of attempts, by their file's name."""
    return [nodeid for nodeid in nodeids if Path(nodeid.partition("::")[0]).name in TASK_FILES]


def by_dataset(nodeids: Iterable[str], rootpath: Path) -> dict[Path, list[str]]:
    """The node ids of tasks by the root of their data set; a task without one has none."""
    from pytest_ageval.config import find_dataset_root

    roots: dict[tuple[Path, str], Path | None] = {}
    found: dict[Path, list[str]] = {}
    for nodeid in nodeids:
        file = Path(nodeid.partition("::")[0])
        key = ((rootpath / file).parent.parent, file.name)  # tasks side by side are of one data set
        if key not in roots:
            roots[key] = find_dataset_root(rootpath / file)
        root = roots[key]
        if root is not None:
            found.setdefault(root, []).append(nodeid)
    return found
