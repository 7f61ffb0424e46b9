"""Figures of a suite run, kept up to date row by row: what is added costs the same at any length."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import comb
from typing import TYPE_CHECKING, Any

from pytest_ageval.report.numbers import interval, tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_ageval.suite.record import Settled

#: Data set, agent, model, effort, box.
Group = tuple[str, str, str, str, str]


@dataclass(slots=True)
class Figures:
    """Sums over attempts. An ERROR is counted apart and has no score."""

    passed: int = 0
    failed: int = 0
    errors: int = 0
    scores: float = 0.0
    with_score: int = 0
    cost: float = 0.0
    with_cost: int = 0
    tokens: int = 0
    with_tokens: int = 0
    seconds: float = 0.0
    with_seconds: int = 0

    def count(self, row: Settled, sign: int = 1) -> None:
        """Add a row, or take it away with `sign` -1."""
        self.passed += sign * (row.status == "PASS")
        self.failed += sign * (row.status == "FAIL")
        self.errors += sign * (row.status == "ERROR")
        if row.status != "ERROR" and row.score is not None:
            self.scores += sign * row.score
            self.with_score += sign
        cost = row.usage.get("cost_usd")
        if isinstance(cost, int | float):
            self.cost += sign * cost
            self.with_cost += sign
        used = tokens({"usage": row.usage})
        if used is not None:
            self.tokens += sign * used
            self.with_tokens += sign
        if row.seconds is not None:
            self.seconds += sign * row.seconds
            self.with_seconds += sign

    @property
    def scored(self) -> int:
        """Attempts that have a verdict."""
        return self.passed + self.failed

    @property
    def settled(self) -> int:
        """All attempts."""
        return self.scored + self.errors

    def usage(self) -> dict[str, Any]:
        """Sums with the number of attempts that they are over; None is not known, never zero."""
        return {
            "duration_s": round(self.seconds, 3) if self.with_seconds else None,
            "cost_usd": round(self.cost, 9) if self.with_cost else None,
            "tokens": self.tokens if self.with_tokens else None,
            "n_attempts_with_cost": self.with_cost,
            "n_attempts_with_tokens": self.with_tokens,
        }


@dataclass(slots=True)
class Tally:
    """The figures of the rows that count, over all and by group and task."""

    total: Figures = field(default_factory=Figures)
    groups: dict[Group, dict[str, Figures]] = field(default_factory=dict)

    def replace(self, old: Settled | None, new: Settled | None) -> None:
        """`new` counts in the place of `old`; None: there was, or will be, none."""
        for row, sign in ((old, -1), (new, 1)):
            if row is not None:
                self.total.count(row, sign)
                tasks = self.groups.setdefault(row.group, {})
                tasks.setdefault(row.task_id, Figures()).count(row, sign)

    def metrics(self, group: Group | None = None) -> dict[str, Any]:
        """Figures of one group, or of everything: per attempt, with intervals; ERRORs are apart."""
        tables = [self.groups[group]] if group is not None else list(self.groups.values())
        tasks = [figures for table in tables for figures in table.values() if figures.settled]
        passed, scored = sum(t.passed for t in tasks), sum(t.scored for t in tasks)
        with_score = sum(t.with_score for t in tasks)
        low, high = interval(passed, [t.scored for t in tasks])
        return {
            "pass_rate": passed / scored if scored else None,
            "pass_rate_interval": [low, high] if scored else None,
            "mean_score": sum(t.scores for t in tasks) / with_score if with_score else None,
            "n_scored": scored,
            "n_errors": sum(t.errors for t in tasks),
            "pass_at_k": _by_k(tasks, _at_least_one),
            "pass_power_k": _by_k(tasks, _all_of),
        }


def _by_k(tasks: Iterable[Figures], chance: Any) -> dict[str, float]:
    """The mean over the tasks with at least k verdicts, for k of 1, powers of 2, and the most there are."""
    counts = [(task.scored, task.passed) for task in tasks if task.scored]
    most = max((n for n, _ in counts), default=0)
    sizes = sorted({most, *(2**e for e in range(most.bit_length()) if 2**e <= most)} - {0})
    found = {}
    for k in sizes:
        values = [chance(n, c, k) for n, c in counts if n >= k]
        found[str(k)] = sum(values) / len(values)
    return found


def _at_least_one(n: int, c: int, k: int) -> float:
    """Chance that k of n attempts, c of which passed, hold a passed one (M. Chen et al., 2021)."""
    return 1 - comb(n - c, k) / comb(n, k)


def _all_of(n: int, c: int, k: int) -> float:
    """Chance that all k of n attempts, c of which passed, have passed."""
    return comb(c, k) / comb(n, k)


def rolled(figures: Figures) -> str:
    """The status of a task with several attempts, as the reference has it: the best of them."""
    return "PASS" if figures.passed else "FAIL" if figures.failed else "ERROR"
