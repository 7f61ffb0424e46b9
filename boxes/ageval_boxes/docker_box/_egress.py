"""``egress: llm``: a network without a way out, and a proxy on it that knows a list of hosts.

A process that ignores the proxy's variables reaches nobody: the network is internal, its bridge has
no address on the host, and names are not resolved beyond it.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from ageval_boxes.docker_box._engine import Engine, call
from pytest_ageval.errors import BoxError

PORT = 3128
NAME = "ageval-egress"
#: A resolver that does not exist: older engines would ask the host's for names outside of the network.
NO_RESOLVER = "127.0.0.1"
READY_SECONDS = 15.0
#: Seconds for which a network is waited for that the engine has no addresses for.
POOL_SECONDS = 30.0


def rules(urls: Iterable[str], extra: Sequence[str]) -> list[str]:
    """``host:port`` for the providers' addresses and for each host that is allowed besides.

    A host without a port, an IPv6 address and a network may be reached at 443 and 80. Raises
    ValueError for what is no host.
    """
    found: list[str] = []
    for url in urls:
        parts = urlsplit(url)
        if parts.hostname:
            found.append(f"{parts.hostname}:{parts.port or (80 if parts.scheme == 'http' else 443)}")
    for row in extra:
        if "/" in row or row.count(":") > 1:
            try:
                network = ipaddress.ip_network(row)
            except ValueError as error:
                raise ValueError(f"egress_allow: {row!r} is neither a host nor a network: {error}") from None
            found += [f"[{network}]:{port}" for port in (443, 80)]
            continue
        parts = urlsplit(f"//{row}")
        if not parts.hostname or parts.path or parts.username:
            raise ValueError(f"egress_allow: {row!r} is not a host or host:port")
        ports = [parts.port] if parts.port else [443, 80]
        found += [f"{parts.hostname}:{port}" for port in ports]
    return list(dict.fromkeys(found))


def variables() -> dict[str, str]:
    """What tells programs of the proxy."""
    proxy = f"http://{NAME}:{PORT}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    here = f"localhost,127.0.0.1,::1,{NAME}"
    return {**dict.fromkeys(names, proxy), "NO_PROXY": here, "no_proxy": here}


async def open_network(engine: Engine, name: str, labels: Mapping[str, str]) -> str:
    """Make the network without a way out; returns its name.

    Other attempts give theirs back when they end: where none is left, it is waited for. Then raises BoxError
    ``environment_networks_used_up``.
    """

    def make() -> None:
        engine.client.api.create_network(
            name,
            driver="bridge",
            internal=True,
            labels=dict(labels),
            # Without it the host itself would be reached at the network's gateway.
            options={"com.docker.network.bridge.inhibit_ipv4": "true"},
        )

    loop = asyncio.get_running_loop()
    deadline = loop.time() + POOL_SECONDS
    while True:
        try:
            await call(make)
        except BoxError as error:
            if error.title != "environment_networks_used_up" or loop.time() > deadline:
                raise
            await asyncio.sleep(1)
        else:
            return name


async def start_proxy(
    engine: Engine, image: str, network: str, allowed: Sequence[str], labels: Mapping[str, str]
) -> None:
    """Start the proxy on `network` and on the engine's bridge; wait until it answers."""
    api = engine.client.api
    text = Path(__file__).with_name("_proxy.py").read_text("utf-8")

    def make() -> str:
        host = api.create_host_config(
            init=True,
            network_mode="bridge",
            security_opt=["no-new-privileges"],
            cap_drop=["ALL"],
            read_only=True,
            pids_limit=256,
            mem_limit=256 * 1024 * 1024,
        )
        made = api.create_container(
            image,
            entrypoint=["python3"],
            command=["-c", text, str(PORT), *allowed],
            name=f"{network}-proxy",
            user="65534:65534",
            labels=dict(labels),
            host_config=host,
        )
        container = str(made["Id"])
        api.connect_container_to_network(container, network, aliases=[NAME])
        api.start(container)
        return container

    container = await call(make)
    deadline = asyncio.get_running_loop().time() + READY_SECONDS
    while True:
        said = bytes(await call(api.logs, container))
        if said.startswith(b"ready"):
            return
        state = (await call(api.inspect_container, container))["State"]
        if not state["Running"] or asyncio.get_running_loop().time() > deadline:
            words = said.decode("utf-8", "replace").strip()[-1000:]
            raise BoxError("environment_egress_failed", f"the proxy of the box does not start: {words}")
        await asyncio.sleep(0.05)
