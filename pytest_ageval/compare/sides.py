"""What is compared: the attempts of a suite run, of ours or of ageval, or a part of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pytest_ageval.errors import ConfigError
from pytest_ageval.evidence.files import read_document
from pytest_ageval.suite.completeness import Completeness, completeness, of_foreign
from pytest_ageval.suite.places import DIRECTORY, SuiteLayout
from pytest_ageval.suite.record import Settled, read_suite
from pytest_ageval.suite.roots import configured, evidence_roots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: What a suite run can be divided by: a field of `Settled`.
Dimension = Literal["agent", "model", "effort", "box", "variant"]
DIMENSIONS: tuple[Dimension, ...] = ("agent", "model", "effort", "box", "variant")

#: The schema of ageval's summary, which has no suite.json beside it.
FOREIGN = "ageval.suite.summary/1"


@dataclass(frozen=True, slots=True)
class Side:
    """Attempts that are counted together. `root` is the suite run's directory.

    `completeness` is that of the whole suite run, also where the side is a part of it.
    """

    label: str
    root: Path
    suite_run_id: str
    dataset_version: str | None
    rows: list[Settled] = field(repr=False)
    completeness: Completeness = field(repr=False, default=Completeness(""))

    def values(self, name: Dimension) -> list[str]:
        """The different values of a field among the attempts."""
        return sorted({str(value) for row in self.rows if (value := getattr(row, name))})

    def attempt_dir(self, row: Settled) -> Path | None:
        """Where the evidence of one of its attempts should be."""
        if row.attempt_dir is None:
            return None
        return SuiteLayout(self.root).evidence / row.attempt_dir

    def with_whole_paths(self) -> list[Settled]:
        """The rows, with the whole paths of their evidence."""
        return [
            row
            if (path := self.attempt_dir(row)) is None
            else msgspec.structs.replace(row, attempt_dir=str(path))
            for row in self.rows
        ]


# -- where they are --------------------------------------------------------------------------------


def find(name: str, evidence: Path | None = None) -> Path:
    """The directory of a suite run: a path to it or to a file of it, a data set or a root of evidence
    (the last one in it), an id, the beginning of one, or ``last``.

    Ids are looked up in `evidence`, else where `suite.roots` finds it. Raises ConfigError
    ``suite_not_found`` and ``suite_ambiguous``.
    """
    path = Path(name).expanduser()
    if path.is_file():
        path = path.parent
    if is_suite(path):
        return path.resolve()
    roots = [root for root in (path, path / ".ageval") if (root / DIRECTORY).is_dir()]
    if roots:
        return _choose("last", roots, name)
    if (path / "ageval.yaml").is_file() and (named := configured(path)) is not None:
        return _choose("last", [named], name)
    return _choose(name, evidence_roots(evidence, Path.cwd()) or list(filter(None, [evidence])), name)


def _choose(wanted: str, roots: Sequence[Path], name: str) -> Path:
    known = sorted((created, path) for root in roots for created, path in _suites(root))
    found = [path for _, path in known if wanted == "last" or path.name.startswith(wanted)]
    exact = [path for path in found if path.name == wanted]
    if len(exact) == 1:
        return exact[0].resolve()
    if not found:
        names = ", ".join(path.name for _, path in known[-5:]) or "none"
        where = ", ".join(str(root / DIRECTORY) for root in roots) or "here"
        raise ConfigError(
            "suite_not_found",
            f"there is no suite run {name!r} ({where}); known: {names}",
            hint="name it by its path, or its root of evidence with --evidence DIR",
        )
    if wanted != "last" and len(found) > 1:
        names = ", ".join(str(path) for path in found[:5])
        raise ConfigError("suite_ambiguous", f"{name!r} is the beginning of several suite runs: {names}")
    return found[-1].resolve()


def is_suite(path: Path) -> bool:
    """There is a suite run in this directory."""
    layout = SuiteLayout(path)
    return layout.header.is_file() or (layout.summary.is_file() and _foreign(path) is not None)


def _suites(evidence: Path) -> list[tuple[str, Path]]:
    found = []
    for path in (evidence / DIRECTORY).glob("*/"):
        document = read_document(SuiteLayout(path).header) or _foreign(path)
        if document is not None:
            found.append((str(document.get("created_at", "")), path))
    return found


# -- what is in them -------------------------------------------------------------------------------


def read_side(path: Path, label: str) -> Side:
    """The attempts of a suite run. Raises AgevalError ``suite_invalid``."""
    layout = SuiteLayout(path)
    foreign = None if layout.header.is_file() else _foreign(path)
    if foreign is None:
        suite = read_suite(path)
        header = suite.header
        whole = completeness(suite)
        return Side(label, path, header.suite_run_id, header.dataset_version, suite.rows, whole)
    rows = [_foreign_row(row, foreign, layout) for row in foreign.get("attempts") or () if _counts(row)]
    version = foreign.get("dataset_version")
    name = str(foreign.get("suite_run_id") or path.name)
    whole = of_foreign(foreign, name)
    return Side(label, path, name, None if version is None else str(version), rows, whole)


def _foreign(path: Path) -> dict[str, Any] | None:
    document = read_document(SuiteLayout(path).summary)
    return document if document is not None and document.get("schema") == FOREIGN else None


def _counts(row: Any) -> bool:
    """An attempt that was cancelled before it began is a placeholder, and no result."""
    return (
        isinstance(row, dict)
        and row.get("phase") != "cancelled"
        and row.get("status") in ("PASS", "FAIL", "ERROR")
    )


def _foreign_row(row: dict[str, Any], suite: dict[str, Any], layout: SuiteLayout) -> Settled:
    """An attempt of ageval's summary. Its time is in the evidence, if that is still there."""
    task, index = str(row.get("task_id")), int(row.get("attempt_index") or 0)
    name = row.get("attempt_id") or row.get("run_id")
    directory = None if name is None else Path("runs") / str(name)
    result = read_document(layout.evidence / directory / "result.json") if directory is not None else None
    score = row.get("score")
    return Settled(
        slot=f"{task}[{index}]",
        status=row["status"],
        task_id=task,
        dataset_id=suite.get("dataset_id") or None,
        agent=suite.get("agent_label") or None,
        model=suite.get("model_label") or None,
        attempt=index + 1,
        attempt_id=None if name is None else str(name),
        attempt_dir=None if directory is None else str(directory),
        score=float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None,
        error=row.get("error") if isinstance(row.get("error"), dict) else None,
        limit=row.get("limit") if isinstance(row.get("limit"), str) else None,
        timing=_numbers((result or {}).get("timing")),
        usage=usage if isinstance(usage := (result or {}).get("usage"), dict) else {},
        source="imported",
    )


