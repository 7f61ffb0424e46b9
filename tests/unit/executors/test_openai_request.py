"""The executor `openai-http` against a real server: what it sends."""

from __future__ import annotations

import json

import pytest
from http_kit import ADD, APIS, KEY, ask, drive, told_for

from ageval_executors.openai_http import OpenAIExecutor
from pytest_ageval.testing.scripted_model import (
    ScriptedModel,
    Text,
    ToolCall,
)

# -- what goes out -------------------------------------------------------------------------------


def test_nothing_is_sent_that_nobody_asked_for():
    with ScriptedModel([Text("hi")]) as model:
        ask(OpenAIExecutor, told_for(model))
        ask(OpenAIExecutor, told_for(model, "responses"))
    chat, responses = model.requests
    assert dict(chat.body) == {
        "model": "m-1",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert dict(responses.body) == {
        "model": "m-1",
        "input": [{"type": "message", "role": "user", "content": "hello"}],
        "stream": True,
    }
    assert chat.api_key == KEY


def test_effort_and_extra_go_where_each_api_has_them():
    spec = {"reasoning_effort": "high", "extra": {"temperature": 0, "seed": 7, "provider": {"sort": "price"}}}
    with ScriptedModel([Text("hi")]) as model:
        ask(OpenAIExecutor, told_for(model, spec=spec))
        ask(OpenAIExecutor, told_for(model, "responses", spec=spec))
    chat, responses = (request.body for request in model.requests)
    assert (chat["reasoning_effort"], chat["temperature"], chat["seed"]) == ("high", 0, 7)
    assert chat["provider"] == {"sort": "price"}
    assert responses["reasoning"] == {"effort": "high"}


def test_a_server_that_cannot_stream_is_not_asked_to():
    with ScriptedModel([Text("hi")]) as model:
        result = ask(OpenAIExecutor, told_for(model, stream=False))
    assert result.text == "hi"
    assert {"stream", "stream_options"}.isdisjoint(model.requests[0].body)


@pytest.mark.parametrize("api", APIS)
def test_every_prompt_goes_out_after_the_true_history(api):
    with ScriptedModel([Text("A0"), Text("A1"), Text("A2")]) as model:
        told = told_for(model, api)

        async def work(executor):
            return [(await executor.invoke(f"Q{n}, token: hunter2hunter2")).text for n in range(3)]

        assert drive(OpenAIExecutor, work, told) == ["A0", "A1", "A2"]
    assert [r.prompt for r in model.requests] == [f"Q{n}, token: hunter2hunter2" for n in range(3)]
    assert [(item.kind, item.text) for item in model.requests[2].items] == [
        ("user", "Q0, token: hunter2hunter2"),
        ("model", "A0"),
        ("user", "Q1, token: hunter2hunter2"),
        ("model", "A1"),
        ("user", "Q2, token: hunter2hunter2"),
    ]
    started = told.steps.named("model_turn_started")
    assert [len(row["delta_messages"]) for row in started] == [1, 1, 1]


def test_messages_take_the_place_of_the_history_and_the_prompt_follows():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "I am a customer."}]
    with ScriptedModel([Text("A0"), Text("A1")]) as model:

        async def work(executor):
            await executor.invoke("first")
            await executor.invoke("Answer now.", messages=messages)

        drive(OpenAIExecutor, work, told_for(model))
    assert model.requests[1].body["messages"] == [
        *messages,
        {"role": "user", "content": "Answer now."},
    ]


def test_a_prompt_that_the_messages_already_ask_is_not_sent_twice():
    """A task repeats its prompt with every round of tools, and has it in its messages."""
    with ScriptedModel([ToolCall("add", {"a": 1, "b": 2}), Text("3")]) as model:

        async def work(executor):
            messages = [{"role": "user", "content": "What is 1+2?"}]
            first = await executor.invoke("What is 1+2?", tools=[ADD], messages=messages)
            call = first.tool_calls[0]
            function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
            messages += [
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": call.id, "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": call.id, "content": "3"},
            ]
            return await executor.invoke("What is 1+2?", tools=[ADD], messages=messages)

        told = told_for(model)
        assert drive(OpenAIExecutor, work, told).text == "3"
    assert [row["role"] for row in model.requests[1].body["messages"]] == ["user", "assistant", "tool"]
    started = told.steps.named("model_turn_started")
    assert [row["role"] for row in started[1]["delta_messages"]] == ["tool"]


def test_the_same_words_again_are_a_new_prompt_once_they_were_answered():
    messages = [
        {"role": "user", "content": "continue"},
        {"role": "assistant", "content": "done a bit"},
    ]
    with ScriptedModel([Text("x"), Text("more")]) as model:
        ask(OpenAIExecutor, told_for(model), "continue", messages=messages)
    assert [row["role"] for row in model.requests[0].body["messages"]] == ["user", "assistant", "user"]


def test_a_call_that_the_task_went_past_gets_a_result_so_that_the_session_goes_on():
    with ScriptedModel([ToolCall("add", {}), Text("ok")]) as model:

        async def work(executor):
            await executor.invoke("go", tools=[ADD])
            return await executor.invoke("never mind")

        assert drive(OpenAIExecutor, work, told_for(model)).text == "ok"
    sent = model.requests[1].body["messages"]
    assert [row["role"] for row in sent] == ["user", "assistant", "tool", "user"]
    assert sent[2]["tool_call_id"] == sent[1]["tool_calls"][0]["id"]


def test_tools_are_taken_with_and_without_their_envelope():
    with ScriptedModel([Text("x")]) as model:
        ask(OpenAIExecutor, told_for(model), tools=[ADD, {**ADD["function"], "name": "add2"}])
        ask(OpenAIExecutor, told_for(model, "responses"), tools=[ADD])
    chat, responses = (request.body["tools"] for request in model.requests)
    assert [row["function"]["name"] for row in chat] == ["add", "add2"]
    assert responses[0] == {"type": "function", **ADD["function"]}


def test_messages_for_responses_become_items():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "U"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
    ]
    with ScriptedModel([Text("x"), Text("x")]) as model:
        ask(OpenAIExecutor, told_for(model, "responses"), "", messages=messages)
    assert model.requests[0].body["input"] == [
        {"type": "message", "role": "system", "content": "S"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "U"}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
    ]


def test_reasoning_goes_back_to_a_model_that_reasons():
    with ScriptedModel([Text("A", thought="because"), Text("B")]) as model:

        async def work(executor):
            await executor.invoke("one")
            await executor.invoke("two")

        drive(OpenAIExecutor, work, told_for(model, "responses"))
    kinds = [item["type"] for item in model.requests[1].body["input"]]
    assert kinds == ["message", "reasoning", "message", "message"]


@pytest.mark.parametrize("messages", [[{"content": "x"}], ["x"]])
def test_messages_that_are_none_are_refused_before_anything_is_sent(messages):
    with ScriptedModel() as model:
        result = ask(OpenAIExecutor, told_for(model), messages=messages)
    assert (result.ok, result.error, result.transient) == (False, "messages_invalid", False)
    assert model.requests == []


def test_a_conversation_of_megabytes_goes_out_without_a_warning():
    prompt = "long " * 500_000
    with ScriptedModel([Text("hi")]) as model:
        result = ask(OpenAIExecutor, told_for(model), prompt)
    assert result.ok, result.error
    assert model.requests[0].prompt == prompt.strip()
