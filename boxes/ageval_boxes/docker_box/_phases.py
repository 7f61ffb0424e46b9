"""A network that changes while the container runs: it is cut off from all that it has, then connected anew.

What a process still had open is gone with the interface that it was on. Beside an allow-list the container
has no resolver of the engine (see `_egress.NO_RESOLVER`), which is settled when it is made; so where
there is one, the file with the resolvers is written by us, for the open network too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ageval_boxes.docker_box import _egress, _images
from ageval_boxes.docker_box._commands import Commands
from ageval_boxes.docker_box._engine import Engine, call
from pytest_ageval.box import NetworkMode, system_script
from pytest_ageval.errors import BoxError

#: The engine's own resolver on networks that are not its default one: it knows the proxy's name.
_EMBEDDED = "nameserver 127.0.0.11\noptions ndots:0\n"
_WRITE = "cat > /etc/resolv.conf"


@dataclass(slots=True)
class Phases:
    """The networks of one container. `open_network` is the one without limits."""

    engine: Engine
    name: str
    labels: Mapping[str, str]
    platform: str | None
    modes: Sequence[NetworkMode]
    image_labels: Mapping[str, str]
    open_network: str
    _current: tuple[NetworkMode, tuple[str, ...]] | None = None
    _closed: dict[tuple[str, ...], str] = field(default_factory=dict)
    _resolvers: str | None = None

    async def use(self, commands: Commands, mode: NetworkMode, allowed: Sequence[str]) -> str | None:
        """Change it; returns the name of the closed network, or None. `allowed` are rules of the proxy."""
        if mode not in self.modes:
            raise BoxError("environment_options_invalid", f"{mode} is not among network_phases")
        wanted = (mode, tuple(allowed))
        closed = await self._closed_network(tuple(allowed)) if mode == "allowlist" else None
        if wanted == self._current:
            return closed
        target = closed if closed is not None else self.open_network if mode == "public" else None
        self._current = None
        await call(_connect, self.engine, commands.container, target)
        if target is not None and "allowlist" in self.modes:
            text = _EMBEDDED if closed is not None else await self._open_resolvers()
            script = system_script(_WRITE)
            done = await commands.run(script, cwd=None, user="0:0", timeout=60, stdin=text.encode())
            if not done.ok:
                raise BoxError("environment_egress_failed", f"/etc/resolv.conf: {done.stderr.strip()[:300]}")
        self._current = wanted
        return closed

    async def _closed_network(self, allowed: tuple[str, ...]) -> str:
        if allowed not in self._closed:
            name = f"{self.name}-{len(self._closed)}"
            base = await _images.base(self.engine, self.platform, None, self.image_labels)
            await _egress.open_network(self.engine, name, self.labels)
            await _egress.start_proxy(self.engine, base, name, allowed, self.labels)
            self._closed[allowed] = name
        return self._closed[allowed]

    async def _open_resolvers(self) -> str:
        """What reaches the outer world's resolvers: the file of a container on the engine's own network."""
        if self._resolvers is None:
            base = await _images.base(self.engine, self.platform, None, self.image_labels)
            self._resolvers = await call(_read_resolvers, self.engine, base, self.labels)
        return self._resolvers


def _connect(engine: Engine, container: str, network: str | None) -> None:
    """Cut `container` off from everything, and connect it to `network`. Blocks."""
    api = engine.client.api
    found = api.inspect_container(container)["NetworkSettings"].get("Networks") or {}
    for name in found:
        api.disconnect_container_from_network(container, name, force=True)
    if network is not None:
        api.connect_container_to_network(container, network)


def _read_resolvers(engine: Engine, image: str, labels: Mapping[str, str]) -> str:
    api = engine.client.api
    made = api.create_container(
        image,
        entrypoint=["cat"],
        command=["/etc/resolv.conf"],
        labels=dict(labels),
        host_config=api.create_host_config(network_mode="bridge", cap_drop=["ALL"], read_only=True),
    )
    try:
        api.start(made["Id"])
        api.wait(made["Id"], timeout=60)
        return bytes(api.logs(made["Id"])).decode("utf-8", "replace")
    finally:
        api.remove_container(made["Id"], force=True)
