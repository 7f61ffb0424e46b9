"""What the network of a Harbor task lets through: in its environment, and where a phase differs from that."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from pytest_ageval.config.harbor.document import HarborStep, HarborTask

Mode = Literal["public", "no-network", "allowlist"]


@dataclass(frozen=True, slots=True)
class Network:
    """`hosts` are host names, ``*.name``, addresses and networks (``10.0.0.0/8``), for ``allowlist``."""

    mode: Mode = "public"
    hosts: tuple[str, ...] = ()


PUBLIC = Network()


class Table(Protocol):
    """A table of task.toml with the two keys."""

    network_mode: Mode | None
    allowed_hosts: list[str] | None


def of(table: Table) -> Network | None:
    """What a table says; None when it says nothing. ``allowed_hosts`` alone means an allow-list."""
    if table.network_mode is None and table.allowed_hosts is None:
        return None
    return Network(table.network_mode or "allowlist", tuple(map(plain_host, table.allowed_hosts or ())))


def plain_host(text: str) -> str:
    """An entry as the proxy compares it. Raises ValueError for a URL, a port, or what is no network."""
    host = text.strip().lower().rstrip(".")
    if "/" in host:
        return str(ipaddress.ip_network(host, strict=True))
    if ":" in host:
        return str(ipaddress.IPv6Address(host))
    if not host or host.startswith(".") or "*" in host.removeprefix("*.") or "@" in host:
        raise ValueError(f"{text!r} is not a host")
    return host


def of_agent(task: HarborTask, step: HarborStep) -> Network:
    """While the agent of `step` works."""
    return step.network or task.network


def of_verifier(task: HarborTask, step: HarborStep) -> Network:
    """While the verifier of `step` works in the agent's box."""
    return step.verifier.network or task.network


def changes(task: HarborTask) -> bool:
    """The network of the agent's box is not the same in all phases."""
    return bool(phases(task) - {task.network})


def phases(task: HarborTask) -> set[Network]:
    """Every network that the agent's box has at some time."""
    found = {task.network}
    for step in task.steps:
        found.add(of_agent(task, step))
        if not step.verifier.separate:
            found.add(of_verifier(task, step))
    return found


def for_model(network: Network, *, calls_model: bool) -> Network:
    """An agent in the box reaches its model, whatever else it may reach."""
    return Network("allowlist") if network.mode == "no-network" and calls_model else network


def options(network: Network) -> dict[str, Any]:
    """Docker's ``none`` for no network; a list is enforced by the box's own proxy."""
    if network.mode == "no-network":
        return {"network": "none"}
    if network.mode == "allowlist":
        return {"egress": "llm", "egress_allow": list(network.hosts)}
    return {}
