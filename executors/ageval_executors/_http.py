"""One model call over HTTP: bounded in time and bytes, streamed, and with typed failures."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ageval_executors._failure import CallFailedError, http_error, protocol_error
from ageval_executors._sse import EventReader
from ageval_executors._text import bounded, encode_json, mend

if TYPE_CHECKING:
    import ssl

    import httpx

#: Bytes of one answer that are read, and of an error's body.
MAX_ANSWER = 64 * 1024 * 1024
MAX_ERROR = 64 * 1024

#: Seconds for a connection to be made, and for the rest of a stream after its end marker.
CONNECT_SECONDS = 30.0
DRAIN_SECONDS = 0.2

Take = Callable[[Mapping[str, Any]], bool]


def is_loopback(url: str) -> bool:
    """The URL's host is this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def join_url(base: str, path: str) -> str:
    """`path` below the base URL, whose query is kept."""
    parts = urlsplit(base)
    return parts._replace(path=parts.path.rstrip("/") + path, fragment="").geturl()


class ModelClient:
    """The connection of one session to its provider. Made when it is first used; `close` ends it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._client is not None:
            await self._client.aclose()

    async def post(
        self,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        *,
        silence: float | None,
        event: Take,
        document: Take,
    ) -> None:
        """Send `body` and hand over what comes: each event of a stream, or one whole document.

        `event` and `document` return True when the answer is complete. `silence` is how many seconds
        may pass without a byte. Redirects are never followed: the key belongs to this host alone.
        Raises `CallFailedError`.
        """
        import httpx

        client = await self._open()
        timeout = httpx.Timeout(silence, connect=CONNECT_SECONDS)
        try:
            async with client.stream(
                "POST", self.url, content=encode_json(body), headers=dict(headers), timeout=timeout
            ) as response:
                await _receive(response, event, document)
        except httpx.ReadTimeout as error:
            raise CallFailedError(
                "model_silent",
                True,
                f"no byte for {silence:g} seconds",
                status="timeout",
                gap="lost_on_timeout",
            ) from error
        except httpx.HTTPError as error:
            name = type(error).__name__
            raise CallFailedError(f"TransportError:{name}", True, bounded(mend(str(error)), 500)) from error

    async def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            import httpx

            secure = urlsplit(self.url).scheme == "https"
            self._client = httpx.AsyncClient(
                # The certificates are read from disk, once a process and not on the event loop.
                verify=await asyncio.to_thread(_certificates) if secure else False,
                # A proxy of the environment is for the world outside, never for this machine.
                trust_env=not is_loopback(self.url),
                follow_redirects=False,
                limits=httpx.Limits(max_connections=4, keepalive_expiry=15.0),
            )
        return self._client


@functools.cache
def _certificates() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()


async def _receive(response: httpx.Response, event: Take, document: Take) -> None:
    chunks = response.aiter_bytes()
    if response.status_code != 200:
        raise await _refusal(response, chunks)
    kind = response.headers.get("content-type", "").lower()
    first = b""
    if "event-stream" not in kind and "json" not in kind:
        first = await _first(chunks)  # some servers do not say what they send
    if "json" in kind or first.startswith(b"{"):
        if not document(_object((first + await _rest(chunks, MAX_ANSWER)).decode("utf-8", "replace"))):
            raise protocol_error("the answer is not one of this API")
    elif "event-stream" in kind or first.startswith((b"data:", b"event:", b":")):
        await _stream(chunks, first, event)
    else:
        text = mend((first + await _rest(chunks, MAX_ERROR, cut=True)).decode("utf-8", "replace"))
        raise protocol_error(f"status 200 with {kind or 'no type'}: {bounded(text.strip(), 300)}")


async def _stream(chunks: AsyncIterator[bytes], first: bytes, event: Take) -> None:
    reader = EventReader()
    seen = 0
    total = len(first)

    def take(texts: Any) -> bool:
        nonlocal seen
        for text in texts:
            seen += 1
            # Chat Completions ends with a word that is no JSON.
            if event({"type": "[DONE]"} if text.strip() == "[DONE]" else _object(text)):
                return True
        return False

    done = take(reader.feed(first))
    while not done:
        chunk = await anext(chunks, None)
        if chunk is None:
            break
        total += len(chunk)
        if total > MAX_ANSWER:
            raise protocol_error(f"the answer is longer than {MAX_ANSWER} bytes")
        done = take(reader.feed(chunk))
    if done:
        await _drain(chunks)
    elif not take(reader.flush()):
        if seen == 0:
            raise protocol_error("the stream holds no event")
        raise CallFailedError("stream_cut", True, "the stream ended without its end marker")


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read to the stream's end if it is near, so that the connection can be used again."""
    import httpx

    with contextlib.suppress(TimeoutError, httpx.HTTPError):  # the answer is complete already
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in chunks:
                pass


async def _first(chunks: AsyncIterator[bytes]) -> bytes:
    first = b""
    while not first:
        chunk = await anext(chunks, None)
        if chunk is None:
            return b""
        first = chunk.lstrip()
    return first


async def _rest(chunks: AsyncIterator[bytes], limit: int, *, cut: bool = False) -> bytes:
    parts: list[bytes] = []
    total = 0
    async for chunk in chunks:
        parts.append(chunk)
        total += len(chunk)
        if total > limit:
            if cut:
                break
            raise protocol_error(f"the answer is longer than {limit} bytes")
    return b"".join(parts)[:limit] if cut else b"".join(parts)


async def _refusal(response: httpx.Response, chunks: AsyncIterator[bytes]) -> CallFailedError:
    raw = (await _rest(chunks, MAX_ERROR, cut=True)).decode("utf-8", "replace")
    status = response.status_code
    if 200 < status < 400:
        return CallFailedError(
            f"HTTPError:{status}", False, "the server redirects; a key is sent to one host only"
        )
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    return http_error(status, response.headers, body, raw)


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise protocol_error(f"not JSON: {bounded(mend(text), 200)}") from None
    if not isinstance(found, Mapping):
        raise protocol_error(f"not a JSON object: {bounded(mend(text), 200)}")
    return found
