"""A proxy before the Docker engine's Unix socket that writes down every request, in their order.

Bytes pass as they are, also those of a connection that was upgraded. Only the heads of requests are read.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ENGINE = "/var/run/docker.sock"

_HEAD_END = b"\r\n\r\n"
_VERSION = re.compile(r"^/v\d+\.\d+")
_ID = re.compile(r"[0-9a-f]{64}")
_BOX = re.compile(r"ageval-[0-9a-f]{16}")


class _Requests:
    """Finds the heads of requests in what a client sends."""

    def __init__(self) -> None:
        self._rest = b""
        self._body = 0
        self._chunked = False
        self._raw = False

    def feed(self, data: bytes) -> list[str]:
        """``POST /path?query`` for each request whose head has come to its end."""
        found: list[str] = []
        self._rest += data
        while self._rest and not self._raw and self._step(found):
            pass
        if self._raw:
            self._rest = b""
        return found

    def _step(self, found: list[str]) -> bool:
        if self._body:
            taken = min(self._body, len(self._rest))
            self._rest, self._body = self._rest[taken:], self._body - taken
            return True
        if self._chunked:
            return self._chunk()
        head, end, rest = self._rest.partition(_HEAD_END)
        if not end:
            return False
        self._rest = rest
        line, *fields = head.decode("latin-1").split("\r\n")
        method, path, _ = line.split(" ", 2)
        found.append(f"{method} {path}")
        rows = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        self._body = int(rows.get("content-length") or 0)
        self._chunked = rows.get("transfer-encoding", "").lower() == "chunked"
        self._raw = "upgrade" in rows
        return True

    def _chunk(self) -> bool:
        size, end, rest = self._rest.partition(b"\r\n")
        if not end:
            return False
        number = int(size.split(b";")[0], 16)
        if number == 0:
            _, end, after = self._rest.partition(_HEAD_END)
            self._chunked, self._rest = not end, after if end else self._rest
            return bool(end)
        self._rest, self._body = rest, number + 2
        return True


class EngineLog:
    """`requests` is what was asked, as it was sent; `plain` is it without versions, queries and names."""

    def __init__(self, path: Path, engine: str = ENGINE) -> None:
        self.host = f"unix://{path}"
        self.requests: list[str] = []
        self._engine = engine
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._start(self._accept)

    @property
    def plain(self) -> list[str]:
        """Such as ``POST /containers/ID/start``."""
        return [plain(row) for row in self.requests]

    def _start(self, work, *args) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._engine)
            with self._lock:
                self._open += [client, server]
            self._start(self._copy, client, server, _Requests())
            self._start(self._copy, server, client, None)

    def _copy(self, source: socket.socket, dest: socket.socket, reader: _Requests | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(64 * 1024):
                if reader is not None and (found := reader.feed(data)):
                    with self._lock:
                        self.requests += found
                dest.sendall(data)
            # Half-closed: a command may have read all of its stdin and still have much to say.
            dest.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(10)
        for found in self._open:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for found in (*self._open, self._listener):
            found.close()


def plain(request: str) -> str:
    """A request without the API's version, its query, and what is another name each time."""
    method, _, path = request.partition(" ")
    path = _VERSION.sub("", path.partition("?")[0])
    return f"{method} {_BOX.sub('BOX', _ID.sub('ID', path))}"


@contextmanager
def engine_log(directory: Path) -> Iterator[EngineLog]:
    """A proxy whose socket is in `directory`; `EngineLog.host` is its ``DOCKER_HOST``."""
    running = EngineLog(directory / "engine.sock")
    try:
        yield running
    finally:
        running.close()
