"""Suite runs from outside: which there are, how far they are, how to stop and how to remove them."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_ageval.errors import AgevalError, ConfigError
from pytest_ageval.evidence.files import document_bytes, now, read_document, write_atomic
from pytest_ageval.evidence.layout import Layout
from pytest_ageval.evidence.writer import still_runs
from pytest_ageval.suite import started
from pytest_ageval.suite.cache import DIRECTORY as CACHE
from pytest_ageval.suite.cache import ResultCache
from pytest_ageval.suite.places import SuiteLayout, suites
from pytest_ageval.suite.record import SuiteWriter, read_suite
from pytest_ageval.suite.tally import Figures

CANCEL_SCHEMA = "ageval.suite.cancel/1"

#: Seconds after which a session that has not noticed a request to stop gets a signal.
NOTICE_SECONDS = 3.0


# -- which there are ---------------------------------------------------------------------------------


def select(name: str, roots: Sequence[Path]) -> list[Path]:
    """The suite runs that `name` means: ``last``, an id, the beginning of one, or a path.

    Those of one session over several data sets have one id and are meant together. Raises ConfigError
    ``suite_not_found``, ``suite_ambiguous``.
    """
    given = Path(name).expanduser()
    if SuiteLayout(given).header.is_file():
        return [given.absolute()]
    found = [path for root in roots for path in suites(root)]
    found.sort(key=lambda path: str((read_document(SuiteLayout(path).header) or {}).get("created_at")))
    ids = list(dict.fromkeys(path.name for path in found))
    wanted = ids[-1:] if name == "last" else [one for one in ids if one.startswith(name)]
    if not wanted:
        known = ", ".join(ids[-5:]) or "none"
        raise ConfigError(
            "suite_not_found", f"no suite run {name!r}; known: {known}", hint="--dir: where the evidence is"
        )
    if len(wanted) > 1:
        raise ConfigError(
            "suite_ambiguous", f"{name!r} is the beginning of several suite runs: {', '.join(wanted[:5])}"
        )
    return [path for path in found if path.name == wanted[0]]


# -- how far they are --------------------------------------------------------------------------------


class State(NamedTuple):
    """How far a suite run is. `status` is that of the record, or ``killed``."""

    root: Path
    status: str
    progress: dict[str, Any]

    @property
    def parents(self) -> list[str]:
        """The suite runs whose attempts this one judges again."""
        header = read_document(SuiteLayout(self.root).header) or {}
        return [str(name) for name in header.get("parents") or ()]

    @property
    def goes_on(self) -> bool:
        """A session writes it."""
        return self.status in ("running", "cancelling")

    @property
    def seconds_left(self) -> float | None:
        """What the rest will take if it goes as what this session has settled; None if that is nothing."""
        session = self.progress.get("session") or {}
        settled, elapsed = session.get("settled") or 0, session.get("seconds") or 0.0
        left = self.progress.get("total", 0) - self.progress.get("done", 0) - self.progress.get("skipped", 0)
        return elapsed / settled * max(left, 0) if self.goes_on and settled else None

    def as_dict(self) -> dict[str, Any]:
        """In plain JSON types."""
        return {
            **self.progress,
            "status": self.status,
            "path": str(self.root),
            "parents": self.parents,
            "eta_seconds": None if self.seconds_left is None else round(self.seconds_left, 1),
        }


def state(root: Path) -> State:
    """How far a suite run is. Raises AgevalError ``suite_invalid``."""
    layout = SuiteLayout(root)
    progress = read_document(layout.progress)
    if progress is None:
        return _without_progress(root)
    status = str(progress.get("status", "running"))
    if status in ("running", "cancelling") and still_runs(progress.get("owner") or {}) is False:
        status = "killed"
    return State(root, status, progress)


def _without_progress(root: Path) -> State:
    """Of a suite run that no session wrote: what was imported, or made of another one's attempts."""
    suite = read_suite(root)
    figures = Figures()
    for row in suite.rows:
        figures.count(row)
    progress = {
        "suite_run_id": root.name,
        "dataset_id": suite.header.dataset_id,
        "done": len(suite.rows),
        "total": len(suite.rows),
        "counts": {"pass": figures.passed, "fail": figures.failed, "error": figures.errors},
        "usage": figures.usage(),
    }
    return State(root, "complete", progress)


# -- stop ------------------------------------------------------------------------------------------


def cancel(root: Path, patience: float) -> State:
    """Ask the session that writes a suite run to stop, and wait until it has, at most `patience` seconds.

    It stops by itself. One on this machine that has not noticed after a while gets the signal of Ctrl-C.
    Raises AgevalError ``suite_not_running``.
    """
    before = state(root)
    if not before.goes_on:
        raise AgevalError("suite_not_running", f"suite {root.name} is {before.status}")
    document = {"schema": CANCEL_SCHEMA, "suite_run_id": root.name, "requested_at": now()}
    write_atomic(SuiteLayout(root).cancel, document_bytes(document))
    owner = before.progress.get("owner") or {}
    begun, signalled = time.monotonic(), False
    while time.monotonic() - begun < patience:
        found = state(root)
        if not found.goes_on:
            return found
        late = time.monotonic() - begun > NOTICE_SECONDS
        if late and not signalled and found.status == "running" and still_runs(owner):
            os.kill(int(owner["pid"]), signal.SIGINT)
            signalled = True
        time.sleep(0.1)
    return state(root)


# -- remove ----------------------------------------------------------------------------------------


def evidence_of(root: Path) -> list[Path]:
    """The attempt directories that a suite run names, and no other one of the same root does."""
    evidence = SuiteLayout(root).evidence
    others = {name for other in suites(evidence) if other.name != root.name for name in _named(other)}
    base = (evidence / "runs").resolve()
    found = [evidence / name for name in sorted(_named(root) - others)]
    return [path for path in found if path.is_dir() and path.resolve().parent == base]


def _named(root: Path) -> set[str]:
    suite = read_suite(root)
    rows = [*suite.rows, *(row for old in suite.history.values() for row in old)]
    return {
        *(row.attempt_dir for row in rows if row.attempt_dir),
        *(line.attempt_dir for line in started.read(root)),
    }


def remove(root: Path, *, evidence: bool) -> int:
    """Remove a suite run, with the attempts that only it names if `evidence`; returns how many.

    Raises AgevalError ``suite_in_progress``, ``suite_invalid``.
    """
    directories = evidence_of(root) if evidence else []
    writer = SuiteWriter.open(root)
    try:
        if evidence:
            cache = ResultCache(SuiteLayout(root).evidence / CACHE)
            suite = read_suite(root)
            gone = {path.name for path in directories}
            for row in suite.rows:
                if row.attempt_id in gone:
                    cache.forget(row)
        count = 0
        for path in directories:
            owner = read_document(Layout(path).writer)
            if owner is None or still_runs(owner) is False:
                shutil.rmtree(path)
                count += 1
        shutil.rmtree(root)
    finally:
        writer.close()
    return count
