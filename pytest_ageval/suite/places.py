"""Where suite runs are on disk, and how one is named: an id, the beginning of one, ``last``, or a path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_ageval.errors import ConfigError

#: Below the root of the evidence (``.ageval``), beside ``runs``.
DIRECTORY = "suite-runs"


@dataclass(frozen=True, slots=True)
class SuiteLayout:
    """The files of one suite run. Nothing else spells their names."""

    root: Path

    @property
    def header(self) -> Path:
        """What was asked for; written once, before the first attempt."""
        return self.root / "suite.json"

    @property
    def attempts(self) -> Path:
        """One line for each settled attempt, in the order in which they settled."""
        return self.root / "attempts.jsonl"

    @property
    def plan(self) -> Path:
        """The slots that the sessions of this suite run meant to fill."""
        return self.root / "plan.json"

    @property
    def spent(self) -> Path:
        """What the model calls of all sessions have cost, counted as they end."""
        return self.root / "spent.json"

    @property
    def started(self) -> Path:
        """One line for each attempt that was begun, written by the process that runs it."""
        return self.root / "started.jsonl"

    @property
    def lock(self) -> Path:
        """Held by the process that writes this suite run."""
        return self.root / "writer.lock"

    @property
    def summary(self) -> Path:
        """The figures (``ageval.suite.summary/1``)."""
        return self.root / "summary.json"

    @property
    def progress(self) -> Path:
        """What is done and what runs (``ageval.suite.progress/1``)."""
        return self.root / "progress.json"

    @property
    def cancel(self) -> Path:
        """Its existence asks the run to stop (``ageval.suite.cancel/1``)."""
        return self.root / "cancel.requested"

    @property
    def analysis(self) -> Path:
        """Reports of analyzers."""
        return self.root / "analysis"

    @property
    def evidence(self) -> Path:
        """The root of the evidence that the suite run belongs to."""
        return self.root.parent.parent


def relative(path: Path, evidence: Path) -> str:
    """`path` as a record names it: relative to the root of the evidence where it lies below it."""
    try:
        return path.absolute().relative_to(evidence.absolute()).as_posix()
    except ValueError:
        return str(path.absolute())


def suites(evidence: Path) -> list[Path]:
    """The suite runs below a root of evidence, oldest first (by the time in their headers)."""
    from pytest_ageval.evidence.files import read_document

    found = []
    for header in (evidence / DIRECTORY).glob("*/suite.json"):
        document = read_document(header) or {}
        found.append((str(document.get("created_at", "")), header.parent))
    return [path for _, path in sorted(found)]


def find_suite(name: str, evidence: Path) -> Path:
    """The directory of a suite run. `name` is ``last``, an id, the beginning of one, or a path.

    Raises ConfigError ``suite_not_found`` when there is none, ``suite_ambiguous`` when there are several.
    """
    given = Path(name).expanduser()
    if given.name in ("suite.json", "summary.json", "attempts.jsonl"):
        given = given.parent
    if SuiteLayout(given).header.is_file():
        return given.resolve()
    found = suites(evidence)
    if name != "last":
        found = [path for path in found if path.name.startswith(name)]
    if not found:
        known = ", ".join(path.name for path in suites(evidence)[-5:]) or "none"
        raise ConfigError(
            "suite_not_found",
            f"no suite run {name!r} below {evidence / DIRECTORY}; known: {known}",
            hint=f"{name} exists: was --resume=last {name} meant?" if given.exists() else None,
        )
    if name != "last" and len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise ConfigError("suite_ambiguous", f"{name!r} is the beginning of several suite runs: {names}")
    return found[-1]
