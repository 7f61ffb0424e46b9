"""The executor `openai-http` against a real server: what it makes of every answer."""

from __future__ import annotations

import json
import socketserver
import threading

import pytest
from http_kit import ADD, APIS, Told, ask, delta, drive, http, raw_server, sse, told_for

from ageval_executors.openai_http import OpenAIExecutor
from pytest_ageval.executor import ModelSpec
from pytest_ageval.testing.scripted_model import (
    NO_USAGE,
    Calls,
    ScriptedModel,
    Text,
    Tokens,
    ToolCall,
)

# -- what comes back -----------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [True, False])
def test_text_thought_calls_and_usage(api, stream):
    script = [Calls([ToolCall("add", {"a": 1}), ToolCall("add", {"b": 2})], text="Adding.", thought="Hm.")]
    with ScriptedModel(script, tokens=Tokens(100, 60, 0, 20, 5)) as model:
        told = told_for(model, api, stream=stream)
        result = ask(OpenAIExecutor, told, tools=[ADD])
    assert (result.ok, result.text, result.status, result.model) == (True, "Adding.", "completed", "m-1")
    assert [(c.name, dict(c.arguments)) for c in result.tool_calls] == [("add", {"a": 1}), ("add", {"b": 2})]
    assert len({call.id for call in result.tool_calls}) == 2
    assert result.usage.as_dict() == {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "cached_tokens": 60,
        "reasoning_tokens": 5,
        "source": f"openai-{api}",
    }
    assert [(e["kind"], e.get("channel"), e.get("text")) for e in told.events[:2]] == [
        ("text", "thought", "Hm."),
        ("text", "assistant", "Adding."),
    ]
    assert [e["args"] for e in told.events[2:]] == [{"a": 1}, {"b": 2}]
    assert [name for name, *_ in told.steps.calls] == ["model_turn_started", "model_turn_completed"]


def test_a_long_reply_reaches_the_task_whole():
    text = "0123456789" * 20_000
    with ScriptedModel([Text(text, pieces=50)]) as model:
        assert ask(OpenAIExecutor, told_for(model)).text == text


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("stop", "status"), [("limit", "limit"), ("refused", "refused")])
def test_an_answer_that_did_not_end_by_itself(api, stop, status):
    with ScriptedModel([Text("half an ans", stop=stop)]) as model:
        result = ask(OpenAIExecutor, told_for(model, api))
    assert (result.ok, result.text, result.status) == (True, "half an ans", status)
    assert result.stop_reason in {"length", "content_filter", "max_output_tokens"}


@pytest.mark.parametrize("api", APIS)
def test_an_empty_answer_is_an_answer_and_the_session_goes_on(api):
    with ScriptedModel([Text("")]) as model:

        async def work(executor):
            return [await executor.invoke("a"), await executor.invoke("b")]

        results = drive(OpenAIExecutor, work, told_for(model, api))
    assert [(r.ok, r.text) for r in results] == [(True, ""), (True, "")]
    assert [item.kind for item in model.requests[1].items] == ["user", "user"]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("pieces", [1, 8])
def test_lone_surrogates_are_replaced_and_halves_are_joined(api, pieces):
    with ScriptedModel([Text("a\ud83d\ude00b \ud83d!", pieces=pieces), Text("ok")]) as model:
        told = told_for(model, api)

        async def work(executor):
            first = await executor.invoke("lone \udcff in a prompt")
            await executor.invoke("next")  # the history is sent back
            return first

        result = drive(OpenAIExecutor, work, told)
    assert result.text == "a😀b \ufffd!"
    told.text.encode()
    assert model.requests[0].prompt == "lone \ufffd in a prompt"


def test_arguments_that_are_no_object_are_kept_for_the_evidence():
    with ScriptedModel([ToolCall("add", '{"a": 1')]) as model:
        result = ask(OpenAIExecutor, told_for(model), tools=[ADD])
    (call,) = result.tool_calls
    assert dict(call.arguments) == {}
    assert result.metadata["invalid_arguments"] == {call.id: '{"a": 1'}


