"""What a run is measured against: an earlier suite run, or a file that keeps what counts of one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from pytest_ageval.compare.sides import digests, find, read_side
from pytest_ageval.errors import ConfigError
from pytest_ageval.evidence.files import document_bytes, now, write_atomic
from pytest_ageval.gates.rules import Decision, Group, judged_groups
from pytest_ageval.stats.tally import Tally, TaskKey, tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_ageval.compare.sides import Side
    from pytest_ageval.suite.record import Settled

FORMAT: Literal["ageval.baseline/1"] = "ageval.baseline/1"

_Count = Annotated[int, msgspec.Meta(ge=0)]


class TaskRow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One task: attempts that passed, that were judged, that are ERRORs, and the digest of its files."""

    passed: _Count
    judged: _Count
    errors: _Count = 0
    content: str | None = None


class GroupRow(msgspec.Struct, forbid_unknown_fields=True):
    """The attempts of one data set, agent, model, effort and box (empty: none was named)."""

    dataset: str
    agent: str
    model: str
    effort: str
    box: str
    tasks: dict[str, TaskRow]

    @property
    def key(self) -> Group:
        """As `Settled.group`."""
        return (self.dataset, self.agent, self.model, self.effort, self.box)


class BaselineFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A baseline that can be kept beside the data set."""

    format: Literal["ageval.baseline/1"]
    suite_run_id: str
    created_at: str
    groups: list[GroupRow]
    #: Slots of the suite run that had no result when this was written, which somebody had allowed.
    missing: _Count = 0


@dataclass(frozen=True, slots=True)
class Baseline:
    """Earlier attempts by group and task. `contents` are digests of tasks' files, where they are known.

    `missing` slots of the suite run had no result.
    """

    name: str
    tallies: Mapping[Group, Mapping[TaskKey, Tally]]
    contents: Mapping[Group, Mapping[str, str]] = field(default_factory=dict)
    missing: int = 0

    @property
    def title(self) -> str:
        """Its name, with what is missing of it."""
        return f"{self.name} (incomplete, {self.missing} without a result)" if self.missing else self.name

    def judge(self, rows: Sequence[Settled], alpha: float) -> list[Decision]:
        """For each group of the run: is it significantly worse? Several are adjusted after Holm."""
        from pytest_ageval.gates.regression import judge

        return judge(self, rows, alpha)

    def counterpart(self, group: Group, run: Iterable[Group]) -> Group | None:
        """The group of the baseline that `group` is measured against.

        The same one; else, when the data set has one group here and one in the run, that one: another
        model or box is just what may have changed.
        """
        if group in self.tallies:
            return group
        here = [each for each in self.tallies if each[0] == group[0]]
        there = [each for each in run if each[0] == group[0]]
        return here[0] if len(here) == len(there) == 1 else None


def load(name: str, evidence: Path | None = None, *, allow_incomplete: bool = False) -> Baseline:
    """The baseline in a file, or the suite run that `name` names (as for ``pytest-ageval compare``).

    Raises ConfigError ``baseline_invalid``, ``suite_not_found``, ``suite_incomplete`` and so on.
    """
    path = Path(name).expanduser()
    if path.is_file() and path.name not in ("suite.json", "summary.json", "attempts.jsonl"):
        return _from_file(path)
    try:
        root = find(name, evidence)
    except ConfigError as error:
        if error.code != "suite_not_found":
            raise
        raise ConfigError(
            "suite_not_found",
            f"--baseline {name}: there is no such file, and no such suite run ({error.message})",
            hint="write the file with: pytest-ageval gate SUITE --write-baseline FILE",
        ) from error
    return of_side(read_side(root, name), allow_incomplete=allow_incomplete)


def of_side(side: Side, *, allow_incomplete: bool = False) -> Baseline:
    """What counts of a suite run. Raises ConfigError ``suite_incomplete``."""
    whole = side.completeness
    if not whole.whole and not allow_incomplete:
        raise ConfigError(
            "suite_incomplete",
            f"a suite run that is not complete is no baseline: {whole.words}",
            hint="go on with it (--resume), or accept it as it is with --allow-incomplete",
        )
    missing = len(whole.missing) + len(whole.unsettled)
    return of_rows(side.suite_run_id, side.rows, side.attempt_dir, missing)


def of_rows(
    name: str, rows: Sequence[Settled], where: Callable[[Settled], Path | None], missing: int = 0
) -> Baseline:
    """What counts of `rows`; `where` gives the directory of an attempt's evidence."""
    found = judged_groups(rows)
    return Baseline(
        name,
        {group: tally(some) for group, some in found.items()},
        {group: digests(some, where) for group, some in found.items()},
        missing,
    )


def _from_file(path: Path) -> Baseline:
    try:
        document = msgspec.json.decode(path.read_bytes(), type=BaselineFile)
    except (msgspec.MsgspecError, OSError) as error:
        raise ConfigError(
            "baseline_invalid",
            f"this is no {FORMAT} document: {error}",
            file=str(path),
            hint="write one with: pytest-ageval gate SUITE --write-baseline FILE",
        ) from error
    tallies, known = {}, {}
    for group in document.groups:
        for task, row in group.tasks.items():
            if row.passed > row.judged:
                raise ConfigError("baseline_invalid", f"{task}: more passed than judged", file=str(path))
        tallies[group.key] = {
            TaskKey(group.dataset, task): Tally(row.passed, row.judged - row.passed, row.errors)
            for task, row in group.tasks.items()
        }
        known[group.key] = {task: row.content for task, row in group.tasks.items() if row.content}
    return Baseline(path.name, tallies, known, document.missing)


def write(path: Path, baseline: Baseline) -> None:
    """Keep what counts of a baseline in a file, sorted so that versions of it can be compared."""
    found = [
        GroupRow(
            *group,
            tasks={
                key.task: TaskRow(
                    each.passed,
                    each.verdicts,
                    each.errors,
                    baseline.contents.get(group, {}).get(key.task),
                )
                for key, each in sorted(tasks.items())
            },
        )
        for group, tasks in sorted(baseline.tallies.items())
    ]
    document = BaselineFile(FORMAT, baseline.name, now(), found, baseline.missing)
    write_atomic(path, document_bytes(json.loads(msgspec.json.encode(document))))
