"""A session leaves in the evidence what another process needs to continue it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ageval_executors.openai_http import OpenAIExecutor
from pytest_ageval.errors import ExecutorError
from pytest_ageval.executor import ModelSpec, Session
from pytest_ageval.testing.executor_contract import Told
from pytest_ageval.testing.scripted_model import ScriptedModel, Text, When

from .attempt_kit import JUDGE, KEY, ONE, PROFILES, ROLES

TWO_TURNS = """
async def run(ctx):
    session = ctx.agent.session("solver")
    for prompt in ("first", ctx.params["second"]):
        reply = await session.invoke(prompt)
    ctx.publish_json("reply", {"text": reply["text"]})
"""
MODEL = [When("third", [Text("three")]), When("second", [Text("42")]), When("first", [Text("one")])]


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PROBE_KEY", KEY)
    return KEY


def played(demo: Any, model: ScriptedModel, second: str = "second") -> dict[str, Any]:
    """The document of the one session of an attempt with two turns."""
    demo.profiles(PROFILES.format(url=model.base_url, stall=0))
    more = f"{ONE}limits: {{agent_invocations: 5}}\nparameters: {{second: {json.dumps(second)}}}\n"
    demo.task("t", JUDGE, TWO_TURNS, (ROLES,), more)
    demo.pytest("datasets").assert_outcomes(passed=1)
    (attempt,) = demo.attempts()
    (path,) = (attempt / "agent" / "sessions").iterdir()
    found: dict[str, Any] = json.loads(path.read_text())
    rows = [json.loads(line) for line in (attempt / "activity.jsonl").read_text().splitlines()]
    (opened,) = [row["payload"] for row in rows if row["kind"] == "session"]
    assert opened["session_id"] == found["session_id"]
    assert "native_session_id" in opened
    return found


def resumed(model: ScriptedModel, token: dict[str, Any]) -> Any:
    told = Told()

    async def run() -> Any:
        session = Session(
            session_id="s",
            role="solver",
            actor=None,
            model=ModelSpec(id="scripted"),
            base_url=model.base_url,
            api_key=KEY,
            api_key_name="PROBE_KEY",
            options={},
            box=None,
            task_root=Path("/nowhere"),
            activity=told,
            emit=lambda event: None,
            remaining=lambda: None,
            ask=told.ask,
        )
        executor = OpenAIExecutor(session)
        await executor.resume(token)
        try:
            return await executor.invoke("third")
        finally:
            await executor.close()

    return asyncio.run(run())


def test_a_session_goes_on_from_its_evidence(demo: Any, key: str) -> None:
    with ScriptedModel(MODEL) as model:
        document = played(demo, model)
        assert document["schema"] == "ageval.session/1"
        assert (document["profile_id"], document["executor_kind"]) == ("solver", "openai-http")
        assert document["turn_index"] == 2
        assert resumed(model, document["resume_token"]).text == "three"
        texts = [item.text for item in model.requests[-1].items]
    assert texts == ["first", "one", "second", "42", "third"]


def test_a_history_in_which_a_secret_was_masked_is_not_taken_for_the_true_one(demo: Any, key: str) -> None:
    """The executor knows its own key only; the evidence masks whatever has the shape of one."""
    with ScriptedModel(MODEL) as model:
        document = played(demo, model, "second ghp_0123456789abcdefghijABCDEFGHIJ012345")
        assert "ghp_0" not in json.dumps(document)
        with pytest.raises(ExecutorError) as refused:
            resumed(model, document["resume_token"])
    assert refused.value.title == "resume_token_invalid"
    assert "masking of a secret" in refused.value.message


def test_a_history_with_the_sessions_own_key_is_not_written(demo: Any, key: str) -> None:
    with ScriptedModel(MODEL) as model:
        document = played(demo, model, f"second {KEY}")
    assert (document["turn_index"], document["resume_token"]) == (2, None)
    assert KEY not in json.dumps(document)


ALONE = """
from pytest_ageval.executor import AgentResult, Executor


class Alone(Executor):
    kind = "alone"
    concurrent_sessions = False

    async def invoke(self, prompt, *, tools=None, messages=None):
        return AgentResult(text="42")


def pytest_ageval_executors():
    return {"alone": Alone}
"""
TWO_SESSIONS = """
async def run(ctx):
    first, second = (ctx.agent.session("solver", actor_id=name) for name in ("a", "b"))
    replies = [await first.invoke("x"), await second.invoke("x")]
    await first.close()
    replies.append(await ctx.agent.session("solver", actor_id="c").invoke("x"))
    ctx.publish_json("reply", {"text": " ".join(str(reply["error"] or reply["text"]) for reply in replies)})
"""


def test_an_executor_that_holds_one_session_at_a_time(demo: Any) -> None:
    demo.pytester.makeconftest(ALONE)
    demo.profiles("format: ageval.profiles/1\nenvironment: local\nagent_profiles: {'*': {executor: alone}}\n")
    demo.task("t", JUDGE, TWO_SESSIONS, (ROLES,), f"{ONE}limits: {{agent_invocations: 5}}\n")
    demo.pytest("datasets").assert_outcomes(passed=1)
    (attempt,) = demo.attempts()
    reply = json.loads((attempt / "task-artifacts" / "reply.json").read_text())
    assert reply["text"] == "42 executor_not_concurrent 42"