def test_a_document_in_place_of_the_stream_is_taken():
    body = {"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}
    for kind in ("application/json", "text/plain"):
        with raw_server(http(json.dumps(body).encode(), kind)) as (url, _):
            result = ask(OpenAIExecutor, Told(base_url=url))
        assert (result.text, result.usage.unavailable) == ("hi", "not_reported")


def test_deltas_of_servers_that_do_it_differently():
    first = {"id": "c1", "function": {"name": "add", "arguments": '{"a"'}}  # no index
    rows = [
        delta(role="assistant", content=None),
        delta(content="x\u2028y"),
        delta(reasoning="hm"),
        delta(tool_calls=[first]),
        delta(tool_calls=[{"function": {"arguments": ": 1}"}}]),
        delta(tool_calls=[{"id": "c2", "function": {"name": "sub", "arguments": {"b": 2}}}]),
        {**delta("tool_calls"), "usage": {"prompt_tokens": 5, "completion_tokens": 1, "cost": 0.25}},
    ]
    raw = [json.dumps(row, ensure_ascii=False).encode() for row in rows]
    with raw_server(sse(*raw, done=False)) as (url, _):  # and no end marker but a reason
        result = ask(OpenAIExecutor, Told(base_url=url))
    assert result.text == "x\u2028y"
    assert [(c.id, c.name, dict(c.arguments)) for c in result.tool_calls] == [
        ("c1", "add", {"a": 1}),
        ("c2", "sub", {"b": 2}),
    ]
    assert result.usage.cost_usd == 0.25


def test_fields_of_a_call_that_only_its_server_knows_go_back():
    call = {"index": 0, "id": "c1", "extra_content": {"signature": "s"}, "function": {"name": "add"}}
    rows = [delta(tool_calls=[call]), delta("tool_calls")]
    with raw_server(sse(*rows), sse(delta("stop", content="ok"))) as (url, got):

        async def work(executor):
            await executor.invoke("a", tools=[ADD])
            await executor.invoke("b", tools=[ADD])

        drive(OpenAIExecutor, work, Told(base_url=url))
    assert b'"extra_content": {"signature": "s"}' in got[1]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        # Cached tokens within the input (the total says so), beside it, and beside it without a total.
        ({"prompt_tokens": 113415, "completion_tokens": 990, "total_tokens": 114405}, (113415, 990, None)),
        ({"prompt_tokens": 1191, "completion_tokens": 990, "total_tokens": 114405}, (113415, 990, None)),
        ({"prompt_tokens": 1191, "completion_tokens": 990}, (113415, 990, None)),
        ({"prompt_tokens": 1191, "completion_tokens": 990, "total_tokens": 7}, (None, None, "ambiguous")),
        ({"prompt_tokens": "many", "completion_tokens": 990}, (None, None, "parse_failed")),
        ({"prompt_tokens": -1, "completion_tokens": 990}, (None, None, "parse_failed")),
        ({"prompt_tokens": 113415}, (113415, None, "partial")),
    ],
)
def test_cached_tokens_are_counted_once(row, expected):
    usage = {**row, "prompt_tokens_details": {"cached_tokens": 112224}}
    with raw_server(sse(delta("stop", content="x"), {"choices": [], "usage": usage})) as (url, _):
        result = ask(OpenAIExecutor, Told(base_url=url))
    found = result.usage
    assert (found.prompt_tokens, found.completion_tokens, found.unavailable) == expected
    assert result.metadata["usage_reported"] == usage


def test_reasoning_beside_the_output_is_counted_in():
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 35}
    usage["completion_tokens_details"] = {"reasoning_tokens": 20}
    with raw_server(sse({**delta("stop", content="x"), "usage": usage})) as (url, _):
        found = ask(OpenAIExecutor, Told(base_url=url)).usage
    assert (found.completion_tokens, found.reasoning_tokens) == (25, 20)


def test_usage_that_is_not_reported_is_a_reason_and_not_zero():
    with ScriptedModel([Text("x", tokens=NO_USAGE)]) as model:
        assert ask(OpenAIExecutor, told_for(model)).usage.as_dict() == {"unavailable": "not_reported"}


# -- rarer shapes --------------------------------------------------------------------------------


def test_content_in_parts_and_a_refusal_in_a_field_of_its_own():
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    rows = [
        delta(content=[thinking, {"type": "text", "text": "hi"}]),
        delta("stop", refusal="I will not."),
    ]
    with raw_server(sse(*rows)) as (url, _):
        told = Told(base_url=url)
        result = ask(OpenAIExecutor, told)
    assert (result.text, result.status) == ("hiI will not.", "refused")
    assert told.events[0] == {"kind": "text", "channel": "thought", "text": "hm"}


def test_a_refusal_and_an_image_on_responses():
    item = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    body = {"id": "r1", "status": "completed", "output": [item]}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    spec = ModelSpec(id="m", api="responses")
    with raw_server(http(json.dumps(body).encode())) as (url, got):
        told = Told(base_url=url, model=spec)
        result = ask(OpenAIExecutor, told, "", messages=[{"role": "user", "content": [image]}])
    assert (result.text, result.status) == ("No.", "refused")
    assert b'{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}' in got[0]


def test_items_of_a_stream_whose_closing_event_is_empty():
    item = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}
    rows = [
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    ]
    with raw_server(sse(*rows, done=False)) as (url, _):
        told = Told(base_url=url, model=ModelSpec(id="m", api="responses"))
        assert ask(OpenAIExecutor, told).text == "hi"


def test_a_stream_that_stays_open_after_its_end_marker_does_not_hold_up_the_turn():
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    body = sse(delta("stop", content="hi")).split(b"\r\n\r\n", 1)[1]
    release = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(65536)
            self.request.sendall(head + body)
            release.wait(10)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            told = Told(base_url=f"http://127.0.0.1:{server.server_address[1]}")
            assert ask(OpenAIExecutor, told).text == "hi"
            assert not release.is_set()
        finally:
            release.set()
            server.shutdown()
            thread.join()


def test_a_server_without_tls_is_a_fault_of_transport():
    with ScriptedModel([Text("hi")]) as model:
        told = Told(base_url=model.base_url.replace("http://", "https://"))
        result = ask(OpenAIExecutor, told)
    assert (result.error, result.transient) == ("TransportError:ClientConnectorSSLError", True)
