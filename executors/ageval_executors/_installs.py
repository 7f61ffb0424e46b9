"""What every install of an agent on the host has in common, whatever is installed.

It is made once for all processes of this user, under a lock, in a directory of another name that is renamed
when it is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import logging
import os
import shutil
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

log = logging.getLogger("pytest_ageval.agents")


async def install_once(
    target: Path, marker: str, name: str, listed: str, fill: Callable[[Path], Awaitable[str]]
) -> None:
    """Make `target` unless it holds the file `marker`.

    `fill` gets an empty directory and returns what is written into the marker; what it raises is raised.
    `name` is the agent's and `listed` its packages, for the log.
    """
    await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
    async with _locked(target.parent / f".{target.name}.lock", name):
        if (target / marker).is_file():
            return
        stage = target.with_name(f".{target.name}.{os.getpid()}.part")
        log.info("installing the agent %s (%s)", name, listed)
        try:
            await asyncio.to_thread(_empty, stage)
            note = await fill(stage)
            await asyncio.to_thread(_complete, stage, target, marker, note)
        finally:
            await asyncio.to_thread(shutil.rmtree, stage, True)
        log.info("installed the agent %s in %s", name, target)


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


def _empty(stage: Path) -> None:
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()


def _complete(stage: Path, target: Path, marker: str, note: str) -> None:
    (stage / marker).write_text(note, encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)  # a directory without its marker is a torn one
    stage.rename(target)


def make_once(target: Path, fill: Callable[[Path], None]) -> Path:
    """`target`, made by `fill` (which gets an empty directory) if it is not there. Blocks."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            stage = target.with_name(f".{target.name}.{os.getpid()}.part")
            _empty(stage)
            fill(stage)
            stage.rename(target)
    return target


def last_lines(output: str) -> str:
    """The end of what an installer said, for an error's detail."""
    return "\n".join(output.strip().splitlines()[-15:])[-3000:]


async def run_tool(argv: Sequence[str], cwd: Path, env: Mapping[str, str], seconds: float) -> tuple[int, str]:
    """Run an installer to its end: both streams as text, after its exit code.

    That is -1 when it took longer than `seconds`, and 127 when it cannot be started.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return 127, str(error)
    try:
        out, _ = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        return -1, f"no end after {seconds:.0f} seconds"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return process.returncode or 0, out.decode("utf-8", "replace")


def find_uv() -> str | None:
    """The uv that is installed beside us, or one on PATH."""
    if importlib.util.find_spec("uv") is not None:
        from uv import find_uv_bin

        with contextlib.suppress(FileNotFoundError):
            return str(find_uv_bin())
    return shutil.which("uv")
