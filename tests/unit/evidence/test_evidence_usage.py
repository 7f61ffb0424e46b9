"""Token figures: inclusive and exclusive sources, sums with gaps."""

import pytest

from pytest_ageval.evidence import from_exclusive, from_inclusive, from_unknown, since, sum_usage
from pytest_ageval.executor import Usage


def total(usage):
    return usage.prompt_tokens + usage.completion_tokens


def test_cached_tokens_are_counted_once_whatever_the_source_means():
    inclusive = from_inclusive(113415, 990, cached=112224)
    exclusive = from_exclusive(1191, 990, cached=112224)
    assert total(inclusive) == total(exclusive) == 114405
    assert from_unknown(113415, 990, cached=112224, total=114405) == inclusive
    assert from_unknown(1191, 990, cached=112224) == exclusive  # more cached than input
    assert from_unknown(1191, 990, cached=112224, total=114405) == exclusive


def test_what_cannot_be_told_is_not_guessed():
    usage = from_unknown(1000, 50, cached=200)
    assert usage.unavailable == "ambiguous"
    assert usage.prompt_tokens is None
    assert (usage.completion_tokens, usage.cached_tokens) == (50, 200)
    assert from_inclusive(100, 5, cached=200).unavailable == "ambiguous"


def test_nothing_reported_is_not_zero():
    assert from_inclusive(None).as_dict() == {"unavailable": "not_reported"}
    assert from_unknown(10, 2).as_dict() == {"prompt_tokens": 10, "completion_tokens": 2}
    assert from_exclusive(0, 0).as_dict() == {"prompt_tokens": 0, "completion_tokens": 0}


@pytest.mark.parametrize(
    "turns",
    [
        [Usage(prompt_tokens=100), Usage(prompt_tokens=150)],
        [Usage(prompt_tokens=100), since(Usage(prompt_tokens=250), Usage(prompt_tokens=100))],
    ],
)
def test_cumulative_figures_are_not_added_twice(turns):
    assert sum_usage(turns)["prompt_tokens"] == 250


def test_a_counter_that_went_back_says_nothing_of_the_turn():
    assert since(Usage(prompt_tokens=5), Usage(prompt_tokens=9)).as_dict() == {"unavailable": "ambiguous"}
    assert since(Usage(prompt_tokens=5), None) == Usage(prompt_tokens=5)


def test_a_gap_makes_the_sum_partial():
    found = sum_usage(
        [
            Usage(prompt_tokens=10, completion_tokens=2, cost_usd=0.5),
            {"unavailable": "lost_on_timeout"},
            {"prompt_tokens": 5, "completion_tokens": 1},
        ]
    )
    assert found["prompt_tokens"] == 15
    assert found["cost_usd"] == 0.5
    assert found["cached_tokens"] is None
    assert (found["invocations"], found["without_usage"], found["partial"]) == (3, 1, True)
    assert found["incomplete"] == ["cost_usd"]


def test_the_last_known_figures_of_a_timeout_are_partial():
    found = sum_usage([Usage(prompt_tokens=250, unavailable="partial")])
    assert (found["prompt_tokens"], found["partial"]) == (250, True)


def test_a_figure_that_one_invocation_lacks_makes_the_sum_partial():
    found = sum_usage([{"prompt_tokens": 1, "completion_tokens": 1}, {"completion_tokens": 1}])
    assert found["partial"] is True


def test_no_invocation_and_nothing_known():
    assert sum_usage([])["prompt_tokens"] is None
    assert sum_usage([])["partial"] is False
    found = sum_usage([Usage(unavailable="lost_on_timeout")])
    assert found["prompt_tokens"] is None
    assert found["unavailable"] == "lost_on_timeout"
