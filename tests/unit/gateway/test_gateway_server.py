"""What passes the gateway, what does not, and what is known of it afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from aiohttp import web
from gateway_kit import KEY, client, ended, gateway, provider, route

from pytest_ageval.executor import Usage
from pytest_ageval.gateway.recording import Player, Recorder, Recording
from pytest_ageval.testing.scripted_model import (
    Cut,
    Garbage,
    Hang,
    HttpError,
    Malformed,
    ScriptedModel,
    StreamError,
    Text,
    Tokens,
)

TOKENS = Tokens(input=1000, cached=200, cache_write=0, output=50, reasoning=10)
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}
RESPONSES = {"model": "m", "input": "hi"}
TOOLS = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "wire", "stop"),
    [
        ("/v1/chat/completions", {**ASK, "stream_options": {"include_usage": True}}, "chat", "stop"),
        ("/v1/responses", RESPONSES, "responses", "completed"),
        ("/v1/messages", ASK, "anthropic", "end_turn"),
    ],
)
def test_an_answer_passes_and_is_measured(
    path: str, body: dict[str, object], wire: str, stop: str, stream: bool
) -> None:
    async def run() -> None:
        with ScriptedModel([Text("hello", tokens=TOKENS)]) as model:
            async with gateway() as at, client() as http:
                made, base = route(at, model.base_url)
                url = base.removesuffix("/v1") + path
                sent = {**body, "stream": stream}
                if path.endswith("chat/completions") and not stream:
                    del sent["stream_options"]
                got = await http.post(url, json=sent, headers={"x-api-key": made.key})
                direct = await http.post(model.base_url.removesuffix("/v1") + path, json=sent)
                call = await ended(made)
            assert got.status_code == 200
            assert got.headers["content-type"] == direct.headers["content-type"]
            assert "hello" in got.text or "hel" in got.text
            assert (call.wire, call.outcome, call.status) == (wire, "ok", 200)
            assert (call.model, call.stop_reason, call.streamed) == ("m", stop, stream)
            assert call.first_byte_seconds is not None
            assert call.seconds is not None
            assert call.usage is not None
            figures = call.usage
            assert (figures.prompt_tokens, figures.completion_tokens) == (1000, 50)
            assert (figures.cached_tokens, figures.source) == (200, "gateway")
            assert figures.reasoning_tokens == (None if wire == "anthropic" else 10)
            assert figures.unavailable is None
            assert model.requests[0].api_key == KEY

    asyncio.run(run())


def test_usage_that_is_not_sent_is_none_and_not_zero() -> None:
    async def run() -> None:
        with ScriptedModel([Text("hello")]) as model:
            async with gateway() as at, client() as http:
                made, base = route(at, model.base_url)
                await http.post(f"{base}/chat/completions", json={**ASK, "stream": True})
                call = await ended(made)
        assert call.usage == Usage(source="gateway", unavailable="not_reported")
        assert made.turn(0).usage == Usage(source="gateway", unavailable="not_reported")

    asyncio.run(run())


def test_a_stream_is_not_held_back() -> None:
    async def run() -> None:
        with ScriptedModel([Text("abcdef", pieces=3, pause=0.3)]) as model:
            async with gateway() as at, client() as http:
                _, base = route(at, model.base_url)
                arrived: list[float] = []
                async with http.stream(
                    "POST", f"{base}/chat/completions", json={**ASK, "stream": True}
                ) as got:
                    arrived += [time.monotonic() async for _ in got.aiter_raw()]
        assert arrived[-1] - arrived[0] > 0.5

    asyncio.run(run())


def test_without_a_known_token_nothing_is_passed_on() -> None:
    async def run() -> None:
        with ScriptedModel([Text("hello")] * 3) as model:
            async with gateway() as at, client() as http:
                made, base = route(at, model.base_url)
                origin = f"http://127.0.0.1:{at.port}"
                for url, headers in (
                    (f"{origin}/v1/messages", {}),
                    (f"{origin}/v1/messages", {"authorization": f"Bearer {KEY}"}),
                    (f"{origin}/s/guess/v1/messages", {"x-api-key": made.key}),
                    (f"{origin}/s//v1/messages", {}),
                ):
                    got = await http.post(url, json=ASK, headers=headers)
                    assert got.status_code == 401, url
                assert not model.requests
                # The dummy key alone is enough for an agent that does not keep the base's path.
                got = await http.post(f"{origin}/v1/messages", json=ASK, headers={"x-api-key": made.key})
                assert got.status_code == 200
                await at.remove(made)
                assert (await http.post(f"{base}/messages", json=ASK)).status_code == 401
            assert len(model.requests) == 1

    asyncio.run(run())


def test_a_route_leads_to_its_provider_only() -> None:
    async def run() -> None:
        seen = []

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            seen.append(request.raw_path)
            return web.json_response({"data": []})

        async with provider(answer) as origin, gateway() as at, client() as http:
            made, base = route(at, f"{origin}/team/v1?api-version=3")
            prefix = f"http://127.0.0.1:{at.port}/s/{made.token}"
            assert base == f"{prefix}/team/v1?api-version=3"
            assert (await http.get(f"{prefix}/team/v1/models?limit=2")).status_code == 200
            assert (await http.get(f"{prefix}/other/v1/models")).status_code == 404
            for path in ("/team/../other", "/team/%2e%2e/other", "//evil/team"):
                raw = await _raw(at.port, f"/s/{made.token}{path}")
                assert b" 404 " in raw.split(b"\r\n")[0], path
        assert seen == ["/team/v1/models?limit=2&api-version=3"]

    asyncio.run(run())


async def _raw(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    found = await reader.read()
    writer.close()
    return found


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"authorization": "Bearer dummy"}, ("authorization", f"Bearer {KEY}")),
        ({"x-api-key": "dummy"}, ("x-api-key", KEY)),
        ({"x-goog-api-key": "dummy"}, ("x-goog-api-key", KEY)),
        # With no header but the query's key, as Google's clients may do.
        ({}, ("x-goog-api-key", KEY)),
    ],
)
def test_the_real_key_goes_where_the_agent_puts_its_own(
    sent: dict[str, str], expected: tuple[str, str]
) -> None:
    async def run() -> None:
        got: dict[str, str] = {}

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            got.update({name.lower(): value for name, value in request.headers.items()})
            got["path"] = request.raw_path
            return web.json_response({}, headers={"x-echo": f"key {KEY}", "x-other": "1"})

        async with provider(answer) as origin, gateway() as at, client() as http:
            _, base = route(at, f"{origin}/v1")
            reply = await http.get(f"{base}/models?key=dummy&a=1", headers={**sent, "cookie": "c=1"})
        assert got[expected[0]] == expected[1]
        assert "dummy" not in json.dumps(got)
        assert "cookie" not in got
        assert got["path"] == "/v1/models?a=1"
        assert "x-echo" not in reply.headers
        assert reply.headers["x-other"] == "1"

    asyncio.run(run())


def test_an_error_passes_as_it_is_but_for_the_key() -> None:
    async def run() -> None:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            body = {"error": {"message": f"bad key {KEY}", "type": "rate_limit"}}
            return web.json_response(body, status=429, headers={"retry-after": "7"})

        async with provider(answer) as origin, gateway() as at, client() as http:
            made, base = route(at, f"{origin}/v1")
            got = await http.post(f"{base}/responses", json=RESPONSES)
            call = await ended(made)
        assert got.status_code == 429
        assert got.headers["retry-after"] == "7"
        assert got.json()["error"]["message"] == "bad key ********"
        assert KEY not in call.error
        assert (call.outcome, call.status, call.retry_after) == ("http_error", 429, 7.0)
        failure = made.turn(0).failure
        assert failure is not None
        assert failure.transient
        assert failure.retry_after == 7.0
        assert made.turn(0).usage is None

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fault", "outcome", "transient"),
    [
        (HttpError(500), "http_error", True),
        (HttpError(401), "http_error", False),
        (HttpError(429, code="insufficient_quota"), "http_error", False),
        (Cut("half"), "cut", True),
        (Cut("half", clean=True), "cut", True),
        (Garbage(), "garbage", True),
        (Malformed("half"), "garbage", True),
        (StreamError(after="half"), "provider_error", True),
    ],
)
@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages"])
def test_a_failure_of_the_provider_is_seen(fault: object, outcome: str, transient: bool, path: str) -> None:
    async def run() -> None:
        with ScriptedModel([fault, Text("well")]) as model:  # type: ignore[list-item]
            async with gateway() as at, client() as http:
                made, base = route(at, model.base_url)
                body = {**(RESPONSES if path == "/responses" else ASK), "stream": True}
                try:
                    await http.post(base + path, json=body)
                except httpx.HTTPError:
                    assert outcome == "cut"
                call = await ended(made)
                failure = made.turn(0).failure
                assert call.outcome == outcome, call.error
                assert failure is not None
                assert failure.transient == transient, failure
                await http.post(base + path, json=body)
                await made.settled(5)
                assert made.turn(0).failure is None

    asyncio.run(run())


def test_a_provider_that_is_not_there() -> None:
    async def run() -> None:
        async with gateway() as at, client() as http:
            made, base = route(at, "http://127.0.0.1:9/v1")
            got = await http.post(f"{base}/responses", json=RESPONSES)
            call = await ended(made)
        assert got.status_code == 502
        assert (call.outcome, call.status) == ("unreachable", 502)
        assert made.turn(0).failure is not None

    asyncio.run(run())


def test_an_agent_that_goes_away_ends_the_providers_call() -> None:
    async def run() -> None:
        gone = asyncio.Event()

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await reply.prepare(request)
            try:
                while True:
                    await reply.write(b"data: {}\n\n")
                    await asyncio.sleep(0.02)
            finally:
                gone.set()

        async with provider(answer) as origin, gateway() as at, client() as http:
            made, base = route(at, f"{origin}/v1")
            async with http.stream("POST", f"{base}/responses", json=RESPONSES) as got:
                async for _ in got.aiter_raw():
                    break
            await asyncio.wait_for(gone.wait(), 5)
            call = await ended(made)
        assert call.outcome == "cancelled"
        assert made.turn(0).failure is None

    asyncio.run(run())


def test_closing_a_route_drops_its_calls() -> None:
    async def run() -> None:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            await asyncio.sleep(60)
            return web.Response()

        async with provider(answer) as origin, gateway() as at, client() as http:
            made, base = route(at, f"{origin}/v1")
            asking = asyncio.create_task(http.post(f"{base}/responses", json=RESPONSES))
            await asyncio.sleep(0.2)
            before = time.monotonic()
            await at.remove(made)
            with pytest.raises(httpx.HTTPError):
                await asking
            assert time.monotonic() - before < 2
            assert [call.outcome for call in made.calls] == ["cancelled"]

    asyncio.run(run())


def test_a_budget_stops_a_call_before_it_leaves() -> None:
    async def run() -> None:
        told: list[Usage] = []
        reasons = [None, "max_tokens"]
        with ScriptedModel([Text("one", tokens=TOKENS)]) as model:
            async with gateway() as at, client() as http:
                made, base = route(at, model.base_url, refuse=lambda: reasons.pop(0), called=told.append)
                assert (await http.post(f"{base}/responses", json=RESPONSES)).status_code == 200
                got = await http.post(f"{base}/responses", json=RESPONSES)
                assert (await http.get(f"{base}/models")).status_code == 200
                await made.settled(5)
            assert (got.status_code, got.headers["x-should-retry"]) == (402, "false")
            assert len(model.requests) == 1
        assert [row.prompt_tokens for row in told] == [1000]
        refused = made.turn(0).refused
        assert refused is not None
        assert refused.error == "max_tokens"
        assert made.turn(0).failure is None

    asyncio.run(run())


def test_a_request_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ageval.gateway.exchange.MAX_REQUEST", 1000)

    async def run() -> None:
        async with gateway() as at, client() as http:
            made, base = route(at, "http://127.0.0.1:9/v1")
            got = await http.post(f"{base}/responses", json={**RESPONSES, "pad": "x" * 2000})
            assert got.status_code == 413
            assert (await ended(made)).outcome == "too_large"

    asyncio.run(run())


def test_calls_without_tools_do_not_decide() -> None:
    async def run() -> None:
        def by(request: object) -> object:
            return HttpError(500) if not getattr(request, "tools", None) else None

        with ScriptedModel([Text("well")], by=by) as model:  # type: ignore[arg-type]
            async with gateway() as at, client() as http:
                made, base = route(at, model.base_url)
                await http.post(f"{base}/chat/completions", json={**ASK, **TOOLS})
                await http.post(f"{base}/chat/completions", json=ASK)
                await made.settled(5)
                assert [call.outcome for call in made.calls] == ["ok", "http_error"]
                assert made.turn(0).failure is None
                assert made.turn(1).failure is not None

    asyncio.run(run())


def test_bodies_in_pieces_packed_or_announced() -> None:
    async def run() -> None:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            body = await request.content.read()
            return web.json_response({"got": len(body), "coding": request.headers.get("content-encoding")})

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"x" * 1000

        async with provider(answer) as origin, gateway() as at, client() as http:
            made, base = route(at, f"{origin}/v1")
            assert (await http.post(f"{base}/files", content=pieces())).json()["got"] == 3000
            packed = gzip.compress(json.dumps({**RESPONSES, **TOOLS}).encode())
            got = await http.post(f"{base}/responses", content=packed, headers={"content-encoding": "gzip"})
            assert got.json() == {"got": len(packed), "coding": "gzip"}
            call = await ended(made)
            assert (call.model, call.tools) == ("m", True)
            reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
            head = f"POST /s/{made.token}/v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n"
            writer.write(f"{head}expect: 100-continue\r\nconnection: close\r\n\r\n".encode())
            assert b"100 Continue" in await asyncio.wait_for(reader.readline(), 5)
            writer.write(b"body")
            assert b'"got": 4' in await asyncio.wait_for(reader.read(), 5)
            writer.close()

    asyncio.run(run())


def test_an_answer_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ageval.gateway.exchange.MAX_ANSWER", 100_000)

    async def run() -> None:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await reply.prepare(request)
            while True:
                await reply.write(b"data: {}\n\n" * 1000)

        async with provider(answer) as origin, gateway() as at, client() as http:
            made, base = route(at, f"{origin}/v1")
            with pytest.raises(httpx.HTTPError):
                await http.post(f"{base}/responses", json=RESPONSES)
            assert (await ended(made)).outcome == "too_large"

    asyncio.run(run())


def test_what_is_recorded_is_played_with_its_faults(tmp_path: Path) -> None:
    script = [HttpError(503, retry_after=2), Cut("half"), Text("whole", tokens=TOKENS)]
    scope = Path("d/t/s")

    async def ask(http: httpx.AsyncClient, base: str, stream: bool = True) -> object:
        try:
            got = await http.post(f"{base}/responses", json={**RESPONSES, "stream": stream})
        except httpx.HTTPError:
            return "broken"
        return got.status_code, got.headers.get("retry-after"), got.headers["content-type"], got.text

    async def drop(http: httpx.AsyncClient, base: str) -> None:
        with contextlib.suppress(httpx.TimeoutException):
            await http.post(f"{base}/responses", json={**RESPONSES, "input": "slow"}, timeout=0.5)

    async def run() -> None:
        recorder = Recorder(tmp_path, scope, lambda text: text)
        recorder.begin()
        with ScriptedModel(script, by=lambda r: Hang(60) if r.prompt == "slow" else None) as model:
            async with gateway() as at, client() as http:
                made, base = route(at, model.base_url, recorder=recorder)
                first = [await ask(http, base) for _ in range(3)]
                await drop(http, base)
                await at.remove(made)
                recorded = [call.as_dict() for call in made.calls]
        assert [row["outcome"] for row in recorded] == ["http_error", "cut", "ok", "cancelled"]
        async with gateway() as at, client() as http:
            made, base = route(at, "http://127.0.0.1:9/v1", player=Player(Recording(tmp_path), scope))
            assert [await ask(http, base) for _ in range(3)] == first
            before = time.monotonic()
            await drop(http, base)
            assert time.monotonic() - before > 0.4
            misses: list[str] = []
            made.missed = misses.append
            assert (await http.post(f"{base}/responses", json=ASK)).status_code == 404
            assert (await http.get(f"{base}/models")).status_code == 404
            await made.settled(5)
            assert len(misses) == 1
            assert "-" in misses[0]
        played = [call.as_dict() for call in made.calls]
        for row, again in zip(recorded, played, strict=False):
            same = ("outcome", "status", "usage", "stop_reason", "model", "wire")
            assert {name: row[name] for name in same} == {name: again[name] for name in same}
        assert [row["outcome"] for row in played[4:]] == ["replay_miss", "replay_miss"]
        assert made.turn(0).missed is made.calls[4]

    asyncio.run(run())


def test_an_agent_that_goes_away_while_much_is_on_its_way() -> None:
    """Its connection may break under a write before the server has noticed: no failure of the provider."""

    async def run() -> None:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await reply.prepare(request)
            for _ in range(2000):
                await reply.write(b"data: {}\n\n" * 500)
            return reply

        async with provider(answer) as origin, gateway() as at:
            made, _ = route(at, f"{origin}/v1")
            for _ in range(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
                head = f"POST /s/{made.token}/v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n"
                writer.write(head.encode() + b"{}")
                await reader.readexactly(100_000)
                writer.transport.abort()
                assert (await ended(made)).outcome == "cancelled"
        assert made.turn(0).failure is None

    asyncio.run(run())
