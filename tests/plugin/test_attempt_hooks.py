"""The extension points, used from a conftest.py."""

from __future__ import annotations

import json

import pytest

from pytest_ageval.testing.scripted_model import ScriptedModel, Text

from .attempt_kit import ASK, JUDGE, ONE, PROFILES, ROLES, only


def test_hooks_fire_in_their_order(demo, key):
    slots = (
        *("before_environment", "after_environment_ready", "environment_setup", "after_environment"),
        *("before_run", "before_agent_open", "after_agent_open", "before_agent_invoke"),
        *("after_agent_invoke", "normalize_agent_result", "before_agent_close", "after_agent_close"),
        *("after_run", "before_evaluate", "after_evaluate", "trajectory_collect", "trajectory_enrich"),
        *("summary_enrich", "cleanup_report"),
    )
    functions = "\n".join(
        f"@pytest.hookimpl(wrapper=True)\ndef pytest_ageval_{slot}(attempt, value):\n"
        f"    print('fired', '{slot}', attempt.phase, file=LOG, flush=True)\n    return (yield)\n"
        for slot in slots
    )
    demo.pytester.makeconftest(f"import pytest\nLOG = open('fired.txt', 'a')\n{functions}")
    with ScriptedModel([Text("42")]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        demo.pytest("datasets").assert_outcomes(passed=1)
    lines = (demo.pytester.path / "fired.txt").read_text().split("\n")[:-1]
    assert tuple(line.split()[1] for line in lines) == slots


def test_hooks_change_what_travels(demo, key):
    demo.pytester.makeconftest(
        """
        import dataclasses, pytest

        @pytest.hookimpl(wrapper=True)
        def pytest_ageval_before_agent_invoke(attempt, value):
            return (yield) + " Think first."

        @pytest.hookimpl(wrapper=True)
        def pytest_ageval_normalize_agent_result(attempt, value):
            result = yield
            return dataclasses.replace(result, text=result.text.replace("forty-two", "42"))

        @pytest.hookimpl(wrapper=True)
        def pytest_ageval_after_evaluate(attempt, value):
            verdict = yield
            verdict["metrics"] = {**verdict.get("metrics", {}), "words": 6}
            return verdict

        @pytest.hookimpl(wrapper=True)
        def pytest_ageval_summary_enrich(attempt, value):
            return {**(yield), "note": "seen"}
        """
    )
    with ScriptedModel([Text("forty-two")]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        demo.pytest("datasets").assert_outcomes(passed=1)
        assert model.requests[0].prompt == "What is 6 times 7? Think first."
    assert only(demo)["metrics"] == {"words": 6}
    (attempt,) = demo.attempts()
    assert json.loads((attempt / "summary.json").read_text())["extra"] == {"note": "seen"}


@pytest.mark.parametrize(
    ("slot", "outcome"),
    [
        ("before_environment", "ERROR"),
        ("after_environment", "ERROR"),
        ("before_run", "PASS"),
        ("after_run", "PASS"),
        ("before_evaluate", "ERROR"),
        ("after_evaluate", "ERROR"),
        ("summary_enrich", "PASS"),
        ("cleanup_report", "PASS"),
    ],
)
def test_a_hook_that_raises_fails_its_phase_unless_the_slot_fails_open(demo, slot, outcome):
    demo.pytester.makeconftest(f"def pytest_ageval_{slot}(attempt):\n    raise LookupError('mine')\n")
    demo.task("t")
    demo.pytest("datasets")
    assert only(demo)["status"] == outcome
    if outcome == "ERROR":
        assert only(demo)["error"]["title"] == "LookupError"


@pytest.mark.parametrize("slot", ["before_agent_invoke", "after_agent_invoke", "normalize_agent_result"])
def test_a_hook_that_raises_around_an_invoke_is_not_an_answer_of_the_agent(demo, key, slot):
    demo.pytester.makeconftest(f"def pytest_ageval_{slot}(attempt):\n    raise LookupError('mine')\n")
    with ScriptedModel([Text("42")]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        demo.pytest("datasets").assert_outcomes(errors=1)
    assert only(demo)["error"] == {"phase": "run", "title": "LookupError", "message": "mine"}


def test_a_hook_that_refuses_a_session_says_so(demo, key):
    demo.pytester.makeconftest("def pytest_ageval_before_agent_open(attempt):\n    raise LookupError('no')\n")
    with ScriptedModel([Text("42")]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        demo.pytest("datasets").assert_outcomes(errors=1)
    assert only(demo)["error"]["title"] == "agent_open_hook_failed"


def test_a_hook_cannot_turn_a_fail_into_a_pass(demo):
    demo.pytester.makeconftest(
        """
        import pytest

        @pytest.hookimpl(wrapper=True)
        def pytest_ageval_after_evaluate(attempt, value):
            return {**(yield), "status": "PASS", "score": 1.0}
        """
    )
    demo.task("t", evaluator="def evaluate(inputs):\n    return {'status': 'FAIL', 'score': 0.0}\n")
    demo.pytest("datasets").assert_outcomes(errors=1)
    assert only(demo)["error"]["title"] == "after_evaluate_changed_verdict"
