"""Verdicts and limits: what a task's scripts do, and what the attempt comes to."""

from __future__ import annotations

import json
import time

import pytest

from pytest_ageval.testing.scripted_model import ScriptedModel, Text

from .attempt_kit import JUDGE, ONE, PROFILES, ROLES, only

# -- verdicts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "phase", "title"),
    [
        ("raise KeyError('boom')", "evaluate", "KeyError"),
        ("return None", "evaluate", "evaluator_no_verdict"),
        ("return {'status': 'PASS', 'score': 10**400}", "evaluate", "evaluator_invalid_score"),
        ("return {'status': 'pass'}", "evaluate", "evaluator_invalid_status"),
        ("return {'status': 'PASS', 'score': float('nan')}", "evaluate", "evaluator_invalid_score"),
        ("import sys; sys.exit(0)", "evaluate", "task_worker_no_result"),
        ("import os; os._exit(1)", "evaluate", "task_worker_no_result"),
        ('print(\'{"status": "PASS"}\')', "evaluate", "evaluator_no_verdict"),
        ("return {'status': 'PASS', 'metrics': {'a': object()}}", "evaluate", "TypeError"),
        ("import time; time.sleep(60)", "evaluate", "evaluate_timeout"),
    ],
)
def test_what_is_no_verdict_is_an_error(demo, body, phase, title):
    demo.task("t", evaluator=f"def evaluate(inputs):\n    {body}\n", more="limits: {evaluate_seconds: 2}")
    demo.pytest("datasets").assert_outcomes(errors=1)
    found = only(demo)
    assert (found["status"], found["score"]) == ("ERROR", None)
    assert (found["error"]["phase"], found["error"]["title"]) == (phase, title)


@pytest.mark.parametrize(
    ("body", "title"),
    [
        ("raise ValueError('x')", "ValueError"),
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
        ("import os; os._exit(3)", "task_worker_no_result"),
    ],
)
def test_a_run_script_that_breaks_is_an_error_of_the_run(demo, body, title):
    demo.task("t", run=f"def run(ctx):\n    {body}\n")
    result = demo.pytest("datasets")
    result.assert_outcomes(errors=1)
    assert only(demo)["error"]["phase"] == "run"
    assert only(demo)["error"]["title"] == title


def test_a_fault_in_a_script_is_shown_with_its_own_line(demo):
    demo.task("t", run="def run(ctx):\n    numbers = []\n    return numbers[7]  # the culprit\n")
    result = demo.pytest("datasets")
    result.stdout.fnmatch_lines(
        ["IndexError: list index out of range (run.py:3)", "*numbers[[]7[]]  # the culprit"]
    )
    result.stdout.no_fnmatch_line("*pytest_ageval/attempt*")


def test_a_failed_terminal_still_goes_to_the_evaluator(demo):
    demo.task(
        "t",
        run="from ageval_sdk import RunTerminal\ndef run(ctx):\n    return RunTerminal.failed('gave up')\n",
    )
    demo.pytest("datasets").assert_outcomes(passed=1)
    assert only(demo)["terminal"] == {"kind": "failed", "reason": "gave up"}


def test_an_evaluator_that_crashes_on_an_absent_artifact_names_it(demo):
    demo.task("t", run="def run(ctx): pass\n", evaluator=JUDGE, more=ONE)
    demo.pytest("datasets").stdout.fnmatch_lines(["KeyError*(the run did not produce: reply)"])


def test_a_fail_says_what_its_checks_found(demo):
    demo.task(
        "t",
        run="from ageval_sdk import RunTerminal\ndef run(ctx):\n    return RunTerminal.failed('gave up')\n",
        evaluator="""
            def evaluate(inputs):
                checks = [
                    {"id": "lines", "title": "three lines", "status": "FAIL", "stderr": "found 2\\nat b.txt"},
                    {"id": "name", "title": "a name", "status": "PASS"},
                    {"title": "no id", "status": "fail", "message": "x" * 5000},
                ]
                return {"status": "FAIL", "score": 0.5, "checks": checks}
        """,
    )
    result = demo.pytest("datasets", "--junitxml=j.xml")
    lines = [
        "score 0.50; failed checks: lines, no id; run.py: gave up (evidence: *)",
        "  lines: three lines",
        "    found 2",
        "    at b.txt",
        "  no id",
        "    xxx*...",
    ]
    result.stdout.fnmatch_lines(lines, consecutive=True)
    result.stdout.fnmatch_lines(
        ["FAILED *::t* - TaskFailed: score 0.50; failed checks: lines, no id; run.py: gave up *"]
    )
    assert "found 2" in (demo.pytester.path / "j.xml").read_text()


