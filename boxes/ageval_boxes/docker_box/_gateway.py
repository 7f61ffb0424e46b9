"""A port of this machine's loopback in a container: a relay at the container's side of the bridge.

The relay listens at the address that the host has on the container's network, nowhere else, and takes
connections of that container alone. Beside a closed network (``egress: llm``) it takes those of its
proxy, in which a second one listens for the box.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ageval_boxes.docker_box import _egress
from ageval_boxes.docker_box._engine import Engine, call
from ageval_boxes.docker_box._relay import join
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from ageval_boxes.docker_box._commands import Commands

#: The loopback that is led to, and the ports of which a relay beside a closed network's proxy takes one.
#: Not always the same: the relay of a process that is gone may still be there.
LOOPBACK = "127.0.0.1"
PROXY_PORTS = range(20_000, 30_000)

#: Seconds for a box to reach the relay.
PROBE_SECONDS = 8.0

#: Reaches the address with whatever the image has; 0 also where it has nothing to try with.
PROBE = """
if command -v bash >/dev/null 2>&1; then exec bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$1" "$2"; fi
if command -v python3 >/dev/null 2>&1; then
  exec python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)' "$1" "$2"
fi
if command -v nc >/dev/null 2>&1; then exec nc -z -w 5 "$1" "$2"; fi
"""
#: The same from within the proxy, as soon as its relay listens.
_READY = """
import socket, sys, time
for _ in range(100):
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
        break
    except OSError:
        time.sleep(0.05)
else:
    sys.exit(1)
"""


class Relays:
    """The relays of one box."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._open: set[asyncio.Task[None]] = set()
        self._found: dict[int, str | None] = {}

    async def forward(
        self, engine: Engine, container: str, closed: str | None, commands: Commands, port: int
    ) -> str | None:
        """``host:port`` at which the box reaches `port` of this machine; None where it does not."""
        if port not in self._found:
            self._found[port] = await self._forward(engine, container, closed, commands, port)
        return self._found[port]

    async def _forward(
        self, engine: Engine, container: str, closed: str | None, commands: Commands, port: int
    ) -> str | None:
        if engine.socket is None:
            return None  # the engine's bridges are another machine's
        client = f"{closed}-proxy" if closed is not None else container
        for here, peer in await call(_networks, engine, client):
            with contextlib.suppress(OSError):  # an engine in a virtual machine, or a rootless one
                number = await self._listen(here, peer, port)
                address = f"{here}:{number}"
                if closed is not None:
                    inner = await call(_beside_proxy, engine, client, here, number)
                    address = f"{_egress.NAME}:{inner}"
                if await _reached(commands, address):
                    return address
        return None

    async def _listen(self, here: str, peer: str, port: int) -> int:
        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None  # a callback of a server runs in one
            self._open.add(task)
            try:
                if writer.get_extra_info("peername")[0] == peer:
                    await join(reader, writer, LOOPBACK, port)
            except asyncio.CancelledError:
                pass  # the box is being stopped
            finally:
                self._open.discard(task)
                writer.close()

        server = await asyncio.start_server(client, here, 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """End them, with what passes through them. Idempotent."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for task in list(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(set(self._open), timeout=1.0)


def _networks(engine: Engine, container: str) -> list[tuple[str, str]]:
    """The host's address and the container's own on each of its networks. Blocks."""
    found: Mapping[str, Any] = engine.client.api.inspect_container(container)
    mode = str(found["HostConfig"].get("NetworkMode") or "")
    if mode.startswith("container:"):
        return _networks(engine, mode.removeprefix("container:"))
    rows = (found["NetworkSettings"].get("Networks") or {}).values()
    return [(row["Gateway"], row["IPAddress"]) for row in rows if row.get("Gateway") and row.get("IPAddress")]


def _beside_proxy(engine: Engine, proxy: str, here: str, port: int) -> int:
    """Start the relay in the proxy's container and wait until it listens; returns its port. Blocks."""
    api = engine.client.api
    inner = str(secrets.choice(PROXY_PORTS))
    text = Path(__file__).with_name("_relay.py").read_text("utf-8")
    relay = api.exec_create(proxy, ["python3", "-c", text, inner, here, str(port)])
    api.exec_start(relay["Id"], detach=True)
    ready = api.exec_create(proxy, ["python3", "-c", _READY, inner])
    api.exec_start(ready["Id"])
    if api.exec_inspect(ready["Id"])["ExitCode"] != 0:
        raise BoxError("environment_egress_failed", "the relay beside the box's proxy does not start")
    return int(inner)


async def _reached(commands: Commands, address: str) -> bool:
    host, _, port = address.rpartition(":")
    argv = ["sh", "-c", PROBE, "sh", host, port]
    try:
        done = await commands.run(argv, cwd="/", env=None, timeout=PROBE_SECONDS, user=None, stdin=None)
    except BoxError:
        return True  # there is no shell to ask
    return done.exit_code in (0, 126, 127)
