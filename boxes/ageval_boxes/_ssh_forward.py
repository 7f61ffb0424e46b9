"""A port of this machine on a host's loopback: ssh's remote forwarding over a connection that stands.

Everything here blocks and is meant for threads.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref
from typing import TYPE_CHECKING

from ageval_boxes._ssh_connection import BROKEN, Host, start_thread

if TYPE_CHECKING:
    from paramiko import Channel, Transport

_PIECE = 64 * 1024
_LOOPBACK = "127.0.0.1"


class _Forwards:
    """The forwarded ports of one connection: remote by local, and back. paramiko has one handler for all."""

    def __init__(self) -> None:
        self.remote: dict[int, int] = {}
        self.local: dict[int, int] = {}


_forwards: weakref.WeakKeyDictionary[Transport, _Forwards] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def forwarded(host: Host, port: int) -> str | None:
    """``127.0.0.1:<port>`` on the host, which leads to `port` of this machine's loopback.

    One for all boxes of the connection, until it ends. None if the server does not allow it.
    """
    import paramiko

    transport = host.transport()
    with _lock:
        found = _forwards.setdefault(transport, _Forwards())
        if port not in found.remote:

            def arrived(channel: Channel, origin: tuple[str, int], server: tuple[str, int]) -> None:
                del origin
                target = found.local.get(server[1])
                start_thread(lambda: _connect(channel, target))

            try:
                remote = transport.request_port_forward(_LOOPBACK, 0, arrived)
            except (paramiko.SSHException, *BROKEN):
                return None
            found.remote[port], found.local[remote] = remote, port
        return f"{_LOOPBACK}:{found.remote[port]}"


def _connect(channel: Channel, port: int | None) -> None:
    """Copy both ways until both ends have said that nothing more comes."""
    try:
        if port is None:
            return
        with socket.create_connection((_LOOPBACK, port), 10) as local:
            local.settimeout(None)
            back = threading.Thread(target=_back, args=(local, channel), name="ageval-ssh", daemon=True)
            back.start()
            with contextlib.suppress(*BROKEN):
                while data := channel.recv(_PIECE):
                    local.sendall(data)
            with contextlib.suppress(OSError):
                # The agent has gone away, or will send nothing more; what is still to come back comes.
                local.shutdown(socket.SHUT_RDWR if channel.closed else socket.SHUT_WR)
            back.join()
    except OSError:
        pass  # nobody listens there any more
    finally:
        with contextlib.suppress(Exception):  # the connection may be lost: closed is what it is to be
            channel.close()


def _back(local: socket.socket, channel: Channel) -> None:
    with contextlib.suppress(*BROKEN):
        while data := local.recv(_PIECE):
            channel.sendall(data)
    with contextlib.suppress(*BROKEN):
        channel.shutdown_write()
