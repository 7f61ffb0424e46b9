"""Two sides on the same tasks: the difference, whether it is chance, and what could have been seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from scipy import stats

from pytest_ageval.stats.rates import SEED

if TYPE_CHECKING:
    from collections.abc import Sequence

Alternative = Literal["two-sided", "less", "greater"]

#: Sign flips that are tried. All of them up to 15 tasks that differ, as many at random above.
FLIPS = 1 << 15

#: Of the minimum detectable effect.
POWER = 0.80


class Difference(NamedTuple):
    """The mean over tasks of (second side - first side), its 95 % interval and standard error."""

    value: float
    low: float
    high: float
    se: float
    tasks: int


class PValue(NamedTuple):
    """A p value and the test that it is of."""

    p: float
    method: str


def difference(differences: Sequence[float]) -> Difference | None:
    """The mean difference of pass rates, one value in [-1, 1] for each task; None without tasks.

    The interval is that of D. G. Bonett and R. M. Price, "Adjusted Wald confidence interval for a
    difference of binomial proportions based on paired data", Journal of Educational and Behavioral
    Statistics 37 (2012), 479-488: one task is added in which the first side is better and one in which the
    second is. With d over these m + 2 tasks: ``mean(d) -+ z * sqrt((mean(d^2) - mean(d)^2) / (m + 2))``.
    For one attempt at a task this is their formula; for several it is conservative.
    """
    if not differences:
        return None
    d = np.array([*differences, 1.0, -1.0])
    middle = float(d.mean())
    se = float(np.sqrt((np.square(d).mean() - middle**2) / len(d)))
    half = float(stats.norm.ppf(0.975)) * se
    value = float(np.mean(differences))
    return Difference(value, max(-1.0, middle - half), min(1.0, middle + half), se, len(differences))


def mcnemar(better: int, worse: int, alternative: Alternative = "two-sided") -> PValue:
    """McNemar's exact test: `better` tasks changed for the better, `worse` for the worse.

    Q. McNemar, "Note on the sampling error of the difference between correlated proportions or
    percentages", Psychometrika 12 (1947), 153-157, in its exact form: a binomial test with 1/2.
    """
    if better + worse == 0:
        return PValue(1.0, "mcnemar-exact")
    found = stats.binomtest(better, better + worse, 0.5, alternative=alternative)
    return PValue(float(found.pvalue), "mcnemar-exact")


def sign_flip(differences: Sequence[float], alternative: Alternative = "two-sided") -> PValue:
    """Fisher's permutation test of paired differences (`scipy.stats.permutation_test`).

    R. A. Fisher, "The Design of Experiments" (1935), section 21: were the sides alike, each difference
    could have had the other sign. Tasks without a difference say nothing either way and are left out.
    """
    d = np.array([value for value in differences if value != 0])
    if len(d) == 0:
        return PValue(1.0, "sign-flip-exact")
    exact = 2 ** len(d) <= FLIPS
    if len(d) == 1:  # scipy asks for two; of one, both signs are as likely
        tail = 0.5 if (d[0] > 0) == (alternative == "greater") else 1.0
        return PValue(1.0 if alternative == "two-sided" else tail, "sign-flip-exact")
    found = stats.permutation_test(
        (d,),
        lambda x, axis=-1: np.mean(x, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=FLIPS,
        batch=max(1, 2_000_000 // len(d)),
        alternative=alternative,
        rng=np.random.default_rng(SEED),
    )
    return PValue(min(1.0, float(found.pvalue)), "sign-flip-exact" if exact else "sign-flip")


def detectable(se: float, alpha: float = 0.05, *, sides: int = 2) -> float:
    """The smallest difference that this design finds with a power of 80 %.

    ``(z(1 - alpha / sides) + z(0.80)) * se``. H. S. Bloom, "Minimum detectable effects: a simple way to
    report the statistical power of experimental designs", Evaluation Review 19 (1995), 547-556. `se` is the
    standard error of the mean difference.
    """
    return float(stats.norm.ppf(1 - alpha / sides) + stats.norm.ppf(POWER)) * se


def holm(pvalues: Sequence[float]) -> list[float]:
    """Adjusted p values of several comparisons, in the given order.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6
    (1979), 65-70.
    """
    order = sorted(range(len(pvalues)), key=lambda i: pvalues[i])
    found = [1.0] * len(pvalues)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(pvalues) - rank) * pvalues[index]))
        found[index] = highest
    return found