def test_a_fail_names_the_artifacts_that_are_not_there(demo):
    demo.task(
        "t",
        run="def run(ctx): pass\n",
        evaluator="def evaluate(inputs):\n    return {'status': 'FAIL', 'score': 0.0}\n",
        more=ONE,
    )
    demo.pytest("datasets").stdout.fnmatch_lines(["score 0.00; not produced: reply (evidence: *)"])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("evaluator.py", "def evaluate(inputs)\n    pass\n", "SyntaxError: expected ':' (*evaluator.py:1)"),
        ("evaluator.py", "def evalute(inputs):\n    pass\n", "no function 'evaluate' is defined here (*"),
        ("run.py", "def rum(ctx):\n    pass\n", "no function 'run' is defined here (*run.py)"),
    ],
)
def test_a_slip_in_a_script_costs_nothing(demo, name, text, said):
    task = demo.task("t")
    (task / name).write_text(text)
    result = demo.pytest("datasets")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"invalid_script: {said}"])
    assert demo.attempts() == [], "nothing was started"


def test_a_role_that_the_task_does_not_declare_is_an_error_of_the_task(demo, key):
    run = """
        async def run(ctx):
            reply = await ctx.agent.session("solvr").invoke("hello")
    """
    with ScriptedModel([Text("42")]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=run, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        result = demo.pytest("datasets")
    result.assert_outcomes(errors=1)
    assert only(demo)["error"]["title"] == "unknown_profile"
    result.stdout.fnmatch_lines(["*asks for the role 'solvr'*did you mean 'solver'?"])


def test_a_role_that_is_misspelled_on_the_command_line_is_a_usage_error(demo):
    demo.task("t", roles=("writer",))
    result = demo.pytest("datasets", "--agent", "writter=nop")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no task has a role 'writter'*", "*did you mean 'writer'?*"])


# -- limits ----------------------------------------------------------------------------------------


def test_a_run_that_is_too_long_is_ended_with_all_it_started_and_graded(demo, tmp_path):
    tick = tmp_path / "tick"  # outside of what a contained script may write
    run = f"""
        import subprocess, time
        def run(ctx):
            (ctx.workspace_root / "answer.txt").write_text("42")
            subprocess.Popen(["bash", "-c", "trap '' TERM; while :; do date >> {tick}; sleep .1; done"],
                             start_new_session=True)
            time.sleep(60)
    """
    demo.task("t", run=run, more="limits: {wall_time_seconds: 1}")
    started = time.monotonic()
    demo.pytest("datasets", "--trust-tasks").assert_outcomes(passed=1)
    assert time.monotonic() - started < 30
    found = only(demo)
    assert (found["limit"], found["agent_status"]) == ("wall_time_seconds", "timeout")
    size = tick.stat().st_size
    time.sleep(0.5)
    assert tick.stat().st_size == size


def test_a_child_that_holds_the_output_open_does_not_hold_the_run(demo):
    run = """
        import subprocess
        def run(ctx):
            subprocess.Popen(["sleep", "600"], start_new_session=True)
    """
    demo.task("t", run=run, more="limits: {wall_time_seconds: 20}")
    started = time.monotonic()
    demo.pytest("datasets").assert_outcomes(passed=1)
    assert time.monotonic() - started < 15
    assert only(demo)["limit"] is None


def test_more_invokes_than_allowed_are_refused_and_the_work_is_graded(demo, key):
    run = """
        async def run(ctx):
            session = ctx.agent.session("solver")
            replies = [await session.invoke("again") for _ in range(3)]
            ctx.publish_json("reply", {"text": replies[0]["text"], "third": replies[2]["error"]})
    """
    with ScriptedModel([Text("42"), Text("43"), Text("44")]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=run, evaluator=JUDGE, roles=(ROLES,), more=ONE + "limits: {agent_invocations: 2}")
        demo.pytest("datasets").assert_outcomes(passed=1)
        assert len(model.requests) == 2
    found = only(demo)
    assert (found["limit"], found["agent_invocations"]) == ("agent_invocations", 2)
    (attempt,) = demo.attempts()
    reply = json.loads((attempt / "task-artifacts" / "reply.json").read_text())
    assert reply["third"] == "agent_invocation_limit"


def test_an_environment_that_is_not_ready_in_time_is_an_error(demo):
    task = demo.task("t", more="limits: {environment_seconds: 1}")
    (task / "environment").mkdir()
    (task / "environment" / "setup.sh").write_text("sleep 60\n")
    demo.pytest("datasets").assert_outcomes(errors=1)
    assert only(demo)["error"]["title"] == "environment_timeout"
    (attempt,) = demo.attempts()
    assert (attempt / "trajectory.jsonl").exists(), "recorded although the environment failed"


def test_a_setup_script_that_fails_says_why(demo):
    task = demo.task("t")
    (task / "environment").mkdir()
    (task / "environment" / "setup.sh").write_text("test -f seed.sql || echo no seed >&2\nexit 4\n")
    result = demo.pytest("datasets")
    result.stdout.fnmatch_lines(
        ["environment_setup_failed: environment/setup.sh exited 4", "no seed"], consecutive=True
    )
