"""A port of the controller's loopback interface, as a worker on a host reaches it: over the link.

pytest-rerunfailures has its workers connect to the controller so. Bytes travel as
``("relay", (number, data))``; empty data means that the connection ends.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, MutableMapping
from typing import Any

#: In the input of a worker: ports on the controller that plugins have put there.
PORTS = ("sock_port",)

_SIZE = 64 * 1024


class _Relay:
    """Connections by their number. `tell` sends a message."""

    def __init__(self, tell: Callable[[str, Any], object]) -> None:
        self._tell = tell
        self._connections: dict[int, socket.socket] = {}

    def _serve(self, number: int, connection: socket.socket) -> None:
        self._connections[number] = connection
        threading.Thread(target=self._read, args=(number, connection), daemon=True).start()

    def _read(self, number: int, connection: socket.socket) -> None:
        data = b"-"
        while data:
            try:
                data = connection.recv(_SIZE)
            except OSError:
                data = b""
            self._tell("relay", (number, data))
        self._close(number)

    def _write(self, number: int, data: bytes) -> None:
        connection = self._connections.get(number)
        if connection is None:
            return
        if not data:
            self._close(number)
            return
        with contextlib.suppress(OSError):
            connection.sendall(data)

    def _close(self, number: int) -> None:
        connection = self._connections.pop(number, None)
        if connection is not None:
            with contextlib.suppress(OSError):  # another thread waits in `recv`, and would go on to
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def close(self) -> None:
        """End every connection."""
        for number in list(self._connections):
            self._close(number)


class There(_Relay):
    """On the host: listens in place of the controller's ports."""

    def listen(self, workerinput: MutableMapping[str, Any]) -> None:
        """Let the input of the worker name ports of this machine."""
        for name in PORTS:
            port = workerinput.get(name)
            if type(port) is int:
                listener = socket.create_server(("127.0.0.1", 0))
                threading.Thread(target=self._accept, args=(listener, port), daemon=True).start()
                workerinput[name] = listener.getsockname()[1]

    def _accept(self, listener: socket.socket, port: int) -> None:
        number = port << 16
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            number += 1
            self._tell("relay_open", (number, port))
            self._serve(number, connection)

    def take(self, value: tuple[int, bytes]) -> None:
        """Bytes of the controller."""
        self._write(*value)


class Here(_Relay):
    """On the controller. `ports` are those that a worker may reach."""

    def __init__(self, tell: Callable[[str, Any], object], ports: frozenset[int]) -> None:
        super().__init__(tell)
        self._ports = ports

    def take(self, word: str, value: tuple[int, Any]) -> None:
        """A connection, or bytes of one."""
        if word == "relay":
            self._write(*value)
            return
        number, port = value
        if port in self._ports:
            try:
                self._serve(number, socket.create_connection(("127.0.0.1", port), 5))
            except OSError:
                self._tell("relay", (number, b""))
