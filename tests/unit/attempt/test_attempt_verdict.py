"""What an evaluator may return, and that nothing changes it afterwards."""

import pytest

from pytest_ageval.attempt.verdict import added_metrics, bind
from pytest_ageval.errors import EvaluatorError


def test_a_verdict_is_a_frozen_copy():
    raw = {"status": "FAIL", "score": 0.25, "metrics": {"lines": 3}, "checks": [{"id": "a"}]}
    verdict = bind(raw)
    raw["status"] = "PASS"
    raw["metrics"]["lines"] = 99
    verdict.raw["score"] = 1.0
    with pytest.raises(AttributeError, match="cannot be changed"):
        verdict.status = "PASS"
    assert (verdict.status, verdict.score, verdict.metrics) == ("FAIL", 0.25, {"lines": 3})


@pytest.mark.parametrize(
    ("raw", "title", "shown"),
    [
        (None, "evaluator_no_verdict", "None"),
        ("PASS", "evaluator_invalid_verdict", "'PASS'"),
        ({"status": "pass"}, "evaluator_invalid_status", "'pass'"),
        ({"status": None, "score": 1}, "evaluator_invalid_status", "None"),
        ({"status": "PASS", "score": float("nan")}, "evaluator_invalid_score", "nan"),
        ({"status": "PASS", "score": float("inf")}, "evaluator_invalid_score", "inf"),
        ({"status": "PASS", "score": True}, "evaluator_invalid_score", "True"),
        ({"status": "PASS", "score": "1.0"}, "evaluator_invalid_score", "'1.0'"),
        ({"status": "PASS", "metrics": [1]}, "evaluator_invalid_metrics", "[1]"),
        ({"status": "PASS", "metrics": {"a": {"b": float("nan")}}}, "evaluator_invalid_metrics", "a.b"),
        ({"status": "PASS", "checks": {"a": 1}}, "evaluator_invalid_checks", "{'a': 1}"),
    ],
)
def test_what_is_not_a_verdict_is_refused_with_the_text_seen(raw, title, shown):
    with pytest.raises(EvaluatorError) as caught:
        bind(raw)
    assert caught.value.title == title
    assert shown in caught.value.message


def test_a_refused_value_is_shown_bounded():
    with pytest.raises(EvaluatorError) as caught:
        bind({"status": "x" * 10_000})
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("status", ["fail", "failed", "FAIL", "error"])
def test_failed_checks_are_named(status):
    verdict = bind(
        {"status": "FAIL", "checks": [{"id": "ok", "status": "pass"}, {"id": "bad", "status": status}]}
    )
    assert verdict.failed_checks == ("bad",)


def test_a_hook_may_add_a_metric():
    verdict = bind({"status": "PASS", "metrics": {"a": 1}})
    assert added_metrics(verdict, {"status": "PASS", "metrics": {"a": 1, "mine": 2}}) == {"mine": 2}
    assert verdict.metrics == verdict.raw["metrics"] == {"a": 1}


@pytest.mark.parametrize(
    "after",
    [
        None,
        {"status": "FAIL", "score": 1.0, "metrics": {"a": 1}},
        {"status": "PASS", "score": 0.0, "metrics": {"a": 1}},
        {"status": "PASS", "score": 1.0, "metrics": {"a": 2}},
        {"status": "PASS", "score": 1.0, "metrics": {}},
        {"status": "PASS", "score": 1.0, "metrics": {"a": 1, "mine": float("nan")}},
    ],
)
def test_a_hook_may_change_nothing_else(after):
    verdict = bind({"status": "PASS", "score": 1.0, "metrics": {"a": 1}})
    with pytest.raises(EvaluatorError):
        added_metrics(verdict, after)
    assert (verdict.status, verdict.score, verdict.metrics) == ("PASS", 1.0, {"a": 1})
