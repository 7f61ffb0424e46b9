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


def test_a_role_that_recovered_is_graded_as_it_answered(demo, key):
    run = """
        async def run(ctx):
            first = await ctx.agent.session("solver").invoke("down")
            second = await ctx.agent.session("solver").invoke("up")
            ctx.publish_json("reply", {"text": second["text"], "first": first["error"]})
    """
    with ScriptedModel(by=lambda r: HttpError(503) if r.prompt == "down" else Text("wrong")) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=run, evaluator=JUDGE, roles=(ROLES,), more=ONE + "limits: {agent_invocations: 2}")
        demo.pytest("datasets").assert_outcomes(failed=1)
    assert only(demo)["score"] == 0.0


def test_a_session_that_waits_does_not_stop_the_clock_of_one_that_works(demo, key):
    run = """
        import asyncio
        async def run(ctx):
            async def ask(prompt):
                return await ctx.agent.session("solver", actor_id=prompt).invoke(prompt)
            replies = await asyncio.gather(ask("down"), ask("slow"))
            ctx.publish_json("reply", {"text": replies[1]["text"]})
    """

    def answer(request):
        if request.prompt == "down":
            return HttpError(503, retry_after=20, times=None)
        return Text("42" * 20, pieces=40, pause=0.3)

    more = ONE + "limits: {agent_invocations: 2, agent_concurrency: 2, wall_time_seconds: 3}"
    with ScriptedModel(by=answer) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=30))
        demo.task("t", run=run, evaluator=JUDGE, roles=(ROLES,), more=more)
        demo.pytest("datasets", timeout=60)
    assert only(demo)["limit"] == "wall_time_seconds"


def test_an_invoke_that_waited_for_its_session_is_refused_when_it_was_closed(demo, key):
    run = """
        import asyncio
        async def run(ctx):
            session = ctx.agent.session("solver")
            invokes = [asyncio.ensure_future(session.invoke(f"turn {n}")) for n in range(3)]
            await asyncio.sleep(3)
            await session.close()
            replies = await asyncio.gather(*invokes, return_exceptions=True)
            errors = [r["error"] if isinstance(r, dict) else type(r).__name__ for r in replies]
            ctx.publish_json("reply", {"text": "42", "errors": errors})
    """
    with ScriptedModel([Text("42" * 20, pieces=40, pause=0.3)] * 3) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=run, evaluator=JUDGE, roles=(ROLES,), more=ONE + "limits: {agent_invocations: 9}")
        demo.pytest("datasets", timeout=60).assert_outcomes(passed=1)
        assert len(model.requests) == 1
    assert only(demo)["agent_invocations"] == 1


def test_a_key_that_an_executor_or_a_box_quotes_is_in_no_log_and_no_warning(demo, key):
    demo.pytester.makeconftest(
        f"""
        from ageval_boxes.local import LocalBox
        from ageval_executors.openai_http import OpenAIExecutor

        class Clumsy(OpenAIExecutor):
            kind = "clumsy"
            async def invoke(self, prompt, **more):
                raise ValueError(f"bad header {{self.session.api_key}}")

        class Sticky(LocalBox):
            kind = "sticky"
            async def stop(self, *, delete=True):
                await super().stop(delete=delete)
                raise RuntimeError("cannot remove {KEY}")

        def pytest_ageval_executors():
            return {{"clumsy": Clumsy}}

        def pytest_ageval_box_kinds():
            return {{"sticky": Sticky}}
        """
    )
    profiles = PROFILES.format(url="http://127.0.0.1:9/v1", stall=0).replace("openai-http", "clumsy")
    demo.profiles(profiles.replace("environment: local", "environment: sticky"))
    demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
    options = ["--log-file=run.log", "--log-file-level=DEBUG", "-o", "log_cli=true", "--junitxml=j.xml"]
    result = demo.pytest("datasets", *options)
    texts = [result.stdout.str(), result.stderr.str()]
    texts += [(demo.pytester.path / name).read_text() for name in ("run.log", "j.xml")]
    assert [text for text in texts if KEY in text] == []
    assert any("cannot remove [REDACTED:PROBE_KEY]" in text for text in texts)
    assert any("bad header [REDACTED:PROBE_KEY]" in text for text in texts)
