"""``--attempts auto``: after how many attempts it is known on which side of a bound a pass probability is.

The conclusion is about one task and one variant: its probability to pass is *above* the bound (it is the
bound or more), or *below* it. Attempts are looked at in the order of their numbers, one after another. The
evidence for *above* after s passes and f fails is the mixed likelihood ratio

    E(s, f) = integral of (q/p)^s ((1-q)/(1-p))^f over the prior of q,

where p is the bound and the prior puts one half on q = 1 and spreads one half evenly over (p, 1). If the
true probability is p or less, E starts at 1 and does not grow on average (each factor has a mean of at most
1), so by Ville's inequality it ever reaches 1/a with a probability of at most a, however many attempts are
made and whenever one stops. *Above* is concluded when E reaches 1 / (1 - confidence); *below* likewise,
with passes and fails exchanged. Only one of the two can be wrong, so a wrong conclusion has a probability
of at most 1 - confidence, whatever the true probability is. The half at q = 1 makes attempts that all
pass decide as soon as any test of that confidence can.

J. Ville, "Étude critique de la notion de collectif" (1939). A. Wald, "Sequential tests of statistical
hypotheses", Annals of Mathematical Statistics 16 (1945), 117-186. H. Robbins, "Statistical methods related
to the law of the iterated logarithm", Annals of Mathematical Statistics 41 (1970), 1397-1409 (mixtures).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pytest_ageval.errors import ConfigError

Conclusion = Literal["above", "below", "undecided"]

#: More attempts than this at one task are a slip of the pen.
LARGEST = 1000


@dataclass(frozen=True, slots=True)
class Rule:
    """When to stop: `bound` on the probability to pass, `confidence`, and at `most` how many attempts.

    Raises ConfigError ``invalid_option``, also when `most` attempts can never decide.
    """

    bound: float = 0.5
    confidence: float = 0.95
    most: int = 20

    def __post_init__(self) -> None:
        if not 0 < self.bound < 1:
            raise ConfigError(
                "invalid_option", f"--pass-bound must be above 0 and below 1, found {self.bound}"
            )
        if not 0.5 <= self.confidence < 1:
            raise ConfigError(
                "invalid_option", f"--confidence must be at least 0.5 and below 1, found {self.confidence}"
            )
        if not 1 <= self.most <= LARGEST:
            raise ConfigError(
                "invalid_option", f"--attempts auto:MAX takes 1 to {LARGEST} attempts, found {self.most}"
            )
        if not (self._reached(self.most, 0) or self._reached(0, self.most)):
            raise ConfigError(
                "invalid_option",
                f"--attempts auto:{self.most} can conclude nothing at a confidence of {self.confidence:g}, "
                "even if all attempts agree",
                hint=f"at least {self._least()} attempts are needed",
            )

    def _least(self) -> int | str:
        found = (n for n in range(1, LARGEST + 1) if self._reached(n, 0) or self._reached(0, n))
        return next(found, f"more than {LARGEST}")

    def _reached(self, passed: int, failed: int) -> Conclusion | None:
        """The conclusion that the evidence allows at this point."""
        wanted = -math.log1p(-self.confidence)
        if log_evidence(passed, failed, self.bound) >= wanted:
            return "above"
        if log_evidence(failed, passed, 1 - self.bound) >= wanted:
            return "below"
        return None

    def conclude(self, verdicts: Iterable[bool]) -> Decision | None:
        """What follows from the verdicts (True is PASS) in their order; None: more attempts are needed.

        The first conclusion stands, whatever comes after it. ``undecided`` is the conclusion when not even
        attempts that all agree could lead to another one within `most`.
        """
        passed = failed = 0
        found = self._at(passed, failed)
        for verdict in verdicts:
            if found is not None:
                break
            passed, failed = passed + verdict, failed + (not verdict)
            found = self._at(passed, failed)
        return found

    def _at(self, passed: int, failed: int) -> Decision | None:
        reached = self._reached(passed, failed)
        if reached is not None:
            return Decision(reached, passed, failed)
        # The evidence grows with every attempt that agrees with it, so these two are the best cases.
        left = self.most - passed - failed
        hope = self._reached(passed + left, failed) or self._reached(passed, failed + left)
        return None if hope else Decision("undecided", passed, failed)


@dataclass(frozen=True, slots=True)
class Decision:
    """What was concluded, from how many passes and fails."""

    conclusion: Conclusion
    passed: int
    failed: int

    @property
    def after(self) -> int:
        """Attempts with a verdict that were needed."""
        return self.passed + self.failed


@lru_cache(maxsize=100_000)
def log_evidence(agreeing: int, other: int, bound: float) -> float:
    """The natural logarithm of E(s, f) for a probability above `bound`."""
    s, f = agreeing, other
    total = s + f
    # Of the even half: integral over (p, 1) of q^s (1-q)^f = Beta(s+1, f+1) P(Bin(n+1, p) <= s).
    beta = math.lgamma(s + 1) + math.lgamma(f + 1) - math.lgamma(total + 2)
    even = beta + _log_tail(s, total + 1, bound) - math.log(1 - bound)
    even -= s * math.log(bound) + f * math.log1p(-bound)
    if f:
        return even - math.log(2)
    certain = -s * math.log(bound)
    high, low = max(certain, even), min(certain, even)
    return high + math.log1p(math.exp(low - high)) - math.log(2)


def _log_tail(most: int, trials: int, p: float) -> float:
    """The logarithm of the probability of at most `most` successes."""
    terms = [
        math.lgamma(trials + 1)
        - math.lgamma(i + 1)
        - math.lgamma(trials - i + 1)
        + i * math.log(p)
        + (trials - i) * math.log1p(-p)
        for i in range(most + 1)
    ]
    high = max(terms)
    return high + math.log(math.fsum(math.exp(term - high) for term in terms))


def in_order(statuses: Mapping[int, str]) -> list[bool]:
    """The verdicts by attempt number, up to the first attempt that is not settled; ERRORs say nothing.

    Attempts that settle early are not looked at before those with smaller numbers: fails may be faster
    than passes, and the order must not depend on the outcome.
    """
    found = []
    number = 1
    while (status := statuses.get(number)) is not None:
        if status in ("PASS", "FAIL"):
            found.append(status == "PASS")
        number += 1
    return found
