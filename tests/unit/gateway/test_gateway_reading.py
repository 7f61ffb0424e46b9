"""What is read from answers of the four APIs, and what is made of odd ones."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from pytest_ageval.executor import Usage
from pytest_ageval.gateway.calls import CallRecord, Turn, failure_of
from pytest_ageval.gateway.reading import Reading
from pytest_ageval.gateway.routes import Upstream, token_of
from pytest_ageval.gateway.usage import added, usage_of
from pytest_ageval.gateway.wires import asked, wire_of

SSE = "text/event-stream; charset=utf-8"


def read(
    wire: Any, body: bytes, *, status: int = 200, kind: str = SSE, size: int = 7, **more: Any
) -> Reading:
    found = Reading(wire, status, kind, more.get("encoding"))
    for start in range(0, len(body), size):
        found.feed(body[start : start + size])
    found.end(cut=more.get("cut", False))
    return found


def events(*rows: Any, end: str = "\n\n") -> bytes:
    return b"".join(f"data: {row if isinstance(row, str) else json.dumps(row)}{end}".encode() for row in rows)


GEMINI = [
    {"candidates": [{"content": {"parts": [{"text": "a"}]}}], "usageMetadata": {"promptTokenCount": 100}},
    {
        "candidates": [{"content": {"parts": []}, "finishReason": "STOP"}],
        "modelVersion": "g-1",
        "usageMetadata": {
            "promptTokenCount": 100,
            "cachedContentTokenCount": 40,
            "candidatesTokenCount": 7,
            "thoughtsTokenCount": 5,
            "toolUsePromptTokenCount": 3,
            "totalTokenCount": 115,
        },
    },
]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (events(*GEMINI), SSE),
        (events(*GEMINI, end="\r\n\r\n"), SSE),
        (json.dumps(GEMINI).encode(), "application/json"),
        (json.dumps(GEMINI[1]).encode(), "application/json"),
    ],
)
def test_gemini(body: bytes, kind: str) -> None:
    found = read("gemini", body, kind=kind)
    assert (found.failure, found.stop_reason, found.model) == (None, "STOP", "g-1")
    assert usage_of("gemini", found.usage) == Usage(
        prompt_tokens=103,
        completion_tokens=12,
        cached_tokens=40,
        reasoning_tokens=5,
        source="gateway",
    )


def test_a_prompt_that_gemini_blocks_is_an_answer() -> None:
    body = {
        "promptFeedback": {"blockReason": "SAFETY"},
        "usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 9},
    }
    found = read("gemini", json.dumps(body).encode(), kind="application/json")
    assert (found.failure, found.stop_reason) == (None, "SAFETY")
    usage = usage_of("gemini", found.usage)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.unavailable) == (9, 0, None)


def test_anthropic_counts_the_cache_apart() -> None:
    body = events(
        {"type": "message_start", "message": {"model": "c-1", "usage": {
            "input_tokens": 10, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 30,
            "output_tokens": 1}}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 44}},
        {"type": "message_stop"},
    )  # fmt: skip
    found = read("anthropic", body)
    assert (found.failure, found.stop_reason, found.model) == (None, "tool_use", "c-1")
    assert usage_of("anthropic", found.usage) == Usage(
        prompt_tokens=240, completion_tokens=44, cached_tokens=200, cache_write_tokens=30, source="gateway"
    )


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        # Cases of one input: with the cached tokens in it, and without.
        ({"prompt_tokens": 113415, "completion_tokens": 990, "total_tokens": 114405,
          "prompt_tokens_details": {"cached_tokens": 112224}}, (113415, 990, 112224, None)),
        ({"prompt_tokens": 1191, "completion_tokens": 990, "total_tokens": 114405,
          "prompt_tokens_details": {"cached_tokens": 112224}}, (113415, 990, 112224, None)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 35,
          "completion_tokens_details": {"reasoning_tokens": 20}}, (10, 25, None, None)),
        ({"prompt_tokens": 10, "completion_tokens": 5}, (10, 5, None, None)),
        ({"input_tokens": 10, "output_tokens": 0, "total_tokens": 10}, (10, 0, None, None)),
        ({"prompt_tokens": 10}, (10, None, None, "partial")),
        ({"prompt_tokens": 1191, "completion_tokens": 990, "total_tokens": 5,
          "prompt_tokens_details": {"cached_tokens": 100}}, (None, 990, 100, "ambiguous")),
        ({"prompt_tokens": "many", "completion_tokens": 5}, (None, None, None, "parse_failed")),
        ({"prompt_tokens": -1, "completion_tokens": 5}, (None, None, None, "parse_failed")),
        ("none", (None, None, None, "parse_failed")),
        ({}, (None, None, None, "not_reported")),
        (None, (None, None, None, "not_reported")),
    ],
)  # fmt: skip
def test_usage_of_openai_and_those_who_follow_it(row: Any, expected: tuple[Any, ...]) -> None:
    found = usage_of("chat", row)
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens, found.unavailable) == expected


def test_a_sum_hides_no_gap() -> None:
    whole = Usage(prompt_tokens=10, completion_tokens=1, cost_usd=0.5, source="gateway")
    plain = Usage(prompt_tokens=5, completion_tokens=2, source="gateway")
    silent = Usage(source="gateway", unavailable="not_reported")
    assert added([whole, plain]) == Usage(prompt_tokens=15, completion_tokens=3, source="gateway")
    assert added([whole, whole]).cost_usd == 1.0
    assert added([whole, silent]).unavailable == "partial"
    assert added([silent]) == silent


@pytest.mark.parametrize("wire", ["chat", "responses", "anthropic", "gemini"])
@pytest.mark.parametrize(
    ("body", "kind", "failure"),
    [
        (b"", SSE, "garbage"),
        (b"data: {nonsense\n\n", SSE, "garbage"),
        (b"<html>", "text/html", "garbage"),
        (b"", "", "garbage"),
        (b"[1, null, {}]", "application/json", "garbage"),
        (b"{}", "application/json", "garbage"),
        (b'data: {"x": 1}\n\n', SSE, "cut"),
        (b'data: {"error": {"code": 503, "message": "overloaded"}}\n\n', SSE, "provider_error"),
        (b'{"error": "overloaded"}', "application/json", "provider_error"),
        (b'{"type": "error", "error": {"type": "x"}}', "application/json", "provider_error"),
    ],
)  # fmt: skip
def test_what_is_no_answer(wire: str, body: bytes, kind: str, failure: str) -> None:
    assert read(wire, body, kind=kind).failure == failure


def test_an_answer_that_broke_after_its_end_is_whole() -> None:
    body = events({"choices": [{"finish_reason": "stop", "delta": {}}]}, "[DONE]")
    assert read("chat", body, cut=True).failure is None
    assert read("chat", body[:20], cut=True).failure == "cut"


def test_a_packed_answer_is_read_too() -> None:
    body = events(
        {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    )
    found = read("chat", gzip.compress(body), encoding="gzip")
    assert found.failure is None
    assert usage_of("chat", found.usage).prompt_tokens == 3


def test_what_is_too_long_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ageval.gateway.reading.MAX_EVENT", 100)
    monkeypatch.setattr("pytest_ageval.gateway.reading.MAX_DOCUMENT", 100)
    assert read("chat", b"data: " + b"x" * 500).failure is None
    assert read("chat", b"x" * 500, kind="application/json").failure is None


@pytest.mark.parametrize(
    ("method", "path", "wire"),
    [
        ("POST", "/v1/chat/completions", "chat"),
        ("POST", "/openai/v1/responses/", "responses"),
        ("POST", "/v1/messages", "anthropic"),
        ("POST", "/v1/messages/count_tokens", "count_tokens"),
        ("POST", "/v1beta/models/gemini-2.5-pro:streamGenerateContent", "gemini"),
        ("POST", "/v1beta/models/gemini-2.5-pro:generateContent", "gemini"),
        ("POST", "/v1beta/models/gemini-2.5-pro:countTokens", "count_tokens"),
        ("POST", "/v1/embeddings", "other"),
        ("GET", "/v1/models", "other"),
        ("GET", "/v1/responses", "other"),
    ],
)
def test_wires(method: str, path: str, wire: str) -> None:
    assert wire_of(method, path) == wire


def test_what_is_asked_for() -> None:
    body = json.dumps({"model": "m", "tools": [{}]}).encode()
    assert asked("/v1/responses", body, None).tools
    assert asked("/v1/responses", gzip.compress(body), "gzip").model == "m"
    assert asked("/v1beta/models/g-1:generateContent", b"{}", None).model == "g-1"
    for odd in (b"", b"[]", b"nonsense", b"[" * 100_000, b'{"model": 3}'):
        assert asked("/v1/responses", odd, None).model is None
    assert asked("/v1/responses", b"x", "br").body is None


def call(status: int, error: str = "", outcome: Any = "http_error", **more: Any) -> CallRecord:
    row = CallRecord("chat", "POST", "/p", more.pop("at", "2026-01-01T00:00:00.000Z"))
    row.status, row.error, row.outcome = status, error, outcome
    row.tools = more.pop("tools", True)
    return row


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (call(500), True),
        (call(529), True),
        (call(429, "rate_limit"), True),
        (call(429, "insufficient_quota: pay"), False),
        (call(401), False),
        (call(404, "model_not_found"), False),
        (call(400, "context_length_exceeded: 300000 > 200000"), None),
        (call(400, "prompt is too long: 300000 tokens > 200000 maximum"), None),
        (call(400, "invalid model"), False),
        (call(502, outcome="unreachable"), True),
        (call(200, outcome="ok"), None),
        (call(402, outcome="refused"), None),
    ],
)
def test_which_failures_are_the_providers(row: CallRecord, expected: bool | None) -> None:
    found = failure_of(row)
    assert (None if found is None else found.transient) == expected


def test_the_last_call_decides_and_titles_do_not() -> None:
    first, second, third = (f"2026-01-01T00:00:0{number}.000Z" for number in (1, 2, 3))
    good, bad = call(200, outcome="ok", at=first), call(500, at=second)
    assert Turn([good, bad]).failure is not None
    assert Turn([bad, good]).failure is not None  # by the time at which they were made
    assert Turn([bad, call(200, outcome="ok", at=third)]).failure is None
    assert Turn([bad, call(200, outcome="cancelled", at=third)]).failure is not None
    assert Turn([good, call(500, at=second, tools=False)]).failure is None
    assert Turn([call(500, at=second, tools=False)]).failure is not None
    assert Turn([]).failure is None


@pytest.mark.parametrize(
    ("base", "path", "allowed"),
    [
        ("https://a.example/v1", "/v1/responses", True),
        ("https://a.example/v1", "/v1beta/models", True),
        ("https://a.example", "/v1/messages", True),
        ("https://a.example/api/v1", "/api/v1/chat/completions", True),
        ("https://a.example/api/v1", "/apix/v1", False),
        ("https://a.example/api/v1", "/v1/chat/completions", False),
        ("https://a.example/openai/deployments/x", "/openai/deployments/x/chat/completions", True),
        ("https://a.example/openai/deployments/x", "/openai/deployments/y/chat/completions", False),
    ],
)
def test_below_which_path_a_route_leads(base: str, path: str, allowed: bool) -> None:
    assert Upstream.of(base, None).allows(path) == allowed


def test_a_token_is_in_the_path_or_in_the_key() -> None:
    assert token_of("/s/tok/v1/x", {}, "") == ("tok", "/v1/x")
    assert token_of("/s/tok", {}, "") == ("tok", "")
    assert token_of("/v1/x", {"authorization": "Bearer sk-ageval-tok"}, "") == ("tok", "/v1/x")
    assert token_of("/v1/x", {}, "a=b&key=sk-ageval-tok") == ("tok", "/v1/x")
    assert token_of("/v1/x", {"x-api-key": "sk-ant-other"}, "") == (None, "/v1/x")
