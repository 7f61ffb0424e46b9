"""Intervals: against published examples, and by how often they hold the truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from pytest_ageval.report.numbers import wilson
from pytest_ageval.stats.rates import clustered_rate, mean_over_tasks, mean_score
from pytest_ageval.stats.repeated import over_tasks, pass_at_k, pass_hat_k, values_of_k
from pytest_ageval.stats.tally import Tally


@pytest.mark.parametrize(
    ("passed", "of", "low", "high"),
    # R. G. Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in Medicine 17
    # (1998), 857-872, table I, method 3 (Wilson's score).
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_as_published(passed: int, of: int, low: float, high: float) -> None:
    assert wilson(passed, of) == pytest.approx((low, high), abs=5e-5)
    found = clustered_rate([1] * passed + [0] * (of - passed), [1] * of)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
    assert found.method == "wilson"


def test_rate_of_clusters_uses_the_effective_size() -> None:
    passed, judged = [3, 0, 3, 1, 3, 0, 2, 3], [3, 3, 3, 2, 3, 3, 3, 3]
    found = clustered_rate(passed, judged)
    assert found is not None
    # By hand, from the formula in the docstring.
    p = 15 / 23
    variance = 8 / 7 * sum((c - p * n) ** 2 for c, n in zip(passed, judged, strict=True)) / 23**2
    size = p * (1 - p) / variance * (1.959963984540054 / 2.3646242515927844) ** 2
    assert found.value == p
    assert (found.low, found.high) == pytest.approx(wilson(p * size, size))
    assert (found.tasks, found.method) == (8, "wilson-clustered")


def test_rate_without_variation_counts_tasks_not_attempts() -> None:
    found = clustered_rate([5] * 7, [5] * 7)
    assert found is not None
    assert (found.low, found.high) == wilson(7, 7)


def test_rate_ignores_tasks_without_a_verdict() -> None:
    assert clustered_rate([1, 0, 0], [1, 0, 1]) == clustered_rate([1, 0], [1, 1])
    assert clustered_rate([0, 0], [0, 0]) is None


def test_an_interval_never_says_more_than_its_attempts() -> None:
    # Every task passes exactly every second attempt: the tasks do not differ at all.
    found = clustered_rate([1] * 10, [2] * 10)
    assert found is not None
    assert (found.low, found.high) == wilson(10, 20)


#: Attempts at a task, rate, correlation of the attempts at one task.
DESIGNS = list(itertools.product((1, 3, 5), (0.1, 0.5, 0.9), (0.0, 0.5, 1.0)))


@pytest.mark.parametrize("tasks", [10, 40])
def test_coverage_of_the_clustered_rate(tasks: int) -> None:
    """95 % intervals hold the true rate in about 95 % of samples, whatever the correlation."""
    rng = np.random.default_rng(7)
    held, naive = [], []
    for attempts, rate, rho in DESIGNS:
        truth = _task_rates(rng, rate, rho, (400, tasks))
        counts = rng.binomial(attempts, truth)
        found = [clustered_rate(list(row), [attempts] * tasks) for row in counts]
        held.append(np.mean([e is not None and e.low <= rate <= e.high for e in found]))
        bounds = [wilson(int(row.sum()), attempts * tasks) for row in counts]
        naive.append(np.mean([low <= rate <= high for low, high in bounds]))
    assert np.mean(held) > 0.94
    assert min(held) > 0.88  # Wilson's own interval has such a place, for few expected failures
    assert min(naive) < 0.70, "attempts counted as if they were independent are much too sure"


def _task_rates(rng: np.random.Generator, rate: float, rho: float, shape: tuple[int, int]) -> np.ndarray:
    if rho == 0:
        return np.full(shape, rate)
    if rho == 1:
        return (rng.random(shape) < rate).astype(float)
    scale = (1 - rho) / rho
    return rng.beta(rate * scale, (1 - rate) * scale, shape)


def test_coverage_of_the_bootstrap_over_tasks() -> None:
    rng = np.random.default_rng(11)
    held = []
    for _ in range(100):
        counts = rng.binomial(4, rng.beta(1.5, 1.0, 25))
        found = over_tasks(pass_at_k, [Tally(int(c), 4 - int(c)) for c in counts], 2)
        assert found is not None
        assert found.method == "bootstrap-bca"
        # E[1 - (1-p)^2] for Beta(1.5, 1): E[(1-p)^2] = b(b+1) / ((a+b)(a+b+1)).
        held.append(found.low <= 1 - 2 / (2.5 * 3.5) <= found.high)
    assert np.mean(held) > 0.87


def test_bootstrap_is_the_same_twice_and_like_students_t_for_many_tasks() -> None:
    rng = np.random.default_rng(3)
    values = list(rng.random(400))
    found = mean_over_tasks(values)
    assert found == mean_over_tasks(values)
    assert found is not None
    half = 1.966 * np.std(values, ddof=1) / 20  # t with 399 degrees of freedom
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), abs=0.003)


def test_few_or_equal_values_are_not_resampled() -> None:
    assert mean_over_tasks([]) is None
    few = mean_over_tasks([1.0, 1.0, 0.5])
    assert few is not None
    assert few.method == "wilson-tasks"
    equal = mean_over_tasks([1.0] * 30)
    assert equal is not None
    assert (equal.low, equal.high) == wilson(30, 30)


def test_mean_score() -> None:
    assert mean_score([[], []]) is None
    found = mean_score([[0.5, 1.0], [], [0.0]])
    assert found is not None
    assert (found.value, found.tasks, found.method) == (0.5, 2, "wilson-tasks")
    wide = mean_score([[10.0], [20.0], [40.0]])
    assert wide is not None
    assert wide.method == "student-t"
    # scipy.stats.t.interval(0.95, 2, loc=70/3, scale=sem([10, 20, 40]))
    assert (wide.low, wide.high) == pytest.approx((-14.6124, 61.2791), abs=1e-3)
    one = mean_score([[10.0]])
    assert one is not None
    assert not math.isfinite(one.low)
    many = mean_score([[k / 20, 1 - k / 40] for k in range(20)])
    assert many is not None
    assert many.method == "bootstrap-bca"
    assert many.low < many.value < many.high


def test_pass_at_k_and_pass_hat_k_are_what_drawing_k_attempts_gives() -> None:
    for n in range(1, 8):
        for c in range(n + 1):
            outcomes = [True] * c + [False] * (n - c)
            for k in range(1, n + 1):
                draws = list(itertools.combinations(outcomes, k))
                assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))
                assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, draws)) / len(draws))


def test_pass_at_k_of_many_samples() -> None:
    # The numerically stable product of M. Chen et al. (2021), figure 3, with n = 200.
    for c in (0, 1, 17, 150, 200):
        product = 1 - np.prod(1 - 100 / np.arange(200 - c + 1, 201)) if 200 - c >= 100 else 1.0
        assert pass_at_k(200, c, 100) == pytest.approx(product)


def test_k_beyond_the_attempts_is_no_estimate() -> None:
    with pytest.raises(ValueError, match="n=2, c=1, k=3"):
        pass_at_k(2, 1, 3)
    tallies = [Tally(2, 1), Tally(1, 0), Tally(0, 0, errors=3)]
    found = over_tasks(pass_hat_k, tallies, 2)
    assert found is not None
    assert (found.tasks, found.value) == (1, pytest.approx(1 / 3))
    assert over_tasks(pass_at_k, tallies, 4) is None
    assert values_of_k(tallies) == [1, 2, 3]
    assert values_of_k([Tally(errors=2)]) == []