def _numbers(found: Any) -> dict[str, float]:
    rows = found.items() if isinstance(found, dict) else ()
    return {str(k): float(v) for k, v in rows if isinstance(v, int | float) and not isinstance(v, bool)}


def divide(side: Side, by: Dimension) -> list[Side]:
    """One side for each value of a field. Raises ConfigError ``compare_one_side`` when all have the same."""
    found: dict[str, list[Settled]] = {}
    for row in side.rows:
        found.setdefault(str(getattr(row, by) or "-"), []).append(row)
    if len(found) < 2:
        value = next(iter(found), "none")
        raise ConfigError(
            "compare_one_side",
            f"all attempts of {side.suite_run_id} have the same {by} ({value}); there is nothing to compare",
        )
    return [
        Side(value, side.root, side.suite_run_id, side.dataset_version, rows, side.completeness)
        for value, rows in sorted(found.items())
    ]


def digests(
    rows: Iterable[Settled], where: Callable[[Settled], Path | None], tasks: Iterable[str] | None = None
) -> dict[str, str]:
    """The digest of the files of each task (of `tasks`), from the first lock in the evidence that has it.

    `where` gives the directory of an attempt. A task whose locks are gone is not among them.
    """
    wanted = None if tasks is None else set(tasks)
    found: dict[str, str] = {}
    for row in rows:
        if row.task_id in found or (wanted is not None and row.task_id not in wanted):
            continue
        directory = where(row)
        lock = (
            read_document(directory / "lock.json") if directory is not None and directory.is_dir() else None
        )
        if lock is not None and lock.get("eval_digest"):
            found[row.task_id] = str(lock["eval_digest"])
    return found
