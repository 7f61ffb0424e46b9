"""A gateway on the running loop, and providers for it that do what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from aiohttp import web

from pytest_ageval.gateway.calls import CallRecord
from pytest_ageval.gateway.routes import Route, Upstream
from pytest_ageval.gateway.server import Gateway

KEY = "sk-real-0123456789abcdef"

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def gateway() -> AsyncIterator[Gateway]:
    made = Gateway()
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def provider(handler: Handler) -> AsyncIterator[str]:
    """The origin of a server that answers with `handler`."""
    server = web.Server(handler, auto_decompress=False)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        await server.shutdown(1)


def route(at: Gateway, base_url: str, key: str | None = KEY, **more: Any) -> tuple[Route, str]:
    """A new route and the base URL that an agent would get."""
    made = Route(Upstream.of(base_url, key), **more)
    at.add(made)
    return made, made.base_url(f"127.0.0.1:{at.port}")


async def ended(made: Route) -> CallRecord:
    """The last call, when it has ended."""
    await made.settled(5)
    return made.calls[-1]


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=10, trust_env=False)
