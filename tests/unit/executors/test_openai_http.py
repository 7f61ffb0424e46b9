"""The executor `openai-http` against a real server: what it sends, and what it makes of every answer."""

from __future__ import annotations

import asyncio
import json
import re
import socketserver
import threading
from contextlib import contextmanager

import pytest
from http_kit import ADD, KEY, Told, ask, drive, leaks

from ageval_executors.openai_http import OpenAIExecutor
from pytest_ageval.executor import ModelSpec
from pytest_ageval.testing.scripted_model import (
    NO_USAGE,
    Calls,
    Cut,
    Delay,
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

APIS = ("chat", "responses")


def told_for(model, api="chat", *, stream=True, **more) -> Told:
    spec = ModelSpec(id="m-1", api=api, **more.pop("spec", {}))
    return Told(model=spec, base_url=model.base_url, options={"stream": stream}, **more)


@contextmanager
def raw_server(*answers: bytes):
    """Answers each connection with the next bytes, whatever is asked; keeps the requests."""
    got: list[bytes] = []
    rows = iter(answers)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += self.rfile.readline()
            length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])
            got.append(head + self.rfile.read(length))
            self.wfile.write(next(rows))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1", got
        finally:
            server.shutdown()
            thread.join()


def sse(*rows, done=True) -> bytes:
    body = b"".join(b"data: %s\n\n" % (r if isinstance(r, bytes) else json.dumps(r).encode()) for r in rows)
    if done:
        body += b"data: [DONE]\n\n"
    return http(body, "text/event-stream")


def http(body: bytes, kind="application/json", status="200 OK", extra="") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{extra}"
    return head.encode() + b"connection: close\r\n\r\n" + body


def delta(stop=None, **fields) -> dict:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": stop}]}


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


# -- what goes wrong -----------------------------------------------------------------------------

FAULTS = [
    (HttpError(400), "HTTPError:400", False),
    (HttpError(401), "HTTPError:401", False),
    (HttpError(404), "HTTPError:404", False),
    (HttpError(408), "HTTPError:408", True),
    (HttpError(409), "HTTPError:409", True),
    (HttpError(429), "HTTPError:429", True),
    (HttpError(429, code="insufficient_quota"), "HTTPError:429", False),
    (HttpError(500), "HTTPError:500", True),
    (HttpError(529), "HTTPError:529", True),
    (Garbage(), "ProtocolError", True),
    (Garbage(content_type="text/event-stream"), "ProtocolError", True),
    (Garbage("[]", "application/json"), "ProtocolError", True),
    (Garbage("{}", "application/json"), "ProtocolError", True),
    (Garbage('data: {"choices": 5}\n\n', "text/event-stream"), "ProtocolError", True),
    (Garbage("data: [DONE]\n\n", "text/event-stream"), "ProtocolError", True),
    (Garbage("[" * 100_000, "application/json"), "ProtocolError", True),
    (Malformed("par"), "ProtocolError", True),
    (Cut("par"), "TransportError:RemoteProtocolError", True),
    (Cut("par", clean=True), "stream_cut", True),
    (Hang(0.05), "TransportError:RemoteProtocolError", True),
    (StreamError(after="par"), "ProviderError:overloaded_error", True),
    (StreamError(code="invalid_prompt"), "ProviderError:invalid_prompt", False),
]


@pytest.mark.parametrize(("fault", "error", "transient"), FAULTS)
def test_a_fault_of_the_provider_is_infrastructure(fault, error, transient):
    with ScriptedModel([fault]) as model:
        told = told_for(model)
        result = ask(OpenAIExecutor, told)
    assert (result.ok, result.error, result.infrastructure) == (False, error, True)
    assert (result.transient, result.repeatable) == (transient, True)
    after = getattr(fault, "after", "") or ""
    assert result.text == after
    assert told.events == []  # a repetition must not show the text twice
    (aborted,) = told.steps.named("model_turn_aborted")
    assert error in aborted["reason"]
    assert aborted["partial_text"] == after


