"""The five phases, seen from outside: what a task's scripts do, and what the attempt comes to."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from pytest_ageval.testing.scripted_model import HttpError, ScriptedModel, Text

ROLES = "solver"
PROFILES = """
format: ageval.profiles/1
environment: local
agent_profiles:
  "*":
    executor: openai-http
    base_url: {url}
    api_key: ${{PROBE_KEY}}
    model: {{id: scripted}}
    options: {{upstream_stall_seconds: {stall}}}
"""
KEY = "sk-probe-0123456789abcdef"

ASK = """
async def run(ctx):
    session = ctx.agent.session("solver")
    reply = await session.invoke("What is 6 times 7?")
    ctx.publish_json("reply", {"text": reply["text"], "ok": reply["ok"], "error": reply["error"]})
"""
JUDGE = """
import json, pathlib
def evaluate(inputs):
    reply = json.loads(pathlib.Path(inputs["artifacts"]["reply"]).read_text())
    passed = "42" in reply["text"]
    return {"status": "PASS" if passed else "FAIL", "score": float(passed)}
"""
ONE = "artifacts: {publishable: [{id: reply, path: reply.json}]}\n"


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PROBE_KEY", KEY)
    return KEY


def only(demo: Any) -> dict[str, Any]:
    (found,) = demo.results()
    return found


def facts(demo: Any) -> dict[str, list[Any]]:
    (attempt,) = demo.attempts()
    found: dict[str, list[Any]] = {}
    for row in json.loads((attempt / "summary.json").read_text())["facts"]:
        found.setdefault(row["name"], []).append(row.get("detail"))
    return found


# -- verdicts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "phase", "title"),
    [
        ("raise KeyError('boom')", "evaluate", "KeyError"),
        ("return None", "evaluate", "evaluator_no_verdict"),
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


def test_a_role_that_is_misspelled_on_the_command_line_is_a_usage_error(demo):
    demo.task("t", roles=("writer",))
    result = demo.pytest("datasets", "--agent", "writter=nop")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no task has a role 'writter'*", "*did you mean 'writer'?*"])


# -- limits ----------------------------------------------------------------------------------------


def test_a_run_that_is_too_long_is_ended_with_all_it_started_and_graded(demo, tmp_path):
    tick = tmp_path / "tick"
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
    demo.pytest("datasets").assert_outcomes(passed=1)
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


# -- agents and providers --------------------------------------------------------------------------


def test_every_prompt_goes_out_after_the_true_history(demo, key):
    run = """
        async def run(ctx):
            session = ctx.agent.session("solver")
            for turn in range(3):
                reply = await session.invoke(f"question {turn}; the access token: PASSPHRASE42")
            ctx.publish_json("reply", {"text": reply["text"]})
    """
    with ScriptedModel([Text("a"), Text("b"), Text("42 " + "x" * 20_000)]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=run, evaluator=JUDGE, roles=(ROLES,), more=ONE + "limits: {agent_invocations: 3}")
        demo.pytest("datasets").assert_outcomes(passed=1)
        sent = [m["content"] for m in model.requests[-1].body["messages"]]
    question = "question {}; the access token: PASSPHRASE42"
    assert sent == [question.format(0), "a", question.format(1), "b", question.format(2)]
    (attempt,) = demo.attempts()
    reply = json.loads((attempt / "task-artifacts" / "reply.json").read_text())
    assert len(reply["text"]) == 20_003, "replies reach the task whole"


def test_a_provider_that_comes_back_is_waited_for_with_the_clock_standing_still(demo, key):
    with ScriptedModel([HttpError(503, retry_after=2, times=1), Text("42")]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=60))
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE + "limits: {wall_time_seconds: 2}")
        demo.pytest("datasets").assert_outcomes(passed=1)
    assert only(demo)["limit"] is None
    (stall,) = facts(demo)["upstream_stall"]
    assert stall["reason"].startswith("HTTPError:503")
    assert stall["waited_seconds"] >= 2


@pytest.mark.parametrize("status", [401, 429, 500])
def test_a_provider_that_stays_away_is_an_error_and_never_a_score(demo, key, status):
    with ScriptedModel([HttpError(status)]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        result = demo.pytest("datasets")
    result.assert_outcomes(errors=1)
    found = only(demo)
    assert (found["status"], found["score"]) == ("ERROR", None)
    assert found["error"]["phase"] == "run"
    assert str(status) in found["error"]["title"]
    result.stdout.fnmatch_lines(["*0/1*n/a*"])


def test_a_pass_stands_although_one_of_two_providers_failed(demo, key):
    run = """
        async def run(ctx):
            bad = await ctx.agent.session("solver").invoke("fail")
            good = await ctx.agent.session("solver").invoke("work")
            ctx.publish_json("reply", {"text": good["text"], "bad": bad["error"]})
    """
    with ScriptedModel(by=lambda r: HttpError(400) if r.prompt == "fail" else Text("42")) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=run, evaluator=JUDGE, roles=(ROLES,), more=ONE + "limits: {agent_invocations: 2}")
        demo.pytest("datasets").assert_outcomes(passed=1)


def test_a_judge_has_no_quota_and_its_prompt_stays_private(demo, key):
    evaluator = """
        async def evaluate(inputs):
            judge = inputs["agent"].session("judge")
            for _ in range(3):
                reply = await judge.invoke("GOLD-ANSWER-42: is it right?")
            return {"status": "PASS" if reply["text"] == "yes" else "FAIL"}
    """
    with ScriptedModel([Text("yes")] * 4) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=ASK, evaluator=evaluator, roles=(ROLES, "judge"))
        result = demo.pytest("datasets", "--junitxml=j.xml", "-rA")
    result.assert_outcomes(passed=1)
    (attempt,) = demo.attempts()
    holders = [
        str(path.relative_to(attempt))
        for path in attempt.rglob("*")
        if path.is_file() and b"GOLD-ANSWER-42" in path.read_bytes()
    ]
    assert all(name.startswith("evaluation/private/") for name in holders), holders
    assert "GOLD-ANSWER" not in result.stdout.str()
    assert "GOLD-ANSWER" not in (demo.pytester.path / "j.xml").read_text()


def test_a_key_is_nowhere_in_the_evidence(demo, key):
    run = """
        async def run(ctx):
            reply = await ctx.agent.session("solver").invoke("say your key")
            print("the key is", reply["text"])
            ctx.publish_json("reply", {"text": reply["text"]})
            (ctx.workspace_root / "copy.txt").write_text(reply["text"])
    """
    more = "artifacts: {publishable: [{id: reply, path: reply.json}, {id: copy, path: copy.txt}]}\n"
    with ScriptedModel([Text(f"42 {KEY}", pieces=9)]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=run, evaluator=JUDGE, roles=(ROLES,), more=more)
        result = demo.pytest("datasets", "--junitxml=j.xml", "--html=h.html", "--self-contained-html", "-rA")
    result.assert_outcomes(passed=1)
    reports = [demo.pytester.path / "j.xml", demo.pytester.path / "h.html"]
    files = [*demo.attempts()[0].rglob("*"), *reports]
    assert [p for p in files if p.is_file() and KEY.encode() in p.read_bytes()] == []
    assert KEY not in result.stdout.str() + result.stderr.str()
    copy = demo.attempts()[0] / "task-artifacts" / "copy.txt"
    assert copy.read_text() == "42 [REDACTED:PROBE_KEY]"


# -- gold and artifacts ----------------------------------------------------------------------------

LOOK = """
import subprocess
def run(ctx):
    found = subprocess.run(["find", "/", "-name", "expected-7f3a.json", "-not", "-path", "/proc/*"],
                           capture_output=True, text=True).stdout
    ctx.publish_json("reply", {"text": found})
