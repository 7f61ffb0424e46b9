"""Labels by which what a box left behind is found, and whether its owner still lives."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from ageval_boxes import _leftovers
from ageval_boxes._leftovers import boot_id
from ageval_boxes._processes import read_proc
from ageval_boxes.docker_box._engine import Engine, connect, translated

BOX = "ageval.box"
_HOST, _BOOT, _PID, _START = (f"ageval.owner.{n}" for n in ("host", "boot", "pid", "start"))


def labels(box_id: str, given: Mapping[str, str]) -> dict[str, str]:
    """What a container, network or volume of the box `box_id` carries."""
    own = read_proc(os.getpid())
    return {
        **given,
        BOX: box_id,
        _HOST: socket.gethostname(),
        _BOOT: boot_id(),
        _PID: str(os.getpid()),
        _START: str(own.start if own else 0),
    }


def owner_lives(found: Mapping[str, str]) -> bool:
    """Another process owns it and runs, or may run: on another machine that shares the engine."""
    if found.get(_BOOT) != boot_id():
        return found.get(_HOST) != socket.gethostname()
    try:
        pid, start = int(found[_PID]), int(found[_START])
    except (KeyError, ValueError):
        return False
    if pid == os.getpid():
        return False
    owner = read_proc(pid)
    return owner is not None and owner.alive and owner.start == start


def reap(wanted: Mapping[str, str]) -> list[str]:
    """Remove containers, networks, volumes and host directories of boxes with all labels of `wanted`.

    Those of another living process are spared. Returns a line for each thing removed. Blocks.
    """
    engine = connect()
    query = {"label": [BOX, *(f"{name}={value}" for name, value in wanted.items())]}
    removed: list[str] = []
    api = engine.client.api
    for row in translated(api.containers, all=True, filters=query):
        if not owner_lives(row["Labels"] or {}):
            _gone(api.remove_container, row["Id"], v=True, force=True)
            removed.append(_line("container", row["Names"][0].lstrip("/"), row["Labels"]))
    for row in translated(api.networks, filters=query):
        if not owner_lives(row["Labels"] or {}):
            _gone(api.remove_network, row["Id"])
            removed.append(_line("network", row["Name"], row["Labels"]))
    for row in translated(api.volumes, filters=query)["Volumes"] or ():
        if not owner_lives(row["Labels"] or {}):
            _gone(api.remove_volume, row["Name"], force=True)
            removed.append(_line("volume", row["Name"], row["Labels"]))
    for directory, _found in _leftovers.abandoned("docker", wanted):
        _leftovers.remove_directory(directory)
        removed.append(f"docker directory {directory}")
    return removed


def _line(what: str, name: str, found: Mapping[str, str] | None) -> str:
    return f"docker {what} of {(found or {}).get('ageval.attempt', '?')}: {name}"


def _gone(remove: Any, *args: Any, **kwargs: Any) -> None:
    """Remove; that someone else has removed it, or is about to, is as good."""
    from docker.errors import APIError, NotFound

    try:
        translated(remove, *args, **kwargs)
    except Exception as error:
        cause = error.__cause__
        if isinstance(cause, NotFound):
            return
        if isinstance(cause, APIError) and "already in progress" in str(cause.explanation):
            return
        raise


def remove_all(engine: Engine, box_id: str) -> None:
    """Remove every container, network and volume of one box. Blocks."""
    api = engine.client.api
    query = {"label": f"{BOX}={box_id}"}
    for row in translated(api.containers, all=True, filters=query):
        _gone(api.remove_container, row["Id"], v=True, force=True)
    for row in translated(api.networks, filters=query):
        _gone(api.remove_network, row["Id"])
    for row in translated(api.volumes, filters=query)["Volumes"] or ():
        _gone(api.remove_volume, row["Name"], force=True)
