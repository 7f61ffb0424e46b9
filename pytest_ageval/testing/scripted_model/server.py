"""The HTTP side of a scripted model: one thread a connection, and the faults of providers."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import socketserver
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Protocol

from pytest_ageval.testing.scripted_model.gemini import GeminiWire
from pytest_ageval.testing.scripted_model.request import Api, Request, read_request
from pytest_ageval.testing.scripted_model.turns import (
    Cut,
    Fault,
    Garbage,
    Hang,
    HttpError,
    Malformed,
    StreamError,
    Text,
    Tokens,
)
from pytest_ageval.testing.scripted_model.wires import UNKNOWN, WIRES, Reply, Wire, error_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_ageval.testing.scripted_model.script import Choice

#: Bytes of a request body that are read.
MAX_BODY = 64 * 1024 * 1024

_WIRES: Mapping[Api, type[Wire]] = {**WIRES, "gemini": GeminiWire}

_APIS: tuple[tuple[str, Api], ...] = (
    ("/chat/completions", "chat"),
    ("/responses", "responses"),
    ("/messages", "anthropic"),
    (":generateContent", "gemini"),
    (":streamGenerateContent", "gemini"),
)


class Brain(Protocol):
    """What the server asks: implemented by `ScriptedModel`."""

    tokens: Tokens
    models: tuple[str, ...]

    def number(self) -> int:
        """The number of the next request."""
        ...

    def choose(self, request: Request) -> Choice:
        """Record the request and choose its turn."""
        ...

    def reply(self, choice: Choice, request: Request) -> Reply | HttpError:
        """The answer with its tools chosen, or the error that says why that is impossible."""
        ...


class ModelServer(socketserver.ThreadingTCPServer):
    """Listens on `host` at a free port. `stop` ends every open connection, also those that hang."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128  # many sessions begin at once

    def __init__(self, brain: Brain, host: str) -> None:
        self.brain = brain
        self.stopping = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__((host, 0), _Handler)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.02,), name="scripted-model", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that was given."""
        return int(self.server_address[1])

    def stop(self) -> None:
        """End the server and all its connections. Idempotent."""
        self.stopping.set()
        self.shutdown()
        self._thread.join()
        self.server_close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):  # the client has closed it already
                    connection.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + 5
        while self._open and time.monotonic() < deadline:
            time.sleep(0.005)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection, and know it as long as it is open."""
        with self._lock:
            self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is not an error of the server; anything else is shown."""
        import sys

        if not isinstance(sys.exc_info()[1], OSError | _EndOfConnectionError):
            super().handle_error(request, client_address)


class _EndOfConnectionError(Exception):
    """The connection is to end here, in the middle of the answer."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ModelServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing is printed: requests are recorded."""

    def do_GET(self) -> None:
        """The list of models."""
        if not self._path().endswith("/models"):
            self._json(404, _error(404, f"no such page: {self._path()}"))
            return
        rows = [
            {"id": name, "object": "model", "type": "model", "created": 1, "owned_by": "scripted"}
            | {"display_name": name, "created_at": "2025-01-01T00:00:00Z"}
            for name in self.server.brain.models
        ]
        self._json(200, {"object": "list", "data": rows, "has_more": False})

    def do_HEAD(self) -> None:
        """Some agents ask whether anyone is there."""
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        """A request for an answer."""
        raw = self._body()
        path = self._path()
        api = next((api for end, api in _APIS if path.endswith(end)), None)
        if path.endswith(("/count_tokens", ":countTokens")):
            name = "totalTokens" if path.endswith(":countTokens") else "input_tokens"
            self._json(200, {name: max(1, len(raw) // 4)})
            return
        if api is None:
            self._json(404, _error(404, f"no such page: {path}"))
            return
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            self._json(400, _error(400, "the body is not a JSON object"))
            return
        if body.get("previous_response_id") is not None:
            self._json(400, _error(400, "previous_response_id: conversations are not kept here"))
            return
        number = self.server.brain.number()
        request = read_request(number, api, self.path, dict(self.headers.items()), body)
        self._answer(request)

    def _answer(self, request: Request) -> None:
        choice = self.server.brain.choose(request)
        self._pause(choice.delay)
        wire = _WIRES[request.api](request, self.server.brain.tokens)
        turn = choice.turn
        if not isinstance(turn, Fault):
            reply = self.server.brain.reply(choice, request)
            if isinstance(reply, HttpError):
                turn = reply
            else:
                wire.tokens = reply.tokens
                self._send_reply(request, wire, reply, turn)
                return
        self._fault(request, wire, turn)

    # -- answers ---------------------------------------------------------------------------------

    def _send_reply(self, request: Request, wire: Wire, reply: Reply, turn: Any) -> None:
        request.status = 200
        pieces, pause = (turn.pieces, turn.pause) if isinstance(turn, Text) else (2, 0.0)
        unknown = isinstance(turn, Text) and turn.unknown
        if not request.stream:
            self._pause(pause * max(0, pieces - 1))
            request.completed = True
            more = {UNKNOWN: {"a": [1]}} if unknown else {}
            self._json(200, {**wire.document(reply), **more})
            return
        self._stream_head()
        self._chunks(wire.start())
        if unknown:
            self._chunk(wire.unknown())
        self._chunks(wire.thought(_split(reply.thought, pieces)), pause)
        self._chunks(wire.text(_split(reply.text, pieces)), pause)
        self._chunks(wire.calls(reply.calls))
        self._chunks(wire.finish(reply.stop))
        request.completed = True  # before the client can know
        self._last_chunk()

    def _fault(self, request: Request, wire: Wire, turn: Fault) -> None:
        if isinstance(turn, HttpError):
            request.status, request.completed = turn.status, True
            extra = {} if turn.retry_after is None else {"retry-after": str(turn.retry_after)}
            code = turn.code or error_code(turn.status)
            self._json(turn.status, wire.error(turn.message, code), extra)
        elif isinstance(turn, Garbage):
            request.status, request.completed = 200, True
            self._bytes(200, turn.body.encode(), turn.content_type)
        elif isinstance(turn, Hang) and turn.after is None:
            self._pause(turn.seconds)
            raise _EndOfConnectionError
        else:
            request.status = 200
            self._broken(request, wire, turn)

    def _broken(self, request: Request, wire: Wire, turn: Cut | Malformed | StreamError | Hang) -> None:
        after = turn.after or ""
        if not request.stream:
            self._broken_document(wire, turn, after)
            return
        self._stream_head()
        self._chunks(wire.start())
        # The text's own closing events would make the partial text look whole: they are left out.
        for number, event in enumerate(wire.text(_split(after, 2))):
            if number < _opening(wire) + len(_split(after, 2)):
                self._chunk(event)
        if isinstance(turn, Malformed):
            self._chunk(b'data: {"type": "broken\n\n')
            self._last_chunk()
        elif isinstance(turn, StreamError):
            self._chunk(wire.failure(turn.message, turn.code))
            self._last_chunk()
        elif isinstance(turn, Cut) and turn.clean:
            self._last_chunk()
        else:
            self._pause(turn.seconds if isinstance(turn, Hang) else 0.0)
            # A chunk that promises more bytes than come: cut within it.
            self.wfile.write(b'400\r\ndata: {"cut')
            raise _EndOfConnectionError

    def _broken_document(self, wire: Wire, turn: Cut | Malformed | StreamError | Hang, after: str) -> None:
        if isinstance(turn, StreamError):
            self._json(200, wire.error(turn.message, turn.code))
            return
        whole = json.dumps(wire.document(Reply(after, "", (), "end", wire.tokens))).encode()
        half = whole[: len(whole) // 2]
        if isinstance(turn, Malformed) or (isinstance(turn, Cut) and turn.clean):
            self._bytes(200, half, "application/json")
            return
        self._head(200, "application/json", {"content-length": str(len(whole))})
        self.wfile.write(half)
        self._pause(turn.seconds if isinstance(turn, Hang) else 0.0)
        raise _EndOfConnectionError

    # -- bytes -----------------------------------------------------------------------------------

    def _path(self) -> str:
        return self.path.split("?")[0].rstrip("/")

    def _pause(self, seconds: float) -> None:
        if seconds > 0 and self.server.stopping.wait(seconds):
            raise _EndOfConnectionError

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            raw = b"".join(self._request_chunks())
        else:
            length = int(self.headers.get("content-length") or 0)
            raw = self.rfile.read(min(length, MAX_BODY))
        coding = self.headers.get("content-encoding", "")
        if coding == "gzip":
            return gzip.decompress(raw)
        return zlib.decompress(raw) if coding == "deflate" else raw

    def _request_chunks(self) -> Iterable[bytes]:
        total = 0
        while size := int(self.rfile.readline(64).split(b";")[0], 16):
            total += size
            if total > MAX_BODY:
                raise _EndOfConnectionError
            yield self.rfile.read(size)
            self.rfile.readline(8)
        self.rfile.readline(8)

    def _head(self, status: int, content_type: str, extra: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        for name, value in extra.items():
            self.send_header(name, value)
        self.end_headers()

    def _bytes(
        self, status: int, body: bytes, content_type: str, extra: dict[str, str] | None = None
    ) -> None:
        self._head(status, content_type, {"content-length": str(len(body)), **(extra or {})})
        self.wfile.write(body)

    def _json(self, status: int, body: Any, extra: dict[str, str] | None = None) -> None:
        self._bytes(status, json.dumps(body).encode(), "application/json", extra)

    def _stream_head(self) -> None:
        more = {"cache-control": "no-cache", "transfer-encoding": "chunked"}
        self._head(200, "text/event-stream", more)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _chunks(self, events: Iterable[bytes], pause: float = 0.0) -> None:
        for number, event in enumerate(events):
            self._pause(pause if number else 0.0)
            self._chunk(event)

    def _last_chunk(self) -> None:
        self.wfile.write(b"0\r\n\r\n")


def _error(status: int, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": error_code(status), "message": message}}


def _opening(wire: Wire) -> int:
    """How many events of a text come before its first delta."""
    return {"chat": 0, "gemini": 0, "anthropic": 1, "responses": 2}[wire.request.api]


def _split(text: str, pieces: int) -> list[str]:
    if not text:
        return []
    size = max(1, -(-len(text) // max(1, pieces)))
    return [text[start : start + size] for start in range(0, len(text), size)]
