"""The executor `openai-http` against a real server: what goes wrong, and credentials."""

from __future__ import annotations

import asyncio

import pytest
from http_kit import KEY, Told, ask, drive, http, leaks, raw_server, told_for

from ageval_executors.openai_http import OpenAIExecutor
from pytest_ageval.testing.scripted_model import (
    Cut,
    Delay,
    Garbage,
    Hang,
    HttpError,
    Malformed,
    ScriptedModel,
    StreamError,
    Text,
)

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
    (Cut("par"), "TransportError:ClientPayloadError", True),
    (Cut("par", clean=True), "stream_cut", True),
    (Hang(0.05), "TransportError:ServerDisconnectedError", True),
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
    assert (result.error, result.transient) == ("TransportError:ClientConnectorError", True)


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
