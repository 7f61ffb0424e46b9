"""The network of all boxes that are given no other: made once, and no box reaches another one on it.

On the engine's own bridge every container reaches every other. On this one the engine drops what goes from
container to container; the way out and the way to the host are as on its own. Like an image it stays.
"""

from __future__ import annotations

from typing import Any

from ageval_boxes._locks import locked
from ageval_boxes.docker_box._engine import Engine, call
from pytest_ageval.errors import BoxError

NAME = "ageval-boxes"
#: What there is on every engine.
OPEN = "bridge"
_OPTIONS = {"com.docker.network.bridge.enable_icc": "false"}


async def shared(engine: Engine) -> tuple[str, str | None]:
    """The network's name, and a warning where it is the engine's own because ours cannot be made."""
    if engine.memory.bridge is None:
        async with locked("docker", f"network {NAME}"):
            engine.memory.bridge = await _find_or_make(engine)
    return engine.memory.bridge


async def _find_or_make(engine: Engine) -> tuple[str, str | None]:
    api = engine.client.api
    try:
        rows = await call(api.networks, names=[NAME])
        found = [row for row in rows if row["Name"] == NAME]  # the engine takes a name for a part of names
        if not found:
            labels = {"ageval.network": NAME}
            await call(
                api.create_network, NAME, "bridge", options=_OPTIONS, labels=labels, check_duplicate=True
            )
        elif not any(map(_is_ours, found)):
            return OPEN, f"{_LETS}: there is a network {NAME} that is not ours; remove it"
    except BoxError as error:
        if error.title == "environment_daemon_unreachable":
            raise
        return OPEN, f"{_LETS}: the network {NAME} cannot be made: {error.message}"
    return NAME, None


_LETS = "boxes on this engine can reach each other"


def _is_ours(row: dict[str, Any]) -> bool:
    options = row.get("Options") or {}
    return row.get("Driver") == "bridge" and all(options.get(k) == v for k, v in _OPTIONS.items())
