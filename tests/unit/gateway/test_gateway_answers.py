"""Answers that must reach the agent, and the evidence, as the provider gave them."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from gateway_kit import client, ended, gateway, provider, route

RESPONSES = {"model": "m", "input": "hi"}


@pytest.mark.parametrize("key", ["k", "EMPTY", "ollama"])
def test_a_word_that_stands_for_a_key_changes_no_answer(key: str) -> None:
    async def run() -> None:
        said = {"tokens": 7, "text": f"{key} is a word"}

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            assert request.headers["authorization"] == f"Bearer {key}"
            status = 400 if "fail" in await request.text() else 200
            return web.json_response(said, status=status, headers={"x-model": f"{key}-8b"})

        async with provider(answer) as origin, gateway() as at, client() as http:
            _, base = route(at, f"{origin}/v1", key=key)
            for body in (RESPONSES, {**RESPONSES, "input": "fail"}):
                got = await http.post(f"{base}/responses", json=body)
                assert got.json() == said
                assert got.headers["x-model"] == f"{key}-8b"

    asyncio.run(run())


def test_an_agent_that_hangs_up_after_the_end_marker_has_the_whole_answer() -> None:
    frames = (
        b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n',
        b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}\n\ndata: [DONE]\n\n',
    )

    async def run() -> None:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await reply.prepare(request)
            for frame in frames:
                await reply.write(frame)
            await asyncio.sleep(30)  # the provider is slow to close
            return reply

        async with provider(answer) as origin, gateway() as at, client() as http:
            made, base = route(at, f"{origin}/v1")
            body = {"model": "m", "messages": []}
            async with http.stream("POST", f"{base}/chat/completions", json=body) as got:
                async for line in got.aiter_lines():
                    if "[DONE]" in line:
                        break
            call = await ended(made)
        assert (call.outcome, call.stop_reason) == ("ok", "stop")
        assert call.usage is not None
        assert (call.usage.prompt_tokens, call.usage.completion_tokens) == (9, 2)
        assert call.usage.unavailable is None

    asyncio.run(run())