"""


def test_gold_is_not_in_the_box_before_the_agent_has_stopped(demo):
    demo.pytester.makeconftest(
        """
        def look(attempt):
            done = attempt.box.exec(["sh", "-c", "ls /attempt; find / -name expected-7f3a.json 2>/dev/null"])
            attempt.fact("looked", {"text": done.stdout})

        def pytest_ageval_after_environment(attempt): look(attempt)
        def pytest_ageval_before_evaluate(attempt): look(attempt)
        """
    )
    task = demo.task("t")
    (task / "evaluation").mkdir()
    (task / "evaluation" / "expected-7f3a.json").write_text("{}")
    (task / "solution").mkdir()
    (task / "solution" / "expected-7f3a.json").write_text("{}")
    demo.pytest("datasets", "--box", "local", "--box-option", "isolation=bwrap").assert_outcomes(passed=1)
    before, after = (row["text"] for row in facts(demo)["looked"])
    assert "expected-7f3a" not in before + after
    assert "evaluation" not in before + after


def test_a_link_to_the_gold_is_not_followed(demo):
    task = demo.task(
        "t",
        evaluator="""
            import pathlib
            def evaluate(inputs):
                gold = pathlib.Path(inputs["evaluation_dir"], "gold.txt").read_text()
                places = [pathlib.Path(inputs["workspace_dir"], "answer.txt"),
                          pathlib.Path(inputs["artifacts"].get("answer", "/nowhere"))]
                same = any(p.is_file() and p.read_text() == gold for p in places)
                return {"status": "PASS" if same else "FAIL"}
        """,
        run="""
            import os, pathlib
            def run(ctx):
                gold = pathlib.Path(ctx.task_root, "evaluation", "gold.txt")
                os.symlink(gold, ctx.workspace_root / "answer.txt")
        """,
        more="artifacts: {publishable: [{id: answer, path: answer.txt}]}\n",
    )
    (task / "evaluation").mkdir()
    (task / "evaluation" / "gold.txt").write_text("secret answer")
    demo.pytest("datasets").assert_outcomes(failed=1)
    assert "links_to_hidden_files" in only(demo)["flags"]


def test_an_evaluator_cannot_change_the_data_set(demo):
    task = demo.task(
        "t",
        evaluator="""
            import pathlib
            def evaluate(inputs):
                gold = pathlib.Path(inputs["evaluation_dir"], "gold.txt")
                gold.chmod(0o644)
                gold.write_text("changed")
                return {"status": "PASS"}
        """,
    )
    (task / "evaluation").mkdir()
    (task / "evaluation" / "gold.txt").write_text("original")
    demo.pytest("datasets").assert_outcomes(passed=1)
    assert (task / "evaluation" / "gold.txt").read_text() == "original"


def test_artifacts_are_harvested_by_the_rules(demo):
    run = """
        def run(ctx):
            ws = ctx.workspace_root
            (ws / "report.md").write_text("r")
            (ws / "out" / "deep").mkdir(parents=True)
            (ws / "out" / "deep" / "a.pyc").write_text("x")
            (ws / "out" / "b.txt").write_text("b")
            (ws / "bin").write_bytes(bytes(range(256)))
    """
    more = """
        artifacts:
          publishable:
            - {id: rep, path: nested/report.md}
            - {id: tree, path: workspace/out, kind: tree, exclude: ["*.pyc"]}
            - {id: raw, path: bin}
            - {id: gone, path: gone.txt}
    """
    demo.task("t", run=run, more=dedent(more))
    demo.pytest("datasets").assert_outcomes(passed=1)
    (attempt,) = demo.attempts()
    found = attempt / "task-artifacts"
    assert (found / "rep.md").read_text() == "r"
    assert sorted(p.name for p in (found / "tree").rglob("*")) == ["b.txt", "deep"]
    assert (found / "raw.json").read_bytes() == bytes(range(256))
    assert facts(demo)["artifacts_harvested"] == [
        {"missing": ["gone"], "pulled": ["rep", "tree", "raw"], "skipped": []}
    ]


def test_evaluation_collect_and_scoring_exec(demo):
    evaluator = """
        async def evaluate(inputs):
            command = "cat new.txt; cat $AGEVAL_EVALUATION/g; exit 3"
            done = await inputs["scoring"].exec("main", ["sh", "-c", command])
            passed = (done.exit_code, done.stdout) == (3, "collectedgold")
            return {"status": "PASS" if passed else "FAIL", "metrics": {"seen": done.stdout}}
    """
    more = """
        evaluation:
          collect:
            - {command: "printf collected > new.txt"}
            - {path: /attempt/workspace/new.txt}
    """
    task = demo.task("t", evaluator=evaluator, more=dedent(more))
    (task / "evaluation").mkdir()
    (task / "evaluation" / "g").write_text("gold")
    demo.pytest("datasets").assert_outcomes(passed=1)
    (attempt,) = demo.attempts()
    assert (attempt / "verifier-collect" / "entries" / "1" / "new.txt").read_text() == "collected"
    manifest = json.loads((attempt / "verifier-collect" / "manifest.json").read_text())
    assert [row["index"] for row in manifest["entries"]] == [1]


# -- hooks -----------------------------------------------------------------------------------------


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


# -- the end ---------------------------------------------------------------------------------------


def test_nothing_is_left_behind(demo, scratch):
    demo.task("good")
    demo.task("bad", run="def run(ctx): 1 / 0\n")
    demo.pytest("datasets").assert_outcomes(passed=1, errors=1)
    assert [p for p in scratch.rglob("*") if p.is_file()] == []


def test_keep_workspace_leaves_the_box(demo, scratch):
    demo.task("t")
    demo.pytest("datasets", "--keep-workspace").assert_outcomes(passed=1)
    (kept,) = scratch.rglob("answer.txt")
    assert kept.read_text() == "42"
    assert only(demo)["workspace"] == str(kept.parent)


def test_what_the_cleanup_found_is_in_the_summary(demo):
    demo.pytester.makeconftest(
        """
        def pytest_ageval_cleanup_report(attempt, value):
            return [*value, {"name": "mine", "detail": {"seen": len(value)}}]
        """
    )
    demo.task("t")
    demo.pytest("datasets").assert_outcomes(passed=1)
    assert facts(demo)["environment_stopped"] == [{"deleted": True}]
    assert facts(demo)["mine"] == [{"seen": 1}]
    (attempt,) = demo.attempts()
    timing = json.loads((attempt / "summary.json").read_text())["phase_timing"]
    assert [row["id"] for row in timing["phases"]][:4] == ["environment", "run", "evaluate", "record"]


def test_the_lock_is_in_the_evidence_and_its_digest_in_the_result(demo):
    demo.task("t")
    demo.pytest("datasets")
    (attempt,) = demo.attempts()
    lock = json.loads((attempt / "lock.json").read_text())
    assert lock["digest"] == only(demo)["digest"]
    assert lock["locked"]["limits"]["wall_time_seconds"] == 300


def test_human_notes_do_not_change_the_digest_and_all_else_does(demo):
    task = demo.task("t", more="description: one")
    digests = []

    def run():
        demo.pytest("datasets")
        digests.append(demo.results()[-1]["digest"] if len(demo.attempts()) == 1 else None)
        for attempt in demo.attempts():
            shutil.rmtree(attempt)

    file = task / "task.yaml"
    run()
    file.write_text(file.read_text().replace("description: one", "# a comment\ndescription: two"))
    run()
    file.write_text(file.read_text() + "\nlimits: {wall_time_seconds: 299}\n")
    run()
    (task / "evaluator.py").write_text((task / "evaluator.py").read_text() + "# changed\n")
    run()
    assert None not in digests
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_the_steps_are_logged_before_their_effect(demo, key):
    with ScriptedModel([Text("42")]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        demo.pytest("datasets").assert_outcomes(passed=1)
    (attempt,) = demo.attempts()
    rows = [json.loads(line) for line in (attempt / "activity.jsonl").read_bytes().split(b"\n")[:-1]]
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    steps = [(row["kind"], row["status"]) for row in rows]
    assert steps[0] == ("phase", "in_flight")
    order = [
        ("attempt", "completed"),
        ("session", "completed"),
        ("invoke", "in_flight"),
        ("model_turn", "in_flight"),
        ("model_turn", "completed"),
        ("invoke", "completed"),
    ]
    assert [step for step in steps if step[0] in {"attempt", "session", "invoke", "model_turn"}] == order


def test_every_process_runs_without_the_callers_environment(demo, monkeypatch):
    monkeypatch.setenv("CALLERS_SECRET", "must-not-travel")
    demo.task(
        "t",
        run="import os\ndef run(ctx):\n    ctx.publish_json('env', dict(os.environ))\n",
        more="artifacts: {publishable: [{id: env, path: env.json}]}\n",
    )
    demo.pytest("datasets").assert_outcomes(passed=1)
    seen = json.loads((demo.attempts()[0] / "task-artifacts" / "env.json").read_text())
    assert "CALLERS_SECRET" not in seen
    assert set(seen) <= {"PATH", "LANG", *(name for name in seen if name.startswith("AGEVAL_"))}
    assert Path(seen["AGEVAL_WORKSPACE"]).name == "workspace"
    assert os.environ["CALLERS_SECRET"] not in json.dumps(seen)
