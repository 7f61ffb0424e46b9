"""One request of an agent and its answer, as they pass the gateway."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pytest_ageval.evidence.files import now
from pytest_ageval.executor import Usage
from pytest_ageval.gateway import headers as header_rules
from pytest_ageval.gateway.calls import CallRecord, Outcome
from pytest_ageval.gateway.reading import ERROR_TEXT, Reading
from pytest_ageval.gateway.usage import SOURCE, usage_of
from pytest_ageval.gateway.wires import asked, wire_of

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, web

    from pytest_ageval.gateway.canonical import Canonical
    from pytest_ageval.gateway.recording import Answer, End
    from pytest_ageval.gateway.routes import Route
    from pytest_ageval.pacing import Holding

#: Bytes of a request, of an answer, and of an error's body.
MAX_REQUEST = 64 * 1024 * 1024
MAX_ANSWER = 512 * 1024 * 1024
MAX_ERROR = 1024 * 1024

#: With these and ``Retry-After`` a provider asks to be left alone for a while.
TOO_MANY = frozenset({429, 503, 529})

#: Seconds that a replayed call hangs which the agent had dropped when it was recorded.
REPLAY_HANG = 120.0

Client = Callable[[], Awaitable["ClientSession"]]


class Exchange:
    """One request. `run` answers it, `finish` then gives its record, on every path."""

    def __init__(self, route: Route, request: web.BaseRequest, path: str, query: str) -> None:
        self.route = route
        self.request = request
        self.path = path
        self.query = query
        self._clock = time.monotonic
        self._arrived = self._clock()
        self._encoding = request.headers.get("content-encoding")
        self._body = b""
        self._reading: Reading | None = None
        self._asked = asked("", b"", None)
        self._recorded: tuple[int, Canonical] | None = None
        self._kept = bytearray()
        self._headers: dict[str, str] = {}
        self.call = CallRecord(
            wire=wire_of(request.method, path),
            method=request.method,
            path=path[:500],
            started_at=now(),
            replayed=route.player is not None,
        )

    async def run(self, client: Client) -> web.StreamResponse:
        """Answer the request."""
        if not await self._read_request():
            self._ended("too_large", f"the request is larger than {MAX_REQUEST} bytes")
            return refuse(413, "request_too_large", self.call.error)
        if self.call.generates and (reason := self.route.refuse()) is not None:
            self._ended("refused", reason)
            self.call.status = 402
            return refuse(402, "billing_error", f"no further model call: {reason}", code="insufficient_quota")
        if self.route.player is not None:
            return await self._replay()
        if self.route.recorder is not None:
            self._recorded = (self.route.recorder.number(), await asyncio.to_thread(self._canonical))
        holding = self.route.holding
        if holding is None or not self.call.generates:
            return await self._pass_on(client)
        with holding.call():
            await self._wait_for_turn(holding)
            return await self._pass_on(client)

    async def _wait_for_turn(self, holding: Holding) -> None:
        """Attempts of the run call the same provider. The wait is no part of the call's time."""
        before = self._clock()
        await holding.turn()
        self._arrived += self._clock() - before

    async def _read_request(self) -> bool:
        if self.request.headers.get("expect", "").lower() == "100-continue":
            writer = self.request.writer
            await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            writer.output_size = 0
        found = bytearray()
        async for chunk in self.request.content.iter_any():
            found += chunk
            if len(found) > MAX_REQUEST:
                return False
        self._body = bytes(found)
        self.call.request_bytes = len(found)
        return True

    # -- to the provider -------------------------------------------------------------------------

    async def _pass_on(self, client: Client) -> web.StreamResponse:
        import aiohttp
        from yarl import URL

        upstream = self.route.upstream
        url = URL(upstream.url(self.path, self.query), encoded=True)
        sent = header_rules.outgoing(self.request.headers.items(), self.query, self.call.wire, upstream.key)
        try:
            session = await client()
            response = await session.request(
                self.request.method,
                url,
                data=self._body or None,
                headers=sent,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            # Its message may quote a header.
            words = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else type(error).__name__
            self._ended("unreachable", words)
            self.call.status = 502
            return refuse(502, "api_error", f"the provider was not reached: {type(error).__name__}")
        async with response:
            return await self._answer(response)

    async def _answer(self, response: ClientResponse) -> web.StreamResponse:
        self._begin(response.status, dict(response.headers))
        if response.status >= 400:
            return await self._error(response)
        key = self.route.upstream.secret
        rows = header_rules.incoming(response.headers.items(), key, length=True)
        reply = _reply(response.status, rows)
        await reply.prepare(self.request)
        secret = key.encode() if key else b""
        try:
            async for chunk in response.content.iter_any():
                if secret and secret in chunk:
                    chunk = chunk.replace(secret, b"*" * len(secret))
                await self._give(reply, chunk)
                if self.call.response_bytes > MAX_ANSWER:
                    self._ended("too_large", f"the answer is larger than {MAX_ANSWER} bytes")
                    return self._break(reply)
        except _broken() as error:
            self._done("cut", type(error).__name__)
            return self._break(reply)
        # Known before the agent can read the end: the turn may be over then.
        self._done("complete")
        await reply.write_eof()
        return reply

    async def _error(self, response: ClientResponse) -> web.StreamResponse:
        """An error as it came, but for the key, which some servers repeat in their message."""
        body = bytearray()
        try:
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_ERROR:
                    break
        except _broken():
            pass  # the status says enough
        key = self.route.upstream.secret
        found = bytes(body[:MAX_ERROR])
        if key:
            found = found.replace(key.encode(), b"*" * 8)
        rows = header_rules.incoming(response.headers.items(), key, length=False)
        return await self._send_whole(response.status, rows, found)

    # -- from a recording ------------------------------------------------------------------------

    def _canonical(self) -> Canonical:
        normalise = self.route.normalise
        self._asked = asked(self.path, self._body, self._encoding)
        body = self._asked.body
        if body is None and self._body:
            body = self._body.decode("utf-8", "replace")
        return normalise(self.request.method, self.path, body)

    async def _replay(self) -> web.StreamResponse:
        player = self.route.player
        assert player is not None  # the caller looked
        wanted = await asyncio.to_thread(self._canonical)
        answer = await asyncio.to_thread(player.answer, wanted)
        if answer is None:
            message = await asyncio.to_thread(player.difference, wanted)
            self._ended("replay_miss", message.partition("; ")[0])
            self.call.status = 404
            if self.call.generates:
                self.route.missed(message)
            return refuse(404, "replay_miss", self.call.error, code="replay_miss")
        return await self._play(answer)

    async def _play(self, answer: Answer) -> web.StreamResponse:
        if answer.status is None:
            await asyncio.sleep(REPLAY_HANG)
            self._ended(
                "unreachable", "the recording has no answer: the agent went away before there was one"
            )
            return refuse(502, "api_error", self.call.error)
        self._begin(answer.status, dict(answer.headers))
        rows = list(answer.headers.items())
        if answer.end == "complete" and (answer.status >= 400 or not self.call.streamed):
            return await self._send_whole(answer.status, rows, answer.body)
        reply = _reply(answer.status, rows)
        await reply.prepare(self.request)
        for piece in _events(answer.body):
            await self._give(reply, piece)
        if answer.end == "client_gone":
            await asyncio.sleep(REPLAY_HANG)
        if answer.end != "complete":
            self._done("cut", "as recorded")
            return self._break(reply)
        self._done("complete")
        await reply.write_eof()
        return reply

    # -- common ----------------------------------------------------------------------------------

    def _begin(self, status: int, found: dict[str, str]) -> None:
        self._headers = {name.lower(): value for name, value in found.items()}
        kind = self._headers.get("content-type", "")
        self.call.status = status
        self.call.streamed = "event-stream" in kind
        self.call.retry_after = header_rules.retry_after(self._headers.get("retry-after"))
        if status in TOO_MANY and self.call.retry_after is not None and self.route.holding is not None:
            self.route.holding.pace.hold(self.call.retry_after)
        self._reading = Reading(self.call.wire, status, kind, self._headers.get("content-encoding"))

    async def _give(self, reply: web.StreamResponse, chunk: bytes) -> None:
        """Pass a piece on, and only then look at it."""
        if self.call.first_byte_seconds is None:
            self.call.first_byte_seconds = self._elapsed()
        try:
            await reply.write(chunk)
        except ConnectionError as error:
            # The agent is gone, and the server has not said so yet. It must not look like the provider's end.
            raise asyncio.CancelledError from error
        self._see(chunk)

    def _see(self, chunk: bytes) -> None:
        self.call.response_bytes += len(chunk)
        if self._reading is not None:
            self._reading.feed(chunk)
        if self._recorded is not None:
            self._kept += chunk

    async def _send_whole(self, status: int, rows: list[tuple[str, str]], body: bytes) -> web.StreamResponse:
        self.call.first_byte_seconds = self._elapsed()
        self._see(body)
        self._done("complete")
        reply = _reply(status, rows)
        if status not in (204, 304) and self.request.method != "HEAD":
            reply.content_length = len(body)
        await reply.prepare(self.request)
        if body and self.request.method != "HEAD":
            await reply.write(body)
        await reply.write_eof()
        return reply

    def _break(self, reply: web.StreamResponse) -> web.StreamResponse:
        """End the connection as the provider did: in the middle."""
        if self.request.transport is not None:
            self.request.transport.abort()
        return reply

    def _elapsed(self) -> float:
        return round(self._clock() - self._arrived, 4)

    def _ended(self, outcome: Outcome, error: str = "") -> None:
        if self.call.outcome is None:
            self.call.outcome = outcome
            self.call.error = error[:ERROR_TEXT]
            self.call.seconds = self._elapsed()

    def _done(self, end: End, error: str = "") -> None:
        """The provider's answer is over; say how it went."""
        reading = self._reading
        assert reading is not None  # an answer had begun
        reading.end(cut=end == "cut")
        call = self.call
        call.stop_reason = reading.stop_reason
        if call.generates:
            call.usage = usage_of(call.wire, reading.usage)
        if end == "cut" and call.usage is not None and call.usage.unavailable is None and not reading.whole:
            call.usage = Usage(**{**call.usage.as_dict(), "unavailable": "partial"})
        if reading.status >= 400:
            self._ended("http_error", reading.error)
        elif reading.failure == "garbage":
            self._ended("garbage", reading.error)
        elif reading.failure == "provider_error":
            self._ended("provider_error", reading.error)
        elif reading.failure == "cut" and call.generates:
            self._ended("cut", error or "the stream ended without its end marker")
        else:
            self._ended("ok" if end == "complete" or reading.whole else "cut", error)
        self._keep(end)

    def finish(self) -> CallRecord:
        """The record. A call that nobody ended was dropped by the agent, or by the end of the session."""
        call = self.call
        if call.outcome is None:
            gone = self._reading
            if gone is not None and call.generates:
                found = usage_of(call.wire, gone.usage)
                # Some agents hang up when they have read the end marker.
                open_end = found.unavailable is None and not gone.whole
                call.usage = Usage(**{**found.as_dict(), "unavailable": "partial"}) if open_end else found
                call.stop_reason = gone.stop_reason
            self._ended("ok" if gone is not None and gone.whole else "cancelled")
            self._keep("client_gone")
        elif call.usage is None and call.generates and call.outcome in ("ok", "cut"):
            call.usage = Usage(source=SOURCE, unavailable="not_reported")
        if self._asked.body is None:
            self._asked = asked(self.path, self._body, self._encoding)
        reading = self._reading
        call.model = self._asked.model or (reading.model if reading is not None else None)
        call.tools = self._asked.tools
        call.error = self.route.scrub(call.error)
        self._body = b""
        return call

    def _keep(self, end: End) -> None:
        """Write the call into the recording, beside the loop."""
        recorder, recorded = self.route.recorder, self._recorded
        if recorder is None or recorded is None:
            return
        self._recorded = None
        from pytest_ageval.gateway import recording

        if len(self._kept) > recording.MAX_RECORDED:
            self.route.unrecorded(f"an answer of more than {recording.MAX_RECORDED} bytes")
            return
        kept = {name: self._headers[name] for name in recording.RESPONSE_HEADERS if name in self._headers}
        status = self.call.status if self._reading is not None else None
        body = bytes(self._kept)
        answer = recording.Answer(status, kept, body, end)
        sent = {
            name: self.request.headers[name]
            for name in recording.REQUEST_HEADERS
            if name in self.request.headers
        }
        number, wanted = recorded
        self.route.write(recorder.write, number, wanted, sent, answer)


def refuse(status: int, kind: str, message: str, code: str | None = None) -> web.Response:
    """An answer of the gateway's own, in the shapes that clients of all APIs look for.

    ``x-should-retry`` keeps OpenAI's and Anthropic's clients from trying again.
    """
    from aiohttp import web

    error = {"type": kind, "code": code or kind, "message": message, "status": kind.upper()}
    body = json.dumps({"type": "error", "error": error})
    return web.Response(
        status=status, text=body, content_type="application/json", headers={"x-should-retry": "false"}
    )


def _reply(status: int, rows: list[tuple[str, str]]) -> web.StreamResponse:
    from aiohttp import web

    reply = web.StreamResponse(status=status)
    for name, value in rows:
        reply.headers.add(name, value)
    return reply


def _broken() -> tuple[type[BaseException], ...]:
    import aiohttp

    return (aiohttp.ClientError, OSError, TimeoutError)


def _events(body: bytes) -> list[bytes]:
    """The events of a stream, each with its end."""
    parts = body.split(b"\n\n")
    return [part + b"\n\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
