"""The loop of ``terminus-2`` in a real terminal, against the scripted model."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from acp_kit import local_box
from http_kit import KEY
from loop_kit import Bench, until

from ageval_executors.terminus import TerminusExecutor
from ageval_executors.terminus.terminal import Terminal
from pytest_ageval.errors import ExecutorError
from pytest_ageval.testing.scripted_model import Delay, HttpError, ScriptedModel, Text, Tokens, When

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")


def keys(*commands: str, done: bool = False, wait: float = 0.15, analysis: str = "so far") -> Text:
    rows = [{"keystrokes": text, "duration": wait} for text in commands]
    return Text(json.dumps({"analysis": analysis, "plan": "p", "commands": rows, "task_complete": done}))


DONE = keys(done=True, analysis="it is done")


def bench(model: ScriptedModel, tmp_path: Path, **more) -> Bench:
    wire = (more.get("options") or {}).get("wire")
    url = model.anthropic_base_url if wire == "anthropic" else model.base_url
    return Bench(TerminusExecutor, url, tmp_path, **more)


def said(model: ScriptedModel, number: int) -> str:
    """The last message of the user in that request."""
    return model.requests[number].prompt


@pytest.mark.parametrize(
    ("options", "spec"),
    [({}, {}), ({}, {"api": "responses"}), ({"wire": "anthropic", "stream": False}, {})],
    ids=["chat", "responses", "anthropic"],
)
def test_keys_are_typed_and_the_terminal_is_shown(tmp_path, options, spec):
    turns = [keys("echo $((6*7)) | tee answer\n", "cat no-such-file\n"), DONE, DONE]
    with ScriptedModel(turns, tokens=Tokens(input=1000, output=10)) as model:
        run = bench(model, tmp_path, options=options, spec=spec)
        (result,) = run.ask("write 42 into {answer}")
    assert (result.ok, result.status, result.stop_reason) == (True, "completed", "task_complete")
    assert result.text == "it is done"
    assert "write 42 into {answer}" in said(model, 0)
    assert "42\n" in said(model, 1)
    assert "No such file" in said(model, 1)
    assert "once more" in said(model, 2), "completion is asked about"
    assert len(model.requests) == 3
    assert result.usage.completion_tokens == 30
    assert result.usage.prompt_tokens == sum(usage.prompt_tokens for usage in run.called)
    tools = [(row["phase"], row.get("args", {}).get("keystrokes")) for row in run.log.of_kind("tool")]
    assert [phase for phase, _ in tools] == ["start", "update"] * 2
    assert tools[0][1] == "echo $((6*7)) | tee answer\n"
    assert "No such file" in run.outputs()[1]
    assert KEY not in repr((run.log.events, run.log.steps, result))


def test_only_new_output_is_shown_and_it_is_bounded(tmp_path):
    with ScriptedModel([keys("echo first\n"), keys("seq 20000\n", wait=1.0), DONE, DONE]) as model:
        bench(model, tmp_path).ask("go")
    assert "first" in said(model, 1)
    second = said(model, 2)
    assert "first" not in second
    assert "bytes left out" in second
    assert len(second.encode()) < 11_000
    assert "\n20000\n" in second


def test_completion_must_be_repeated_at_once(tmp_path):
    with ScriptedModel([DONE, keys("echo wait\n"), DONE, DONE]) as model:
        (result,) = bench(model, tmp_path).ask("go")
    assert result.stop_reason == "task_complete"
    assert len(model.requests) == 4


def test_answer_that_cannot_be_read_is_told_so(tmp_path):
    with ScriptedModel([Text("Let me think."), keys("true\n"), DONE, DONE]) as model:
        (result,) = bench(model, tmp_path).ask("go")
    assert result.stop_reason == "task_complete"
    assert "no JSON object" in said(model, 1)
    assert model.requests[1].body["messages"][-2]["content"] == "Let me think."


@pytest.mark.parametrize("stop", ["end", "limit"])
def test_too_many_unreadable_answers_end_the_turn(tmp_path, stop):
    words = [Text("one", stop=stop), Text("two", stop=stop)]
    with ScriptedModel(words) as model:
        (result,) = bench(model, tmp_path, options={"max_format_errors": 2}).ask("go")
    expected = ("unknown", "format_errors") if stop == "end" else ("limit", "length")
    assert (result.ok, result.status, result.stop_reason) == (True, *expected)
    assert len(model.requests) == 2


def test_refusal_ends_the_turn(tmp_path):
    with ScriptedModel([Text("I will not.", stop="refused")]) as model:
        (result,) = bench(model, tmp_path).ask("go")
    assert (result.status, result.text, len(model.requests)) == ("refused", "I will not.", 1)


def test_terminal_and_conversation_outlive_a_turn(tmp_path):
    turns = [keys("x=kept\n"), DONE, DONE, keys("echo $x\n"), DONE, DONE]
    with ScriptedModel(turns) as model:
        first, second = bench(model, tmp_path).ask("first task", "second task")
    assert (first.stop_reason, second.stop_reason) == ("task_complete", "task_complete")
    assert "second task" in said(model, 3)
    assert "kept" in said(model, 4)
    assert "first task" in model.requests[3].body["messages"][0]["content"]


def test_shell_that_ended_is_started_again(tmp_path):
    with ScriptedModel([keys("exit\n"), keys("echo alive\n"), DONE, DONE]) as model:
        (result,) = bench(model, tmp_path).ask("go")
    assert result.stop_reason == "task_complete"
    assert "a new one was started" in said(model, 1)
    assert "alive" in said(model, 2)


def test_long_conversation_is_replaced_by_the_models_notes(tmp_path):
    notes = Text("Half of it is done; the rest is in todo.txt.")
    turns = [keys("echo secret-word\n"), notes]
    turns[0] = Text(turns[0].text, tokens=Tokens(input=950, output=10))
    # After the summary the conversation begins anew, so that its place in the script says nothing.
    answers = iter([*turns, keys("echo on\n"), DONE, DONE])
    options = {"context_limit": 1000, "context_free": 100}
    small = Tokens(input=10, cached=0, output=10)
    with ScriptedModel(by=lambda request: next(answers), tokens=small) as model:
        run = bench(model, tmp_path, options=options)
        (result,) = run.ask("the task")
    assert result.stop_reason == "task_complete"
    assert "getting too long" in said(model, 1)
    first = model.requests[2].body["messages"]
    assert len(first) == 1
    assert "the task" in first[0]["content"]
    assert notes.text in first[0]["content"]
    assert any(row["raw"].get("type") == "context_summarised" for row in run.log.of_kind("opaque"))


def test_conversation_that_the_provider_finds_too_long_is_summed_up(tmp_path):
    over = HttpError(400, "maximum context length is 10 tokens", code="context_length_exceeded")
    notes = Text("notes of it")
    answers = iter([keys("echo 1\n"), keys("echo 2\n"), keys("echo 3\n"), over, notes, DONE, DONE])
    with ScriptedModel(by=lambda request: next(answers)) as model:
        (result,) = bench(model, tmp_path).ask("the task")
    assert result.stop_reason == "task_complete"
    asked, carried = model.requests[4].body["messages"], model.requests[5].body["messages"]
    assert len(asked) == len(model.requests[3].body["messages"]) - 4
    assert "Write\ndown" in asked[-1]["content"] or "Write down" in asked[-1]["content"]
    assert "notes of it" in carried[0]["content"]


@pytest.mark.parametrize("which", ["step_limit", "budget"])
def test_limits_stop_before_the_next_call(tmp_path, which):
    with ScriptedModel([keys("true\n")] * 3) as model:
        run = bench(model, tmp_path, options={"step_limit": 2} if which == "step_limit" else {})
        if which == "budget":
            run.budget = lambda: "max_tokens is used up" if len(run.called) >= 2 else None
        (result,) = run.ask("go")
    assert (result.ok, result.status, result.stop_reason, result.text) == (True, "limit", which, "so far")
    assert len(model.requests) == 2


def test_failure_that_passes_is_repeated_where_the_loop_stood(tmp_path):
    turns = [keys("echo x >> log\n"), HttpError(529), keys("wc -l < log\n"), DONE, DONE]
    with ScriptedModel(turns) as model:
        run = bench(model, tmp_path)
        down, result = run.ask("go", "go")
    assert (down.ok, down.error, down.transient, down.repeatable) == (False, "HTTPError:529", True, True)
    assert result.stop_reason == "task_complete"
    assert "\n1\n" in said(model, 3), "the keys were typed once"


def test_failure_that_stays_is_infrastructure(tmp_path):
    with ScriptedModel([keys("true\n"), HttpError(403, times=None)]) as model:
        (result,) = bench(model, tmp_path).ask("go")
    assert (result.ok, result.error, result.infrastructure) == (False, "HTTPError:403", True)
    assert (result.repeatable, result.transient) == (False, False)


@pytest.mark.parametrize("where", ["model", "wait"])
def test_cancel_ends_the_turn_and_the_session_goes_on(tmp_path, where):
    slow = [Delay(30), Text("late")] if where == "model" else [keys("touch begun\n", wait=50)]

    async def work(executor, box):
        turn = asyncio.create_task(executor.invoke("slow"))
        await until(lambda: bool(model.requests) if where == "model" else run.file("begun").exists())
        started = time.monotonic()
        await executor.cancel()
        result = await turn
        return result, time.monotonic() - started, await executor.invoke("again")

    with ScriptedModel([When("slow", slow), When("again|once more", [DONE])]) as model:
        run = bench(model, tmp_path)
        result, took, again = run.run(work)
    assert (result.ok, result.status, result.error) == (False, "cancelled", "cancelled")
    assert took < 5
    assert again.stop_reason == "task_complete"


def test_nothing_of_the_terminal_is_left(tmp_path):
    with ScriptedModel([keys("sleep 97 &\n"), DONE, DONE]) as model:
        run = bench(model, tmp_path, isolation="auto")

        async def work(executor, box):
            await executor.invoke("go")
            await executor.close()
            return (await box.exec(["sh", "-c", "ps ax | grep -E '[t]mux|[b]ash$'"])).stdout

        assert run.run(work) == ""


def test_box_without_tmux_is_refused_with_what_to_do(tmp_path):
    class NoTmux(Terminal):
        async def _sh(self, script, *arguments, stdin=None):
            argv = [shutil.which("sh"), "-c", script, "sh", self._name, *arguments]
            return await self._box.exec(argv, env={"PATH": "/nowhere"}, timeout=10)

    async def run() -> None:
        async with local_box(tmp_path) as box:
            await NoTmux(box, 80, 24).start()

    with pytest.raises(ExecutorError, match="install it in the task's") as caught:
        asyncio.run(run())
    assert caught.value.title == "terminus_tmux_missing"


def test_key_of_another_vendor_is_not_sent(tmp_path):
    run = Bench(TerminusExecutor, None, tmp_path, options={"wire": "anthropic"})  # type: ignore[arg-type]
    executor = TerminusExecutor(replace(run.session(None), api_key_name="OPENAI_API_KEY"))
    with pytest.raises(ExecutorError) as caught:
        asyncio.run(executor.open())
    assert caught.value.title == "loop_key_invalid"
