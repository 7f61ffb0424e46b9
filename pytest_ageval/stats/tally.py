"""Attempts by task. Imports nothing heavy: gates count with it too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_ageval.suite.record import Settled


class TaskKey(NamedTuple):
    """Which task. Two data sets may have tasks of one name."""

    dataset: str
    task: str

    def __str__(self) -> str:
        return self.task


@dataclass(slots=True)
class Tally:
    """The attempts at one task. An ERROR has no verdict: it is in `errors` and nowhere else."""

    passed: int = 0
    failed: int = 0
    errors: int = 0
    scores: list[float] = field(default_factory=list)

    @property
    def verdicts(self) -> int:
        """Attempts that were judged."""
        return self.passed + self.failed

    @property
    def rate(self) -> float:
        """The share of judged attempts that passed. Raises ZeroDivisionError without any."""
        return self.passed / self.verdicts

    @property
    def flaky(self) -> bool:
        """Judged at least twice, and not always alike."""
        return bool(self.passed and self.failed)

    def add(self, row: Settled) -> None:
        """Count one attempt."""
        if row.status == "ERROR":
            self.errors += 1
            return
        if row.status == "PASS":
            self.passed += 1
        else:
            self.failed += 1
        if row.score is not None:
            self.scores.append(row.score)


def tally(rows: Iterable[Settled]) -> dict[TaskKey, Tally]:
    """The attempts of each task, in the order of their first ones."""
    found: dict[TaskKey, Tally] = {}
    for row in rows:
        found.setdefault(TaskKey(row.dataset_id or "", row.task_id), Tally()).add(row)
    return found


def total(tallies: Iterable[Tally]) -> Tally:
    """All of them together."""
    found = Tally()
    for one in tallies:
        found.passed += one.passed
        found.failed += one.failed
        found.errors += one.errors
        found.scores += one.scores
    return found


def pass_rate(tallies: Iterable[Tally]) -> float | None:
    """The share of judged attempts that passed; None when none was judged."""
    whole = total(tallies)
    return whole.rate if whole.verdicts else None


def error_bounds(tallies: Iterable[Tally]) -> tuple[float, float] | None:
    """The pass rate if every ERROR were a FAIL, and if every one were a PASS; None without attempts."""
    whole = total(tallies)
    attempts = whole.verdicts + whole.errors
    if not attempts:
        return None
    return whole.passed / attempts, (whole.passed + whole.errors) / attempts
