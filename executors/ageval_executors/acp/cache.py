"""The host's cache of agents' installs: each is made once, under a lock, complete or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ageval.box import cache_root as box_cache_root
from pytest_ageval.errors import ExecutorError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from ageval_executors.acp.entries import Entry

log = logging.getLogger("pytest_ageval.agents")

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
    await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
    async with _locked(target.parent / f".{target.name}.lock", entry.name):
        if not (target / MARKER).is_file():
            await _install(entry, target, fill)
    return target


@contextlib.asynccontextmanager
async def _locked(path: Path, name: str) -> AsyncIterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        told = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    log.info("another process installs the agent %s; waiting", name)
                    told = True
                await asyncio.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


async def _install(entry: Entry, target: Path, fill: Callable[[Path], Awaitable[None]]) -> None:
    stage = target.with_name(f".{target.name}.{os.getpid()}.part")
    log.info("installing the agent %s (%s)", entry.name, listed(entry.packages))
    try:
        await asyncio.to_thread(_empty, stage)
        await fill(stage)
        await asyncio.to_thread(_complete, stage, target, entry)
    finally:
        await asyncio.to_thread(shutil.rmtree, stage, True)
    log.info("installed the agent %s in %s", entry.name, target)


def _empty(stage: Path) -> None:
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()


def _complete(stage: Path, target: Path, entry: Entry) -> None:
    (stage / MARKER).write_text(json.dumps({"packages": dict(entry.packages)}), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)  # a directory without its marker is a torn one
    stage.rename(target)


def install_failed(entry: Entry, why: str, output: str) -> ExecutorError:
    """The error of a failed install, with the installer's last lines."""
    lines = "\n".join(output.strip().splitlines()[-15:])[-3000:]
    tool = "npm" if entry.python is None else "pip"
    return ExecutorError(
        "acp_runtime_install_failed",
        f"{tool} could not install {listed(entry.packages)}: {why}",
        detail=lines,
    )


def listed(packages: Mapping[str, str]) -> str:
    """The packages with their versions, for messages."""
    return " ".join(f"{name}@{version}" for name, version in packages.items())


def parse_version(text: str) -> tuple[int, int] | None:
    """(major, minor) of ``v20.20.2`` or ``3.12.1``."""
    found = re.match(r"\s*v?(\d+)\.(\d+)\.", text)
    return (int(found[1]), int(found[2])) if found else None


async def run_tool(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """Run an installer to its end: exit code (-1: it took too long), and both streams as text."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=cwd,
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), INSTALL_SECONDS)
    except TimeoutError:
        return -1, f"no end after {INSTALL_SECONDS:.0f} seconds"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return process.returncode or 0, out.decode("utf-8", "replace")
