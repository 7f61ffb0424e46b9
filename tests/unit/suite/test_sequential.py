"""Sequential stopping: its error rate, exactly and by simulation; what is concluded, and when."""

from __future__ import annotations

import math
import random
from collections import defaultdict

import pytest

from pytest_ageval.errors import ConfigError
from pytest_ageval.options import parse_attempts
from pytest_ageval.suite.sequential import Rule, in_order, log_evidence

RATES = (0.0, 0.05, 0.2, 0.4, 0.49, 0.5, 0.51, 0.6, 0.8, 0.95, 1.0)


def exactly(rule: Rule, rate: float) -> tuple[dict[str, float], float]:
    """The probability of each conclusion, and the mean number of attempts, over all paths."""
    open_: dict[tuple[int, int], float] = {(0, 0): 1.0}
    found: dict[str, float] = defaultdict(float)
    mean = 0.0
    while open_:
        following: dict[tuple[int, int], float] = defaultdict(float)
        for (passed, failed), weight in open_.items():
            decision = rule._at(passed, failed)
            if decision is not None:
                found[decision.conclusion] += weight
                mean += weight * decision.after
                continue
            following[passed + 1, failed] += weight * rate
            following[passed, failed + 1] += weight * (1 - rate)
        open_ = following
    return found, mean


@pytest.mark.parametrize("bound", [0.5, 0.8, 0.1])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_a_wrong_conclusion_is_at_most_as_likely_as_stated(bound: float, confidence: float) -> None:
    rule = Rule(bound, confidence, 80)
    for rate in (*RATES, bound, bound - 1e-6):
        found, _ = exactly(rule, rate)
        wrong = found["below"] if rate >= bound else found["above"]
        assert wrong <= 1 - confidence
        assert math.isclose(sum(found.values()), 1.0)


def test_the_error_rate_by_simulation() -> None:
    """As a run does it: attempts one after another, stopped by `conclude`. The hardest rate: the bound."""
    rule = Rule(0.5, 0.9, 60)
    dice = random.Random(20260131)
    runs, wrong = 3000, 0
    for _ in range(runs):
        verdicts: list[bool] = []
        while (decision := rule.conclude(verdicts)) is None:
            verdicts.append(dice.random() < 0.4999)
        wrong += decision.conclusion == "above"
        assert decision.after == len(verdicts) <= 60
    expected, _ = exactly(rule, 0.4999)
    assert wrong / runs == pytest.approx(expected["above"], abs=3.5 * math.sqrt(0.1 * 0.9 / runs))
    assert wrong / runs < 0.1


def test_clear_cases_need_few_attempts() -> None:
    rule = Rule(0.5, 0.95, 20)
    assert rule.conclude([True] * 4) is None
    decision = rule.conclude([True] * 5 + [False] * 15)
    assert decision is not None
    assert (decision.conclusion, decision.after) == ("above", 5)
    decision = rule.conclude([False] * 20)
    assert decision is not None
    assert (decision.conclusion, decision.after) == ("below", 5)
    found, mean = exactly(rule, 0.95)
    assert found["above"] > 0.99
    assert mean < 7.5


def test_what_can_no_more_be_decided_is_given_up() -> None:
    rule = Rule(0.5, 0.95, 10)
    decision = rule.conclude([True, False] * 5)
    assert decision is not None
    assert decision.conclusion == "undecided"
    assert decision.after < 10
    passed, failed = decision.passed, decision.failed
    left = 10 - decision.after
    for more in ([True] * left, [False] * left):
        longer = Rule(0.5, 0.95, 11).conclude([True] * passed + [False] * failed + more)
        assert longer is None or longer.conclusion == "undecided"


def test_the_evidence_is_the_integral_that_is_documented() -> None:
    def integral(s: int, f: int, p: float, steps: int = 20_000) -> float:
        width = (1 - p) / steps
        qs = (p + (i + 0.5) * width for i in range(steps))
        even = sum((q / p) ** s * ((1 - q) / (1 - p)) ** f for q in qs) * width / (1 - p)
        return 0.5 * even + (0.5 * p**-s if f == 0 else 0.0)

    for s, f, p in ((0, 0, 0.5), (5, 0, 0.5), (3, 2, 0.5), (9, 4, 0.7), (0, 6, 0.2), (30, 12, 0.6)):
        assert math.exp(log_evidence(s, f, p)) == pytest.approx(integral(s, f, p), rel=1e-5)


def test_attempts_are_looked_at_in_the_order_of_their_numbers() -> None:
    assert in_order({2: "FAIL", 3: "FAIL", 4: "FAIL"}) == []
    assert in_order({1: "PASS", 2: "ERROR", 3: "FAIL", 5: "PASS"}) == [True, False]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"most": 4}, "at least 5 attempts are needed"),
        ({"most": 0}, "takes 1 to 1000"),
        ({"most": 1001}, "takes 1 to 1000"),
        ({"bound": 0.0}, "--pass-bound must be above 0"),
        ({"bound": 1.0}, "--pass-bound must be above 0"),
        ({"confidence": 1.0}, "--confidence must be"),
        ({"confidence": 0.2}, "--confidence must be"),
    ],
)
def test_rules_that_cannot_be_meant(options: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Rule(**options)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_the_option() -> None:
    found = [parse_attempts(given) for given in (None, 3, "3", "auto", "auto:7")]
    assert found == [(1, False), (3, False), (3, False), (20, True), (7, True)]
