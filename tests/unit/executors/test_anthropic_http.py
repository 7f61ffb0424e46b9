"""The executor `anthropic-http` against a real server: both translations, and every fault."""

from __future__ import annotations

import json

import pytest
from http_kit import ADD, KEY, Told, ask, drive, leaks

from ageval_executors.anthropic_http import AnthropicExecutor
from pytest_ageval.executor import ModelSpec
from pytest_ageval.testing.scripted_model import (
    NO_USAGE,
    Calls,
    Cut,
    Garbage,
    Hang,
    HttpError,
    Malformed,
    ScriptedModel,
    StreamError,
    Text,
    Tokens,
    ToolCall,
)


def told_for(model, *, options=None, **more) -> Told:
    spec = ModelSpec(id="claude-x", **more.pop("spec", {}))
    return Told(model=spec, base_url=model.anthropic_base_url, options=options or {}, **more)


def said(text: str) -> list[dict]:
    return [{"type": "text", "text": text}]


# -- what goes out -------------------------------------------------------------------------------


def test_the_request_and_its_headers():
    with ScriptedModel([Text("hi")]) as model:
        ask(AnthropicExecutor, told_for(model))
    (request,) = model.requests
    assert dict(request.body) == {
        "model": "claude-x",
        "max_tokens": 4096,
        "messages": [{"role": "user", "content": said("hello")}],
        "stream": True,
    }
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert request.api_key == KEY


def test_options_effort_and_extra():
    options = {"max_tokens": 100, "anthropic_version": "2099-01-01", "stream": False}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    spec = {"reasoning_effort": "low", "extra": {"thinking": thinking, "max_tokens": 2048}}
    with ScriptedModel([Text("hi")]) as model:
        assert ask(AnthropicExecutor, told_for(model, options=options, spec=spec)).text == "hi"
    (request,) = model.requests
    assert request.body["max_tokens"] == 2048  # the model's own setting is nearer than the option
    assert request.body["thinking"] == thinking
    assert request.body["output_config"] == {"effort": "low"}
    assert "stream" not in request.body
    assert request.headers["anthropic-version"] == "2099-01-01"


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_the_base_url_may_name_the_version(end):
    with ScriptedModel([Text("hi")]) as model:
        ask(AnthropicExecutor, Told(base_url=model.anthropic_base_url + end))
    assert model.requests[0].path == "/v1/messages"


def test_messages_and_tools_are_translated():
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Add."},
        {
            "role": "assistant",
            "content": "I add.",
            "tool_calls": [{**call, "id": "c1"}, {**call, "id": "c2"}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
    ]
    with ScriptedModel([Text("x"), Text("3")]) as model:
        ask(AnthropicExecutor, told_for(model), "And now?", messages=messages, tools=[ADD])
    body = model.requests[0].body
    use = {"type": "tool_use", "name": "add", "input": {"a": 1}}
    assert body["system"] == said("Be brief.")
    assert body["messages"] == [
        {"role": "user", "content": said("Add.")},
        {"role": "assistant", "content": [*said("I add."), {**use, "id": "c1"}, {**use, "id": "c2"}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "1"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "2"},
                *said("And now?"),
            ],
        },
    ]
    function = ADD["function"]
    assert body["tools"] == [
        {"name": "add", "description": function["description"], "input_schema": function["parameters"]}
    ]


def test_a_result_stands_right_after_its_call_even_if_the_task_wrote_it_later():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "user", "content": "Quick!"},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
    ]
    with ScriptedModel([Text("x"), Text("y")]) as model:
        ask(AnthropicExecutor, told_for(model), "", messages=messages)
    kinds = [block["type"] for block in model.requests[0].body["messages"][2]["content"]]
    assert kinds == ["tool_result", "text"]


def test_images_are_translated():
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]
    with ScriptedModel([Text("x")]) as model:
        ask(AnthropicExecutor, told_for(model), "", messages=[{"role": "user", "content": parts}])
    assert [block.get("source") for block in model.requests[0].body["messages"][0]["content"]] == [
        None,
        {"type": "base64", "media_type": "image/png", "data": "AAAA"},
        {"type": "url", "url": "https://example.com/a.png"},
    ]


def test_every_prompt_goes_out_after_the_true_history():
    with ScriptedModel([Text("A0"), Text(""), Text("A2")]) as model:

        async def work(executor):
            return [(await executor.invoke(f"Q{n}")).text for n in range(2)]

        assert drive(AnthropicExecutor, work, told_for(model)) == ["A0", ""]
    assert model.requests[1].body["messages"] == [
        {"role": "user", "content": said("Q0")},
        {"role": "assistant", "content": said("A0")},
        {"role": "user", "content": said("Q1")},
    ]


