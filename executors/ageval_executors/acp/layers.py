"""An agent's install as layers of a box's image, for boxes that share no files with the host.

The packages are installed on the host, into the same versioned directory that boxes with shared files
see, and the Node that installed them is kept beside them. In a box both lie below `IN_IMAGE`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ageval_executors._installs import make_once
from ageval_executors.acp import pypi
from ageval_executors.acp.cache import MARKER, cache_root, install_name, parse_version, platform_name
from ageval_executors.acp.install import Runtime, install_on_host
from ageval_executors.acp.toolchain import Toolchain, find_toolchain
from pytest_ageval.box import ImageLayer
from pytest_ageval.errors import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ageval_executors.acp.entries import Entry
    from pytest_ageval.box import Box

log = logging.getLogger("pytest_ageval.agents")

#: Where a box sees the installs of agents.
IN_IMAGE = "/opt/ageval/agents"

_PROBE = 'uname -m; "$1" --version 2>/dev/null || echo none; test -f "$2" && echo installed'


async def image_layers(entry: Entry, *, runtime: str | None, node: str | None) -> list[ImageLayer]:
    """Node and the packages of `entry`, installed now if they are missing.

    Empty where there is nothing to install, or no Node on this machine that could: the box may have one.
    """
    if not entry.packages or runtime is not None:
        return []
    if entry.python is not None:
        return [_layer(entry.name, await pypi.install_on_host(entry, may_install=True))]
    try:
        tools = await find_toolchain(entry, node)
    except ExecutorError as error:
        if error.title != "acp_runtime_missing":
            raise
        log.info("the agent %s is not put into the image: %s", entry.name, error.message)
        return []
    packages = await install_on_host(entry, tools, may_install=True)
    program = await asyncio.to_thread(_keep_node, tools)
    return [_layer("node", program), _layer(entry.name, packages)]


def _layer(name: str, directory: Path) -> ImageLayer:
    # Equal names hold equal files, so that nobody needs to read them.
    return ImageLayer(name, context=directory, key=directory.name, dest=f"{IN_IMAGE}/{directory.name}")


def _node_name(tools: Toolchain) -> str:
    program = tools.node.resolve()
    info = program.stat()
    key = hashlib.sha256(f"{program}\0{info.st_size}\0{info.st_mtime_ns}".encode()).hexdigest()[:12]
    return f"node-{tools.version[0]}-{key}"


def _keep_node(tools: Toolchain) -> Path:
    """A directory with the Node binary alone, as `bin/node`; made once for each Node."""

    def fill(stage: Path) -> None:
        (stage / "bin").mkdir()
        shutil.copyfile(tools.node.resolve(), stage / "bin" / "node")
        (stage / "bin" / "node").chmod(0o755)

    return make_once(cache_root() / _node_name(tools), fill)


async def runtime_in_image(entry: Entry, box: Box, node: str | None) -> Runtime | None:
    """The install of `entry` in the image of `box`; None if its layers are not there, or do not run there.

    They do not where the image has another processor or C library than this machine.
    """
    places = {layer.key: layer.dest for layer in box.spec.layers if layer.dest is not None}
    if not places:
        return None
    if entry.python is not None:
        return await _python_in_image(entry, box, places)
    try:
        tools = await find_toolchain(entry, node)
    except ExecutorError:
        return None
    name = install_name(entry, platform_name(platform.machine()), tools.version[0])
    directory, program = places.get(name), places.get(_node_name(tools))
    if directory is None or program is None:
        return None
    program = f"{program}/bin/node"
    found = await box.exec(["sh", "-c", _PROBE, "sh", program, f"{directory}/{MARKER}"], timeout=60)
    machine, version, state = [*found.stdout.split("\n"), "", "", ""][:3]
    if parse_version(version) is None or state != "installed":
        log.warning("the layer of the agent %s does not run in the image of the box", entry.name)
        return None
    return Runtime(directory, program, platform_name(machine))


async def _python_in_image(entry: Entry, box: Box, places: Mapping[str | None, str]) -> Runtime | None:
    directory = places.get((await pypi.host_directory(entry)).name)
    if directory is None:
        return None
    probe = ["sh", "-c", _PROBE, "sh", f"{directory}/bin/python3", f"{directory}/{MARKER}"]
    found = await box.exec(probe, timeout=60)
    machine, version = [*found.stdout.split("\n"), "", ""][:2]
    if parse_version(version.removeprefix("Python ")) is None:
        log.warning("the layer of the agent %s does not run in the image of the box", entry.name)
        return None
    return Runtime(directory, "node", platform_name(machine))
