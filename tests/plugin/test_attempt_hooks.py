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


def test_a_hook_may_refuse_a_session_and_the_work_is_graded(demo, key):
    demo.pytester.makeconftest(
        """
        from pytest_ageval import ExecutorError

        def pytest_ageval_before_agent_open(attempt):
            raise ExecutorError("not_today", "closed on Mondays")
        """
    )
    with ScriptedModel([Text("42")]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        demo.pytest("datasets").assert_outcomes(failed=1)
    (attempt,) = demo.attempts()
    assert json.loads((attempt / "task-artifacts" / "reply.json").read_text())["error"] == "not_today"


@pytest.mark.parametrize("slot", ["before_agent_open", "before_environment", "before_evaluate"])
@pytest.mark.parametrize(
    "escape", ["sys.exit('bad config')", "pytest.skip('not now')", "raise KeyboardInterrupt"]
)
def test_a_hook_cannot_end_the_run_or_hide_the_task(demo, key, slot, escape):
    demo.pytester.makeconftest(f"import sys, pytest\ndef pytest_ageval_{slot}(attempt):\n    {escape}\n")
    with ScriptedModel([Text("42")]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("a", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        demo.task("b", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        result = demo.pytest("datasets", timeout=60)
    outcomes = result.parseoutcomes()
    assert sum(outcomes.values()) == 2
    assert "skipped" not in outcomes
    assert "passed" not in outcomes


def test_an_executor_that_exits_is_an_error_and_the_next_attempt_runs(demo):
    demo.pytester.makeconftest(
        """
        from ageval_executors.nop import NopExecutor

        class Exits(NopExecutor):
            kind = "exits"
            async def invoke(self, prompt, **more):
                raise SystemExit("enough")

        def pytest_ageval_executors():
            return {"exits": Exits}
        """
    )
    demo.task("a", run=ASK, roles=(ROLES,), more=ONE, evaluator=JUDGE)
    demo.task("b", run=ASK, roles=(ROLES,), more=ONE, evaluator=JUDGE)
    demo.pytest("datasets", "--agent", "exits", timeout=60).assert_outcomes(errors=2)
    assert {row["error"]["title"] for row in demo.results()} == {"exit_refused"}


def test_what_a_listener_returns_means_nothing(demo):
    demo.pytester.makeconftest(
        """
        def pytest_ageval_environment_setup(attempt):
            return attempt.box.exec(["true"])
        """
    )
    task = demo.task(
        "t",
        evaluator=(
            "import pathlib\ndef evaluate(inputs):\n"
            "    there = pathlib.Path(inputs['workspace_dir'], 'made').exists()\n"
            "    return {'status': 'PASS' if there else 'FAIL'}\n"
        ),
    )
    (task / "environment").mkdir()
    (task / "environment" / "setup.sh").write_text("touch ../workspace/made\n")
    demo.pytest("datasets").assert_outcomes(passed=1)


def test_a_wrapper_that_forgets_to_return_is_told_so(demo, key):
    demo.pytester.makeconftest(
        """
        import pytest

        @pytest.hookimpl(wrapper=True)
        def pytest_ageval_before_agent_invoke(attempt, value):
            yield
        """
    )
    with ScriptedModel([Text("42")]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        demo.pytest("datasets").assert_outcomes(errors=1)
    assert only(demo)["error"]["title"] == "plugin_contract"


@pytest.mark.parametrize(
    "deed",
    [
        "attempt.verdict.status = 'PASS'",
        "attempt.verdict = None",
        "attempt.error = None",
        "object.__setattr__(attempt.verdict.raw, 'x', 1)",
    ],
)
def test_a_bound_verdict_cannot_be_touched(demo, deed):
    demo.pytester.makeconftest(
        f"def pytest_ageval_summary_enrich(attempt, value):\n    {deed}\n"
        f"def pytest_ageval_cleanup_report(attempt, value):\n    {deed}\n"
    )
    demo.task("t", evaluator="def evaluate(inputs):\n    return {'status': 'FAIL', 'score': 0.0}\n")
    demo.pytest("datasets").assert_outcomes(failed=1)
    assert (only(demo)["status"], only(demo)["score"]) == ("FAIL", 0.0)


def test_a_hook_that_never_returns_does_not_keep_the_process(demo):
    demo.pytester.makeconftest(
        "import time\ndef pytest_ageval_before_environment(attempt):\n    time.sleep(600)\n"
    )
    demo.task("t", more="limits: {environment_seconds: 1}")
    demo.pytest("datasets", timeout=60).assert_outcomes(errors=1)
    assert only(demo)["error"]["title"] == "environment_timeout"


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
