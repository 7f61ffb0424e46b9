"""The gateway's HTTP server: one listening port of 127.0.0.1 for a process, on its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytest_ageval import portal
from pytest_ageval.config.env import is_loopback
from pytest_ageval.gateway.exchange import Exchange, refuse
from pytest_ageval.gateway.routes import Route, token_of

if TYPE_CHECKING:
    from aiohttp import ClientSession, web

#: The only address that is listened on.
HOST = "127.0.0.1"

#: Seconds for a connection to a provider to be made. How long an answer may take is the agent's affair.
CONNECT_SECONDS = 30.0

#: Seconds for which an idle connection to a provider is used again: less than servers commonly keep
#: one. A request that meets a connection which is just being closed cannot safely be sent again.
IDLE_SECONDS = 4.0

#: Seconds that an idle connection of an agent is kept open.
KEEPALIVE = 300.0

#: Bytes of a request's first line and of one header.
MAX_LINE = 64 * 1024


class Gateway:
    """Passes on the requests of the sessions that have a route; refuses all others.

    Methods are called on the event loop that it was started on.
    """

    def __init__(self) -> None:
        self.port = 0
        self.loop = asyncio.get_running_loop()
        self._starting = asyncio.Lock()
        self._routes: dict[str, Route] = {}
        self._server: asyncio.Server | None = None
        self._handler: web.Server | None = None
        self._clients: dict[bool, ClientSession] = {}

    async def start(self) -> None:
        """Listen on a free port of its own. Idempotent."""
        async with self._starting:
            if self._server is None:
                await self._start()

    async def _start(self) -> None:
        # A quarter of a second of imports, which must not hold up the sessions on the loop.
        web = await asyncio.to_thread(importlib.import_module, "aiohttp.web")
        self._handler = web.Server(
            self._handle,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            keepalive_timeout=KEEPALIVE,
            max_line_size=MAX_LINE,
            max_field_size=MAX_LINE,
        )
        self._server = await self.loop.create_server(self._handler, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End all routes, and stop listening. Idempotent."""
        for route in list(self._routes.values()):
            await self.remove(route)
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._handler is not None:
            await self._handler.shutdown(1.0)
            self._handler = None
        for client in self._clients.values():
            await client.close()
        self._clients.clear()

    # -- routes ----------------------------------------------------------------------------------

    def add(self, route: Route) -> None:
        """From now on requests with the route's token are passed on."""
        self._routes[route.token] = route

    async def remove(self, route: Route) -> None:
        """The route is dead from now on; its calls are dropped. Idempotent."""
        self._routes.pop(route.token, None)
        await route.close()

    # -- requests --------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        # Absolute, where a proxy was asked to pass it on.
        parts = urlsplit(request.raw_path)
        token, path = token_of(parts.path, request.headers, parts.query)
        route = self._routes.get(token) if token else None
        if route is None or route.closed:
            return refuse(401, "authentication_error", "the gateway does not know this session")
        if not route.upstream.allows(path):
            return refuse(404, "not_found_error", "the gateway has nothing at this path")
        task = asyncio.current_task()
        assert task is not None  # a handler runs in one
        exchange = Exchange(route, request, path, parts.query)
        route.enter(task)
        try:
            return await exchange.run(functools.partial(self._client, route.upstream.origin))
        finally:
            route.leave(task, exchange.finish())

    async def _client(self, origin: str) -> ClientSession:
        """The connections to providers: of this machine, and beyond, where proxies may be needed."""
        here = is_loopback(origin)
        if here not in self._clients:
            import aiohttp

            context = None if here else await asyncio.to_thread(_certificates)
            if here not in self._clients:
                self._clients[here] = aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(
                        limit=0,
                        keepalive_timeout=IDLE_SECONDS,
                        ssl=context if context is not None else True,
                    ),
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                    auto_decompress=False,
                    trust_env=not here,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
                    read_bufsize=256 * 1024,
                    max_line_size=MAX_LINE,
                    max_field_size=MAX_LINE,
                )
        return self._clients[here]


@functools.cache
def _certificates() -> ssl.SSLContext:
    """The system's, and those of the package that comes with the HTTP client. Blocks."""
    import certifi

    context = ssl.create_default_context()
    with contextlib.suppress(OSError, ssl.SSLError):
        context.load_verify_locations(certifi.where())
    return context


_shared: Gateway | None = None


async def shared() -> Gateway:
    """The gateway of this process, started on first use on the running loop."""
    global _shared
    loop = asyncio.get_running_loop()
    found = _shared
    if found is None or found.loop is not loop:
        found = _shared = Gateway()
        portal.at_exit(found.close)
    await found.start()
    return found
