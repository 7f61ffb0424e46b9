"""mini-swe-agent's real loop: commands in the box, its prompts, its limits, failures of the provider."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from pathlib import Path

import pytest
from http_kit import KEY
from loop_kit import Bench, until

from ageval_executors.miniswe import MinisweExecutor, load
from pytest_ageval.errors import ExecutorError
from pytest_ageval.testing.scripted_model import (
    Calls,
    Delay,
    HttpError,
    ScriptedModel,
    Shell,
    Text,
    Tokens,
    ToolCall,
    When,
)

DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SUBMIT = Shell(DONE)

installed = pytest.mark.skipif(
    importlib.util.find_spec("minisweagent") is None, reason="pip install -e '.[miniswe]'"
)


@pytest.mark.skipif(importlib.util.find_spec("minisweagent") is not None, reason="it is installed")
def test_without_the_package_the_extra_is_named():
    with pytest.raises(ExecutorError, match="extra miniswe") as caught:
        load()
    assert caught.value.title == "miniswe_missing"
    assert "pip install 'pytest-ageval[miniswe]'" in (MinisweExecutor.check({}) or "")


def bench(model: ScriptedModel, tmp_path: Path, **more) -> Bench:
    wire = (more.get("options") or {}).get("wire")
    url = model.anthropic_base_url if wire == "anthropic" else model.base_url
    return Bench(MinisweExecutor, url, tmp_path, **more)


WIRES = [
    ({}, {}),
    ({"stream": False}, {}),
    ({}, {"api": "responses"}),
    ({"wire": "anthropic"}, {}),
]


@installed
@pytest.mark.parametrize(("options", "spec"), WIRES, ids=["chat", "document", "responses", "anthropic"])
def test_commands_run_in_the_box_until_the_submission(tmp_path, options, spec):
    turns = [Shell("echo 42 > answer; cat answer; echo oops >&2"), Shell(f"{DONE} && cat answer")]
    with ScriptedModel(turns, tokens=Tokens(input=100, cached=20, output=10)) as model:
        run = bench(model, tmp_path, options=options, spec=spec)

        async def work(executor, box):
            result = await executor.invoke("write 42")
            return result, (await box.exec(["cat", "answer"])).stdout

        result, written = run.run(work)
        assert [request.tools for request in model.requests] == [["bash"], ["bash"]]
    assert (result.ok, result.status, result.stop_reason) == (True, "completed", "Submitted")
    assert (result.text, written) == ("42", "42\n")
    assert "write 42" in model.requests[0].prompt
    assert '"returncode": 0' in model.requests[1].results[0]
    assert "42\\noops" in model.requests[1].results[0], "stderr is part of the output"
    assert run.outputs() == ["42\noops\n", f"{DONE.removeprefix('echo ')}\n42\n"]
    usage = result.usage
    expected = model.tokens
    assert usage.completion_tokens == 2 * expected.output
    assert usage.prompt_tokens == sum(u.prompt_tokens for u in run.called)
    assert len(run.called) == 2
    assert usage.unavailable is None
    assert KEY not in repr((run.log.events, run.log.steps, result))
    steps = [name for name, _ in run.log.steps]
    once = ["model_turn_started", "model_turn_completed", "tool_call_started", "tool_call_completed"]
    assert steps == once * 2
    assert len(run.log.of_kind("usage")) == 2


@installed
def test_home_and_environment_of_the_user_stay_as_they_were(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / "config"))
    monkeypatch.setenv("SECRET_OF_THE_HOST", "not-for-the-model")
    before = dict(os.environ)
    with ScriptedModel([Shell("env"), SUBMIT]) as model:
        bench(model, tmp_path / "work").ask("go")
    assert dict(os.environ) == before
    assert not (tmp_path / "home").exists()
    assert "not-for-the-model" not in repr([request.body for request in model.requests])


@installed
def test_a_further_prompt_goes_on_in_the_same_conversation(tmp_path):
    with ScriptedModel([Shell("echo one"), SUBMIT, Shell("echo two"), SUBMIT]) as model:
        first, second = bench(model, tmp_path).ask("first task", "second task")
    assert (first.stop_reason, second.stop_reason) == ("Submitted", "Submitted")
    rows = model.requests[2].body["messages"]
    assert [row["role"] for row in rows if row["role"] in ("system", "user")] == ["system", "user", "user"]
    assert rows[-1]["content"] == "second task"
    assert second.usage.prompt_tokens < first.usage.prompt_tokens + second.usage.prompt_tokens


@installed
def test_answer_without_a_command_is_told_so_and_three_in_a_row_end_the_turn(tmp_path):
    words = [Text("I think."), Text("I still think."), Text("And again.")]
    with ScriptedModel(words) as model:
        (result,) = bench(model, tmp_path).ask("go")
    assert (result.ok, result.status, result.stop_reason) == (True, "unknown", "RepeatedFormatError")
    assert result.text == "And again."
    assert len(model.requests) == 3
    assert "No tool calls found" in repr(model.requests[1].body["messages"][-1])
    assert model.requests[1].body["messages"][-2] == {"role": "assistant", "content": "I think."}


@installed
def test_call_that_is_not_well_formed_is_answered_and_shown_as_failed(tmp_path):
    wrong = Calls((ToolCall("bash", {"cmd": "ls"}),))
    with ScriptedModel([wrong, SUBMIT]) as model:
        run = bench(model, tmp_path)
        (result,) = run.ask("go")
    assert result.stop_reason == "Submitted"
    assert "argument in bash tool call" in repr(model.requests[1].body)
    assert [event["status"] for event in run.log.of_kind("tool")] == [
        "pending", "failed", "pending", "completed",
    ]  # fmt: skip


@installed
def test_command_that_takes_too_long_is_ended(tmp_path):
    with ScriptedModel([Shell("echo begun; sleep 60"), SUBMIT]) as model:
        started = time.monotonic()
        (result,) = bench(model, tmp_path, options={"cmd_timeout": 1}).ask("go")
    assert time.monotonic() - started < 20
    assert result.stop_reason == "Submitted"
    assert "ended after 1 seconds" in model.requests[1].results[0]
    assert "begun" in model.requests[1].results[0]


@installed
@pytest.mark.parametrize("which", ["step_limit", "budget", "cost_limit"])
def test_limits_stop_before_the_next_call(tmp_path, which):
    options = {"step_limit": 2} if which == "step_limit" else {}
    if which == "cost_limit":
        options = {"cost_limit": 0.1}
    with ScriptedModel([Shell("true")] * 4, tokens=Tokens(cost=0.06)) as model:
        run = bench(model, tmp_path, options=options)
        if which == "budget":
            run.budget = lambda: "max_cost is used up" if len(run.called) >= 2 else None
        (result,) = run.ask("go")
    assert (result.ok, result.status, result.stop_reason) == (True, "limit", which)
    assert len(model.requests) == 2


@installed
def test_cost_limit_that_cannot_be_kept_is_an_error(tmp_path):
    with ScriptedModel([Shell("true")] * 3) as model:
        (result,) = bench(model, tmp_path, options={"cost_limit": 0.1}).ask("go")
    assert (result.ok, result.infrastructure, len(model.requests)) == (False, True, 1)
    assert result.error.startswith("cost_not_reported")


@installed
def test_the_phase_that_is_over_stops_the_loop(tmp_path):
    with ScriptedModel([Shell("true")] * 3) as model:
        run = bench(model, tmp_path)
        run.remaining = lambda: 0.0 if model.requests else 100.0
        (result,) = run.ask("go")
    assert (result.ok, result.status, result.infrastructure) == (False, "timeout", False)
    assert len(model.requests) == 1


@installed
def test_failure_that_passes_is_repeated_where_the_loop_stood(tmp_path):
    turns = [Shell("echo x >> log"), HttpError(503, retry_after=7), Shell("cat log"), SUBMIT]
    with ScriptedModel(turns) as model:
        run = bench(model, tmp_path)
        down, result = run.ask("go", "go")
    assert (down.ok, down.transient, down.repeatable, down.retry_after) == (False, True, True, 7.0)
    assert (result.ok, result.stop_reason) == (True, "Submitted")
    assert run.outputs()[1] == "x\n", "the first command was not run again"
    assert result.usage.unavailable is None
    assert len(run.called) == 3


@installed
def test_failure_that_stays_is_infrastructure(tmp_path):
    with ScriptedModel([Shell("true"), HttpError(401, f"bad key {KEY}", times=None)]) as model:
        run = bench(model, tmp_path)
        (result,) = run.ask("go")
    assert (result.ok, result.error, result.infrastructure) == (False, "HTTPError:401", True)
    assert not result.repeatable
    assert not result.transient
    assert KEY not in repr((result, run.log.events, run.log.steps))


@installed
@pytest.mark.parametrize("where", ["model", "command"])
def test_cancel_ends_the_turn_and_the_session_goes_on(tmp_path, where):
    slow = [Delay(30), Text("late")] if where == "model" else [Shell("touch begun; sleep 60")]

    async def work(executor, box):
        turn = asyncio.create_task(executor.invoke("slow"))
        await until(lambda: bool(model.requests) if where == "model" else run.file("begun").exists())
        started = time.monotonic()
        await executor.cancel()
        result = await turn
        took = time.monotonic() - started
        left = await box.exec(["sh", "-c", "ps ax | grep -c '[s]leep 60'"])
        return result, took, left.stdout.strip(), await executor.invoke("again")

    with ScriptedModel([When("slow", slow), When("again", [SUBMIT])]) as model:
        run = bench(model, tmp_path)
        result, took, left, again = run.run(work)
    assert (result.ok, result.status, result.error) == (False, "cancelled", "cancelled")
    assert took < 5
    assert left == "0"
    assert again.stop_reason == "Submitted"
    gap = "lost_on_timeout" if where == "model" else None
    assert result.usage.unavailable == gap
