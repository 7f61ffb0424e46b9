"""Paired comparisons: against published examples and scipy, and by how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pytest_ageval.stats.paired import detectable, difference, holm, mcnemar, sign_flip

# M. W. Fagerland, S. Lydersen and P. Laake, "Recommended tests and confidence intervals for paired binomial
# proportions", Statistics in Medicine 33 (2014), 2850-2875: airway hyper-responsiveness of 21 children before
# and after a transplantation; 7 have it only after, 1 only before.
AIRWAY = [1.0] * 7 + [-1.0] + [0.0] * 13


def test_mcnemar_as_published() -> None:
    assert mcnemar(7, 1).p == pytest.approx(0.0703, abs=5e-5)
    assert mcnemar(7, 1, "greater").p == pytest.approx(9 / 256)
    assert mcnemar(0, 0).p == 1


def test_interval_of_bonett_and_price_as_published() -> None:
    found = difference(AIRWAY)
    assert found is not None
    assert found.value == pytest.approx(6 / 21)
    assert (found.low, found.high) == pytest.approx((0.013, 0.508), abs=5e-4)
    assert difference([]) is None


#: Heights of cross-fertilised less self-fertilised plants of Darwin's, in eighths of an inch; R. A. Fisher,
#: "The Design of Experiments" (1935), table 3. In 863 of the 32768 ways to give signs the sum is 314 or more.
DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


def test_sign_flip_as_published() -> None:
    found = sign_flip([value / 100 for value in DARWIN])
    assert found.p == pytest.approx(2 * 863 / 32768)
    assert found.method == "sign-flip-exact"
    assert sign_flip([value / 100 for value in DARWIN], "greater").p == pytest.approx(863 / 32768)


def test_sign_flip_of_single_attempts_is_mcnemar() -> None:
    for better, worse in ((7, 1), (3, 3), (5, 0), (1, 0), (0, 1)):
        d = [1.0] * better + [-1.0] * worse + [0.0] * 40
        for alternative in ("two-sided", "less", "greater"):
            assert sign_flip(d, alternative).p == pytest.approx(mcnemar(better, worse, alternative).p)


def test_sign_flip_of_many_tasks_is_close_to_students_t() -> None:
    d = list(np.random.default_rng(5).normal(0.04, 0.3, 200))
    found = sign_flip(d)
    assert found.method == "sign-flip"
    assert found.p == pytest.approx(stats.ttest_1samp(d, 0).pvalue, abs=0.02)
    assert found == sign_flip(d)
    assert sign_flip([0.0] * 5).p == 1


def test_holm_as_published() -> None:
    # S. P. Wright, "Adjusted p-values for simultaneous inference", Biometrics 48 (1992), as R's
    # p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm") has it.
    assert holm([0.05, 0.01, 0.03, 0.02, 0.04]) == pytest.approx([0.09, 0.05, 0.09, 0.08, 0.09])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_detectable_effect_has_its_power() -> None:
    # The multiplier of Bloom (1995), table 1: 2.80 for two sides and 2.49 for one, with alpha 0.05.
    assert detectable(1.0) == pytest.approx(2.80, abs=0.005)
    assert detectable(1.0, sides=1) == pytest.approx(2.49, abs=0.005)
    rng = np.random.default_rng(13)
    effect = detectable(0.5 / 10)  # 100 tasks, standard deviation 0.5
    found = [difference(list(rng.normal(effect, 0.5, 100))) for _ in range(500)]
    rejected = [each is not None and each.low > 0 for each in found]
    assert 0.74 < np.mean(rejected) < 0.86


@pytest.mark.parametrize("attempts", [1, 4])
def test_coverage_of_the_difference(attempts: int) -> None:
    rng = np.random.default_rng(17)
    held, students = [], []
    for tasks in (10, 40):
        for first, second in ((0.5, 0.5), (0.1, 0.1), (0.6, 0.8), (0.9, 0.95)):
            for share in (0.0, 0.9):  # of the tasks that are as hard for both sides
                for _ in range(200):
                    u = rng.random(tasks)
                    v = np.where(rng.random(tasks) < share, u, rng.random(tasks))
                    a = rng.binomial(attempts, np.clip(first + 0.8 * (u - 0.5) * min(first, 1 - first), 0, 1))
                    b = rng.binomial(
                        attempts, np.clip(second + 0.8 * (v - 0.5) * min(second, 1 - second), 0, 1)
                    )
                    d = (b - a) / attempts
                    found = difference(list(d))
                    assert found is not None
                    held.append(found.low <= second - first <= found.high)
                    half = stats.t.ppf(0.975, tasks - 1) * stats.sem(d)
                    students.append(abs(d.mean() - (second - first)) <= half)
    assert np.mean(held) > 0.95
    assert np.mean(students) < np.mean(held)
