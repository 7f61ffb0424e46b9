"""A TCP proxy on loopback that cuts its connections when so many bytes have gone one way."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Proxy:
    """`up` and `down` count the bytes to and from the server. `cut_up` and `cut_down` say after how many
    of them all connections are cut, once for each number in the list."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._all: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.counts = {"up": 0, "down": 0}
        self.cuts: dict[str, list[int]] = {"up": [], "down": []}
        self.connections = 0
        self._start(self._accept)

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
            server = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                self.connections += 1
                self._sockets += [client, server]
                self._all += [client, server]
            self._start(self._copy, client, server, "up")
            self._start(self._copy, server, client, "down")

    def _copy(self, source: socket.socket, dest: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(64 * 1024):
                dest.sendall(data)
                with self._lock:
                    self.counts[way] += len(data)
                    cut = bool(self.cuts[way]) and self.counts[way] >= self.cuts[way][0]
                    if cut:
                        self.cuts[way].pop(0)
                if cut:
                    self.cut()
        for end in (source, dest):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Cut all connections now."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for found in sockets:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for found in (*self._all, self._listener):
            found.close()


@contextmanager
def proxy(target: int) -> Iterator[Proxy]:
    """A proxy before the port `target` of this machine."""
    running = Proxy(target)
    try:
        yield running
    finally:
        running.close()
