"""One model call over HTTP: bounded in time and bytes, streamed, and with typed failures."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import io
import ipaddress
import json
import os
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from ageval_executors._failure import CallFailedError, http_error, protocol_error
from ageval_executors._sse import EventReader
from ageval_executors._text import bounded, mend

if TYPE_CHECKING:
    import ssl

    import aiohttp

#: Bytes of one answer that are read, and of an error's body.
MAX_ANSWER = 64 * 1024 * 1024
MAX_ERROR = 64 * 1024

#: Bytes of one header.
MAX_HEADER = 64 * 1024

#: Seconds for a connection to be made, and for the rest of a stream after its end marker.
CONNECT_SECONDS = 30.0
DRAIN_SECONDS = 0.2


class Sink(Protocol):
    """What takes an answer as it arrives."""

    def event(self, data: Mapping[str, Any]) -> bool:
        """A piece of a stream; True when the answer is complete."""
        ...

    def document(self, data: Mapping[str, Any]) -> bool:
        """A whole answer; False when it is not one."""
        ...

    def ended(self) -> bool:
        """The stream is over without an end marker; True when the answer is complete all the same."""
        ...


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
        self._client: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._client is not None:
            await self._client.close()

    async def post(
        self,
        content: bytes,
        headers: Mapping[str, str],
        into: Sink,
        *,
        silence: float | None,
    ) -> None:
        """Send `content` and hand what comes over to `into`: the events of a stream, or one document.

        `silence` is how many seconds may pass without a byte. Redirects are never followed: the key
        belongs to this host alone. Raises `CallFailedError`.
        """
        client = await self._open()
        import aiohttp
        from aiohttp.http import HttpProcessingError

        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=silence)
        try:
            async with client.post(
                self.url,
                data=io.BytesIO(content),  # bytes of more than one MiB are warned about
                headers=headers,
                timeout=timeout,
                proxy=_proxy(self.url),
                allow_redirects=False,
            ) as response:
                await _receive(response, into)
        except aiohttp.SocketTimeoutError as error:
            raise CallFailedError(
                "model_silent",
                True,
                f"no byte for {silence:g} seconds",
                status="timeout",
                gap="lost_on_timeout",
            ) from error
        except (aiohttp.NonHttpUrlClientError, aiohttp.InvalidURL) as error:
            raise CallFailedError("base_url_invalid", False, bounded(str(error), 500)) from error
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            name, message = type(error).__name__, bounded(mend(str(error)), 500)
            raise CallFailedError(f"TransportError:{name}", True, message) from error

    async def _open(self) -> aiohttp.ClientSession:
        if self._client is None:
            # Half a second of imports, which must not hold up the other sessions on the loop.
            aiohttp = await asyncio.to_thread(importlib.import_module, "aiohttp")
            secure = urlsplit(self.url).scheme == "https"
            # The certificates are read from disk, once a process and not on the event loop.
            verify = await asyncio.to_thread(_certificates) if secure else False
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=4, keepalive_timeout=15.0, ssl=verify),
                # The environment would also bring the passwords of a ~/.netrc.
                trust_env=False,
                max_line_size=MAX_HEADER,
                max_field_size=MAX_HEADER,
            )
        return self._client


def _proxy(url: str) -> str | None:
    """The proxy that the environment names. It is for the world outside, never for this machine."""
    parts = urlsplit(url)
    if is_loopback(url) or urllib.request.proxy_bypass(parts.netloc):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


@functools.cache
def _certificates() -> ssl.SSLContext:
    import ssl

    import certifi

    named = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    return ssl.create_default_context(cafile=None if named else certifi.where())


async def _receive(response: aiohttp.ClientResponse, into: Sink) -> None:
    chunks = aiter(response.content.iter_any())
    if response.status != 200:
        raise await _refusal(response, chunks)
    kind = response.headers.get("content-type", "").lower()
    first = b""
    if "event-stream" not in kind and "json" not in kind:
        first = await _first(chunks)  # some servers do not say what they send
    if "json" in kind or first.startswith(b"{"):
        text = (first + await _rest(chunks, MAX_ANSWER)).decode("utf-8", "replace")
        if not _hand_over(into.document, _object(text)):
            raise protocol_error(f"not an answer of this API: {bounded(mend(text), 200)}")
    elif "event-stream" in kind or first.startswith((b"data:", b"event:", b":")):
        await _stream(chunks, first, into)
    else:
        text = mend((first + await _rest(chunks, MAX_ERROR, cut=True)).decode("utf-8", "replace"))
        raise protocol_error(f"status 200 with {kind or 'no type'}: {bounded(text.strip(), 300)}")


def _hand_over(take: Callable[[Mapping[str, Any]], bool], data: Mapping[str, Any]) -> bool:
    """Give `data` to its reader, which takes the shapes of the API for granted."""
    try:
        return take(data)
    except (AttributeError, TypeError, KeyError, IndexError) as error:
        raise protocol_error(f"an unexpected shape: {bounded(mend(repr(error)), 200)}") from error


async def _stream(chunks: AsyncIterator[bytes], first: bytes, into: Sink) -> None:
    reader = EventReader()
    seen = 0
    total = len(first)

    def take(texts: Iterable[str]) -> bool:
        nonlocal seen
        for text in texts:
            seen += 1
            # Chat Completions ends with a word that is no JSON.
            last = text.strip() == "[DONE]"
            if _hand_over(into.event, {"type": "[DONE]"} if last else _object(text)):
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
    elif not take(reader.flush()) and not into.ended():
        if seen == 0:
            raise protocol_error("the stream holds no event")
        raise CallFailedError("stream_cut", True, "the stream ended without its end marker")


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read to the stream's end if it is near, so that the connection can be used again."""
    import aiohttp

    with contextlib.suppress(OSError, aiohttp.ClientError):  # the answer is complete already
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


async def _refusal(response: aiohttp.ClientResponse, chunks: AsyncIterator[bytes]) -> CallFailedError:
    raw = (await _rest(chunks, MAX_ERROR, cut=True)).decode("utf-8", "replace")
    status = response.status
    if 300 <= status < 400:
        message = "the server redirects; a key is sent to the configured host only"
        return CallFailedError(f"HTTPError:{status}", False, message)
    if status < 300:
        return protocol_error(f"status {status} in place of an answer")
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