@pytest.mark.parametrize("fault", [Malformed("par"), Cut("par"), Cut("par", clean=True), StreamError()])
def test_the_same_faults_on_responses(fault):
    with ScriptedModel([fault]) as model:
        result = ask(OpenAIExecutor, told_for(model, "responses"))
    assert (result.ok, result.infrastructure, result.transient) == (False, True, True)


@pytest.mark.parametrize("fault", [Malformed("par"), Cut("par"), Cut("par", clean=True), StreamError()])
def test_the_same_faults_without_a_stream(fault):
    with ScriptedModel([fault]) as model:
        result = ask(OpenAIExecutor, told_for(model, stream=False))
    assert (result.ok, result.infrastructure, result.transient) == (False, True, True)


def test_a_failed_turn_leaves_the_conversation_as_it_was():
    with ScriptedModel([HttpError(503), Text("hi")]) as model:

        async def work(executor):
            first = await executor.invoke("hello")
            return first, await executor.invoke("hello")

        first, second = drive(OpenAIExecutor, work, told_for(model))
    assert (first.ok, second.text) == (False, "hi")
    assert model.requests[0].body == model.requests[1].body


def test_the_providers_words_are_kept_and_bounded():
    with ScriptedModel([HttpError(400, "no such model " * 1000)]) as model:
        result = ask(OpenAIExecutor, told_for(model))
    assert result.metadata["message"].startswith("no such model")
    assert len(result.metadata["message"]) < 2100
    assert result.metadata["provider_code"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (7, 7, 7),
        ("1.5", 1.5, 1.5),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("soon", None, None),
        (-3, None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value, least, most):
    with ScriptedModel([HttpError(429, retry_after=value)]) as model:
        found = ask(OpenAIExecutor, told_for(model)).retry_after
    assert found is None if least is None else least <= found <= most


def test_retry_after_as_a_date_to_come():
    from email.utils import formatdate
    from time import time

    with ScriptedModel([HttpError(503, retry_after=formatdate(time() + 30, usegmt=True))]) as model:
        assert 25 < ask(OpenAIExecutor, told_for(model)).retry_after <= 30


def test_nobody_listens():
    result = ask(OpenAIExecutor, Told(base_url="http://127.0.0.1:9/v1"))
    assert (result.error, result.transient) == ("TransportError:ConnectError", True)


def test_a_url_that_is_none():
    result = ask(OpenAIExecutor, Told(base_url="ftp://127.0.0.1/v1"))
    assert (result.error, result.transient) == ("base_url_invalid", False)


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_that_takes_too_long(stream):
    with ScriptedModel([Hang(after="par")]) as model:
        result = ask(OpenAIExecutor, told_for(model, stream=stream, spec={"timeout": 0.3}))
    assert (result.error, result.status, result.transient) == ("model_timeout", "timeout", True)
    assert result.usage.unavailable == "lost_on_timeout"


def test_silence_within_a_stream_is_noticed_and_slowness_is_not():
    spec = {"watchdog": 0.5, "timeout": 10}
    with ScriptedModel([Text("slow but sure", pieces=6, pause=0.2)]) as model:
        assert ask(OpenAIExecutor, told_for(model, spec=spec)).text == "slow but sure"
    with ScriptedModel([Hang(after="par")]) as model:
        result = ask(OpenAIExecutor, told_for(model, spec=spec))
    assert (result.error, result.status, result.text) == ("model_silent", "timeout", "par")


def test_an_answer_without_end_is_cut_off(monkeypatch):
    monkeypatch.setattr("ageval_executors._http.MAX_ANSWER", 10_000)
    with ScriptedModel([Text("x" * 20_000, pieces=10)]) as model:
        result = ask(OpenAIExecutor, told_for(model))
    assert (result.ok, result.error) == (False, "ProtocolError")
    assert "longer than 10000 bytes" in result.metadata["message"]


def test_cancel_ends_the_turn_and_the_session_goes_on():
    with ScriptedModel([Text("a b c d", pieces=4, pause=5), Text("next")], by=None) as model:
        told = told_for(model)

        async def work(executor):
            turn = asyncio.ensure_future(executor.invoke("slow"))
            await asyncio.to_thread(model.wait_for, 1)
            await asyncio.sleep(0.1)
            await executor.cancel()
            return await asyncio.wait_for(turn, 1)

        result = drive(OpenAIExecutor, work, told)
    assert (result.ok, result.status, result.error) == (False, "cancelled", "cancelled")
    assert result.text == "a "
    assert told.events == [{"kind": "text", "channel": "assistant", "text": "a "}]


def test_a_cancelled_caller_is_not_answered():
    with ScriptedModel([Hang()]) as model:
        told = told_for(model)

        async def work(executor):
            turn = asyncio.ensure_future(executor.invoke("slow"))
            await asyncio.to_thread(model.wait_for, 1)
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn

        drive(OpenAIExecutor, work, told)
    assert told.steps.named("model_turn_aborted") == [{"reason": "cancelled", "partial_text": ""}]


def test_sessions_of_one_role_run_at_once():
    with ScriptedModel([Delay(0.4), Text("hi")]) as model:

        async def run():
            executors = [OpenAIExecutor(told_for(model).session) for _ in range(8)]
            started = asyncio.get_running_loop().time()
            texts = [r.text for r in await asyncio.gather(*(e.invoke("x") for e in executors))]
            for executor in executors:
                await executor.close()
                await executor.close()
            return texts, asyncio.get_running_loop().time() - started

        texts, seconds = asyncio.run(run())
    assert texts == ["hi"] * 8
    assert seconds < 2


# -- credentials ---------------------------------------------------------------------------------


def test_a_provider_elsewhere_needs_a_key_and_loopback_does_not():
    missing = ask(OpenAIExecutor, Told(api_key=None, api_key_name=None))
    assert (missing.error, missing.infrastructure, missing.transient) == ("missing_credential", True, False)
    assert "${OPENAI_API_KEY}" in missing.metadata["message"]
    with ScriptedModel([Text("hi")]) as model:
        assert ask(OpenAIExecutor, told_for(model, api_key=None)).text == "hi"
    assert model.requests[0].api_key is None


@pytest.mark.parametrize("key", [KEY + "\n", "sk-ключ-0123456789"])
def test_a_key_that_cannot_be_a_header_is_refused_without_being_shown(key):
    told = Told(base_url="http://127.0.0.1:9/v1", api_key=key)
    result = ask(OpenAIExecutor, told)
    assert result.error == "credential_invalid"
    assert not leaks(key.strip(), told, result)


def test_a_key_that_the_server_repeats_is_not_kept():
    for fault in (HttpError(401, f"bad key {KEY}"), StreamError(f"bad key {KEY}"), Garbage(f"<p>{KEY}</p>")):
        with ScriptedModel([fault]) as model:
            told = told_for(model)
            result = ask(OpenAIExecutor, told)
        assert "[REDACTED:TEST_KEY]" in result.metadata["message"]
        assert not leaks(KEY, told, result)


def test_a_redirect_is_not_followed_with_the_key():
    with ScriptedModel([Text("stolen")]) as other:
        location = f"location: {other.base_url}/chat/completions\r\n"
        with raw_server(http(b"", status="307 Temporary Redirect", extra=location)) as (url, _):
            result = ask(OpenAIExecutor, Told(base_url=url))
    assert (result.error, result.transient) == ("HTTPError:307", False)
    assert other.requests == []


def test_a_proxy_of_the_environment_is_not_for_loopback(monkeypatch):
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with ScriptedModel([Text("hi")]) as model:
        assert ask(OpenAIExecutor, told_for(model)).text == "hi"


def test_the_query_of_a_base_url_is_kept():
    with ScriptedModel([Text("hi")]) as model:
        told = Told(base_url=f"{model.base_url}/?api-version=1")
        assert ask(OpenAIExecutor, told).text == "hi"
    assert model.requests[0].path == "/v1/chat/completions?api-version=1"


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
    assert (result.error, result.transient) == ("TransportError:ConnectError", True)
