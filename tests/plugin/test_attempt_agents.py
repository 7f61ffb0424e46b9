"""Agents and providers: what is sent, what is waited for, what is kept apart."""

from __future__ import annotations

import json

import pytest

from pytest_ageval.testing.scripted_model import HttpError, ScriptedModel, Text

from .attempt_kit import ASK, JUDGE, KEY, ONE, PROFILES, ROLES, facts, only


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