def test_signed_thinking_goes_back_with_the_results_of_the_tools():
    """The API refuses a result whose call has lost its thinking, which the task never saw."""
    script = [ToolCall("add", {"a": 1}, thought="I must add."), Text("1")]
    with ScriptedModel(script) as model:

        async def work(executor):
            first = await executor.invoke("Add.", tools=[ADD])
            call = first.tool_calls[0]
            function = {"name": "add", "arguments": json.dumps({"a": 1})}
            messages = [
                {"role": "user", "content": "Add."},
                {"role": "assistant", "tool_calls": [{"id": call.id, "function": function}]},
                {"role": "tool", "tool_call_id": call.id, "content": "1"},
            ]
            return await executor.invoke("Add.", tools=[ADD], messages=messages)

        assert drive(AnthropicExecutor, work, told_for(model)).text == "1"
    blocks = model.requests[1].body["messages"][1]["content"]
    assert blocks[0] == {"type": "thinking", "thinking": "I must add.", "signature": "scripted"}
    assert (blocks[1]["type"], blocks[1]["input"]) == ("tool_use", {"a": 1})


def test_a_role_that_the_api_has_not_is_refused():
    with ScriptedModel() as model:
        result = ask(AnthropicExecutor, told_for(model), messages=[{"role": "critic", "content": "x"}])
    assert (result.error, result.transient, model.requests) == ("messages_invalid", False, [])


# -- what comes back -----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_text_thought_calls_and_usage(stream):
    script = [Calls([ToolCall("add", {"a": 1}), ToolCall("add", {})], text="Adding.", thought="Hm.")]
    tokens = Tokens(input=100, cached=60, cache_write=10, output=20)
    with ScriptedModel(script, tokens=tokens) as model:
        told = told_for(model, options={"stream": stream})
        result = ask(AnthropicExecutor, told, tools=[ADD])
    assert (result.ok, result.text, result.stop_reason) == (True, "Adding.", "tool_use")
    assert (result.status, result.model) == ("completed", "claude-x")
    assert [(c.name, dict(c.arguments)) for c in result.tool_calls] == [("add", {"a": 1}), ("add", {})]
    # The wire said 30 fresh tokens; here the input counts what went through the cache as well.
    assert result.usage.as_dict() == {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "cached_tokens": 60,
        "cache_write_tokens": 10,
        "source": "anthropic",
    }
    assert [e.get("text") for e in told.events[:2]] == ["Hm.", "Adding."]
    assert told.steps.named("model_turn_completed")[0]["thought"] == "Hm."


@pytest.mark.parametrize(
    ("stop", "status", "word"), [("limit", "limit", "max_tokens"), ("refused", "refused", "refusal")]
)
def test_an_answer_that_did_not_end_by_itself(stop, status, word):
    with ScriptedModel([Text("half an ans", stop=stop)]) as model:
        result = ask(AnthropicExecutor, told_for(model))
    assert (result.ok, result.text, result.status, result.stop_reason) == (True, "half an ans", status, word)


def test_lone_surrogates_are_replaced():
    with ScriptedModel([Text("a \ud83d b")]) as model:
        told = told_for(model)
        assert ask(AnthropicExecutor, told).text == "a \ufffd b"
    told.text.encode()


def test_usage_that_is_not_reported_is_a_reason_and_not_zero():
    with ScriptedModel([Text("x", tokens=NO_USAGE)]) as model:
        assert ask(AnthropicExecutor, told_for(model)).usage.as_dict() == {"unavailable": "not_reported"}


# -- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error", "transient"),
    [
        (HttpError(400), "HTTPError:400", False),
        (HttpError(403), "HTTPError:403", False),
        (HttpError(429, retry_after=2), "HTTPError:429", True),
        (HttpError(529), "HTTPError:529", True),
        (Garbage(), "ProtocolError", True),
        (Garbage('{"type": "message"}', "application/json"), "ProtocolError", True),
        (Malformed("par"), "ProtocolError", True),
        (Cut("par"), "TransportError:ClientPayloadError", True),
        (Cut("par", clean=True), "stream_cut", True),
        (StreamError(after="par"), "ProviderError:overloaded_error", True),
        (StreamError(code="invalid_request_error"), "ProviderError:invalid_request_error", False),
    ],
)
def test_a_fault_of_the_provider_is_infrastructure(fault, error, transient):
    with ScriptedModel([fault]) as model:
        told = told_for(model)
        result = ask(AnthropicExecutor, told)
    assert (result.ok, result.error, result.infrastructure) == (False, error, True)
    assert (result.transient, result.retry_after) == (transient, getattr(fault, "retry_after", None))
    assert told.events == []
    assert not leaks(KEY, told, result)


def test_usage_of_a_call_that_broke_off_is_partial():
    with ScriptedModel([Hang(after="par")]) as model:
        result = ask(AnthropicExecutor, told_for(model, spec={"watchdog": 0.3}))
    assert (result.error, result.status, result.text) == ("model_silent", "timeout", "par")
    assert (result.usage.prompt_tokens, result.usage.unavailable) == (1000, "partial")


def test_a_provider_elsewhere_needs_a_key():
    result = ask(AnthropicExecutor, Told(api_key=None, api_key_name=None))
    assert (result.error, result.infrastructure) == ("missing_credential", True)
    assert "${ANTHROPIC_API_KEY}" in result.metadata["message"]


def test_a_key_that_the_server_repeats_is_not_kept():
    with ScriptedModel([HttpError(401, f"bad x-api-key: {KEY}")]) as model:
        told = told_for(model)
        result = ask(AnthropicExecutor, told)
    assert not leaks(KEY, told, result)
