"""The host's cache of agents' installs: each is made once, under a lock, complete or not at all."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ageval_executors import _installs
from ageval_executors._installs import last_lines
from pytest_ageval.box import cache_root as box_cache_root
from pytest_ageval.errors import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ageval_executors.acp.entries import Entry

#: Seconds for one install.
INSTALL_SECONDS = 1200.0
MARKER = "ageval-runtime.json"

_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def platform_name(machine: str) -> str:
    """``linux-x64`` or ``linux-arm64``, as npm packages are named."""
    return f"linux-{_MACHINES.get(machine.strip().lower(), machine.strip())}"


def cache_root() -> Path:
    """The directory of all installs of this user."""
    return box_cache_root() / "agents"


def install_name(entry: Entry, platform_: str, language: int | str) -> str:
    """``<entry>-<digest>``: equal names hold equal packages. `language` is the version of what runs them."""
    parts = [sorted(entry.packages.items()), platform_, language]
    key = json.dumps([*parts, entry.finish] if entry.finish else parts)
    return f"{entry.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


async def install_once(
    entry: Entry, target: Path, fill: Callable[[Path], Awaitable[None]], *, may_install: bool
) -> Path:
    """`target`, filled by `fill` (which gets an empty directory) if it is not there and `may_install`.

    Raises `ExecutorError` ``acp_runtime_missing`` (not there, not to be made), or what `fill` raises.
    """
    if (target / MARKER).is_file():
        return target
    if not may_install:
        raise ExecutorError(
            "acp_runtime_missing",
            f"the agent {entry.name} is not installed in {target}; it is installed in the "
            "environment phase, before the run",
        )

    async def filled(stage: Path) -> str:
        await fill(stage)
        return json.dumps({"packages": dict(entry.packages)})

    await _installs.install_once(target, MARKER, entry.name, listed(entry.packages), filled)
    return target


def install_failed(entry: Entry, why: str, output: str) -> ExecutorError:
    """The error of a failed install, with the installer's last lines."""
    tool = "npm" if entry.python is None else "pip"
    return ExecutorError(
        "acp_runtime_install_failed",
        f"{tool} could not install {listed(entry.packages)}: {why}",
        detail=last_lines(output),
    )


def listed(packages: Mapping[str, str]) -> str:
    """The packages with their versions, for messages."""
    return " ".join(f"{name}@{version}" for name, version in packages.items())


def parse_version(text: str) -> tuple[int, int] | None:
    """(major, minor) of ``v20.20.2`` or ``3.12.1``."""
    found = re.match(r"\s*v?(\d+)\.(\d+)\.", text)
    return (int(found[1]), int(found[2])) if found else None


async def run_tool(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """`_installs.run_tool` for at most `INSTALL_SECONDS`."""
    return await _installs.run_tool(argv, cwd, env, INSTALL_SECONDS)
