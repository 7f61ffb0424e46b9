"""Intervals of one proportion and of one mean, over tasks.

What is estimated is the rate over *tasks like these*: the tasks of a data set stand for others, so they
are the sampling units, and the attempts at one task are a cluster.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import stats

from pytest_ageval.report.numbers import Z95, effective_size, wilson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Of every bootstrap: resamples, and the seed by which two reports of one suite are alike.
RESAMPLES = 9999
SEED = 20260101

#: Fewer tasks than this are not resampled: they hold too little of what was not seen.
BOOTSTRAP_TASKS = 10


class Estimate(NamedTuple):
    """A figure with its 95 % interval. `tasks` it comes from; `method` names how the interval was made."""

    value: float
    low: float
    high: float
    tasks: int
    method: str


def clustered_rate(passed: Sequence[int], judged: Sequence[int]) -> Estimate | None:
    """A pass rate: `passed` of `judged` attempts at each task. None when no attempt was judged.

    With one attempt at each task: Wilson's interval. With several: Wilson's interval for the effective
    number of attempts, after E. L. Korn and B. I. Graubard, "Confidence intervals for proportions with
    small expected number of positive counts estimated from survey data", Survey Methodology 24 (1998),
    193-201: ``n* = p (1 - p) / v * (z / t)^2``, at most the number of attempts. `v` is the variance of the
    ratio of two totals over m tasks, ``m / (m - 1) * sum (c_i - p n_i)^2 / (sum n_i)^2``, and `t` the
    quantile with m - 1 degrees of freedom. Where all attempts pass or all fail `v` says nothing; then all
    attempts at a task are counted as one (`effective_size`).
    """
    pairs = [(c, n) for c, n in zip(passed, judged, strict=True) if n]
    if not pairs:
        return None
    c, n = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    tasks, attempts = len(pairs), float(n.sum())
    p = float(c.sum()) / attempts
    size = attempts if n.max() == 1 else _effective(p, c, n)
    return Estimate(p, *wilson(p * size, size), tasks, "wilson" if n.max() == 1 else "wilson-clustered")


def _effective(p: float, c: NDArray[np.float64], n: NDArray[np.float64]) -> float:
    tasks, attempts = len(c), float(n.sum())
    worth = effective_size([int(each) for each in n])
    if tasks < 2 or p in (0.0, 1.0):
        return worth
    variance = tasks / (tasks - 1) * float(np.square(c - p * n).sum()) / attempts**2
    if variance == 0:
        return attempts
    shrink = (Z95 / float(stats.t.ppf(0.975, tasks - 1))) ** 2
    return min(p * (1 - p) / variance * shrink, attempts)


def mean_over_tasks(values: Sequence[float]) -> Estimate | None:
    """The mean of one value in [0, 1] for each task, with an interval over tasks.

    The interval is the BCa bootstrap's (B. Efron, "Better bootstrap confidence intervals", JASA 82 (1987),
    171-185; `scipy.stats.bootstrap`). Fewer than `BOOTSTRAP_TASKS` tasks, or values that are all alike,
    get Wilson's interval for that many tasks: no mean of values in [0, 1] varies more than a proportion.
    """
    if not values:
        return None
    found = np.asarray(values, dtype=float)
    mean, tasks = float(found.mean()), len(found)
    if tasks >= BOOTSTRAP_TASKS and np.ptp(found) > 0:
        made = stats.bootstrap(
            (found,),
            np.mean,
            n_resamples=RESAMPLES,
            batch=max(1, 1_000_000 // tasks),
            method="BCa",
            rng=np.random.default_rng(SEED),
        )
        low, high = map(float, made.confidence_interval)
        if math.isfinite(low) and math.isfinite(high):
            return Estimate(mean, low, high, tasks, "bootstrap-bca")
    return Estimate(mean, *wilson(mean * tasks, tasks), tasks, "wilson-tasks")


def mean_score(scores: Sequence[Sequence[float]]) -> Estimate | None:
    """The mean over all attempts that have a score, `scores` of each task; None when none has.

    The interval is the BCa bootstrap's over tasks, of the sum of the scores by their number. Without
    variation, or for fewer than `BOOTSTRAP_TASKS` tasks: Wilson's for that many tasks if all scores are in
    [0, 1], else one by Student's t over the tasks' means.
    """
    tasks = [each for each in scores if each]
    if not tasks:
        return None
    sums: NDArray[np.float64] = np.array([sum(each) for each in tasks], dtype=float)
    counts: NDArray[np.float64] = np.array([len(each) for each in tasks], dtype=float)
    value = float(sums.sum()) / float(counts.sum())
    if len(tasks) >= BOOTSTRAP_TASKS and np.ptp(sums / counts) > 0:
        made = stats.bootstrap(
            (sums, counts),
            lambda s, n, axis=-1: s.sum(axis=axis) / n.sum(axis=axis),
            paired=True,
            vectorized=True,
            n_resamples=RESAMPLES,
            batch=max(1, 1_000_000 // len(tasks)),
            method="BCa",
            rng=np.random.default_rng(SEED),
        )
        low, high = map(float, made.confidence_interval)
        if math.isfinite(low) and math.isfinite(high):
            return Estimate(value, low, high, len(tasks), "bootstrap-bca")
    if all(0 <= score <= 1 for each in tasks for score in each):
        return Estimate(value, *wilson(value * len(tasks), len(tasks)), len(tasks), "wilson-tasks")
    if len(tasks) < 2:
        return Estimate(value, -math.inf, math.inf, 1, "none")
    half = float(stats.t.ppf(0.975, len(tasks) - 1) * stats.sem(sums / counts))
    return Estimate(value, value - half, value + half, len(tasks), "student-t")
