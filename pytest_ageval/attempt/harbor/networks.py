"""The network of the agent's box in each phase, and addresses of this machine in the verifier's variables."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytest_ageval.config.env import is_loopback
from pytest_ageval.config.harbor import network
from pytest_ageval.config.harbor.templates import is_template
from pytest_ageval.errors import EvaluatorError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.box import Box
    from pytest_ageval.config.harbor.document import HarborStep

_PORTS = {"http": 80, "https": 443}


async def of_agent(attempt: Attempt, step: HarborStep) -> None:
    """The agent of `step` starts: it also reaches its model, if it calls one from the box."""
    task = attempt.locked.harbor
    assert task is not None
    calls = any(
        executor.calls_model and executor.calls_from_box()
        for executor in (attempt.registry.executor(b.executor) for b in attempt.locked.bindings.values())
    )
    await _use(attempt, network.for_model(network.of_agent(task, step), calls_model=calls), model=calls)


async def of_environment(attempt: Attempt) -> None:
    """No phase with a network of its own."""
    task = attempt.locked.harbor
    assert task is not None
    await _use(attempt, task.network)


async def of_verifier(attempt: Attempt, step: HarborStep) -> None:
    """The verifier of `step` starts in the agent's box."""
    task = attempt.locked.harbor
    assert task is not None
    await _use(attempt, network.of_verifier(task, step))


async def _use(attempt: Attempt, wanted: network.Network, *, model: bool = False) -> None:
    task = attempt.locked.harbor
    assert task is not None
    if network.changes(task):
        await attempt.raw_box.use_network(wanted.mode, wanted.hosts, model=model)
        attempt.fact("network", {"mode": wanted.mode, "hosts": list(wanted.hosts)})


async def reachable(box: Box, given: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """`values` of `given`, where an address of this machine's loopback is one that the box reaches.

    Only values that came from a variable of this machine: one that the task spells means the box itself.
    Raises EvaluatorError ``verifier_host_unreachable``.
    """
    found = dict(values)
    for name, value in values.items():
        if not is_template(given[name]) or not value.startswith(("http://", "https://")):
            continue
        if not is_loopback(value):
            continue
        parts = urlsplit(value)
        there = await box.forward(parts.port or _PORTS[parts.scheme])
        if there is None:
            raise EvaluatorError(
                "verifier_host_unreachable",
                f"verifier.env: {name} is an address of this machine, which the verifier's box does not "
                "reach; a box without a network reaches none",
            )
        found[name] = parts._replace(netloc=there).geturl()
    return found
