"""The worker's end of the socket to the parent.

A thread reads the replies, so that calls work from any event loop: an evaluator that is a plain
function may well run ``asyncio.run`` several times, or in threads. The thread starts with the first
call; a script that never calls has none. `connect` is for the worker; task code uses the classes of
the SDK.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pytest_ageval.worker import protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping


class Channel:
    """Calls over one connected stream socket. Safe to use from several threads and event loops."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._owner = os.getpid()
        self._ids = itertools.count(1)
        self._writing = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._reader: threading.Thread | None = None
        self._over = False

    async def call(self, op: protocol.Op, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The parent's reply; ``{"ok": False, "error": ...}`` when there cannot be one.

        Raises TypeError when `payload` holds something that is not JSON.
        """
        if os.getpid() != self._owner:
            # A forked copy would read the replies of the original.
            return _refusal("agent_session_unbound")
        number = next(self._ids)
        try:
            frame = protocol.encode({"t": "call", "id": number, "op": op, "payload": payload})
        except protocol.FrameTooLarge as error:
            return _refusal(str(error))
        reply: Future[dict[str, Any]] = Future()
        with self._writing:
            if self._over:
                return _refusal("agent_service_eof")
            self._waiting[number] = reply
            if self._reader is None:
                self._reader = threading.Thread(target=self._read, name="ageval", daemon=True)
                self._reader.start()
            self._send(frame)
        try:
            return await asyncio.wrap_future(reply)
        finally:
            self._waiting.pop(number, None)

    def note(self, op: protocol.Op, payload: Mapping[str, Any]) -> None:
        """Tell the parent something that it does not answer."""
        self.send({"t": "note", "op": op, "payload": payload})

    def send(self, frame: Mapping[str, Any]) -> None:
        """Send any frame whole. Raises as `protocol.encode`; nothing is sent after the end."""
        data = protocol.encode(frame)
        with self._writing:
            if not self._over and os.getpid() == self._owner:
                self._send(data)

    def receive(self) -> dict[str, Any]:
        """Read one frame; blocks. Raises EOFError when the parent has closed its end."""
        size = int.from_bytes(self._exactly(protocol.HEADER), "big")
        return protocol.decode(self._exactly(size))

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            # The parent is gone, and this process is about to be ended; say so to whoever asks.
            self._over = True
            self._fail_waiting()

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                raise EOFError("the parent closed the socket")
            view = view[count:]
        return data

    def _read(self) -> None:
        try:
            while True:
                frame = self.receive()
                reply = self._waiting.pop(frame["id"], None)
                # A reply to a call that was cancelled in the meantime is dropped.
                if reply is not None and reply.set_running_or_notify_cancel():
                    reply.set_result(frame["reply"])
        except (EOFError, OSError):
            with self._writing:
                self._over = True
                self._fail_waiting()

    def _fail_waiting(self) -> None:
        while self._waiting:
            _, reply = self._waiting.popitem()
            if reply.set_running_or_notify_cancel():
                reply.set_result(_refusal("agent_service_eof"))


def _refusal(error: str) -> dict[str, Any]:
    return {"ok": False, "error": error}


_current: Channel | None = None


def connect(channel: Channel | None) -> None:
    """Use this channel for every object of the SDK in this process."""
    global _current
    _current = channel


async def call(op: protocol.Op, payload: Mapping[str, Any]) -> dict[str, Any]:
    """`Channel.call` of this process; outside of a worker a refusal ``agent_session_unbound``."""
    if _current is None:
        return _refusal("agent_session_unbound")
    return await _current.call(op, payload)


def note(op: protocol.Op, payload: Mapping[str, Any]) -> None:
    """`Channel.note` of this process; outside of a worker nothing happens."""
    if _current is not None:
        _current.note(op, payload)
