"""Agents' packages: installed once, outside every timed run, and shared by all attempts.

On a box that shares the host's files the install is kept in a cache directory of the host
(``$XDG_CACHE_HOME/pytest-ageval/agents/<entry>-<digest>``); the digest covers names, versions,
platform and Node's major version. It is made under a lock, in a directory of another name that is
renamed when it is complete. A box that is made from an image of its own gets it as a layer (`layers`).
In any other box it is made inside: below `Box.cache_path`, where the box's machine keeps one, under the
same rules; else below /attempt/home.
"""

from __future__ import annotations

import json
import logging
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ageval_executors.acp import pypi
from ageval_executors.acp.cache import (
    INSTALL_SECONDS,
    MARKER,
    cache_root,
    install_failed,
    install_name,
    install_once,
    listed,
    parse_version,
    platform_name,
    run_tool,
)
from ageval_executors.acp.toolchain import Toolchain, find_toolchain, node_too_old
from pytest_ageval.box import HOME, Box
from pytest_ageval.errors import ExecutorError

if TYPE_CHECKING:
    from ageval_executors.acp.entries import Entry

log = logging.getLogger("pytest_ageval.agents")

IN_BOX = f"{HOME}/.ageval-runtime"

# No install scripts: none of the agents needs one, and a package that was taken over could run one.
_NPM_FLAGS = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error")


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where an agent's packages and its Node are, as the agent's process must spell it. "" means none."""

    directory: str = ""
    node: str = "node"
    platform: str = "linux-x64"


def shares_host_files(box: Box) -> bool:
    """The box can show a directory of the host to its processes, under the same path."""
    return callable(getattr(box, "expose", None))


# -- install on the host ---------------------------------------------------------------------------


async def install_on_host(entry: Entry, tools: Toolchain, *, may_install: bool) -> Path:
    """The directory that holds `entry`'s packages; made now if it is missing and `may_install`.

    Raises `ExecutorError` ``acp_runtime_missing`` (not there, not to be made) or
    ``acp_runtime_install_failed`` with npm's last lines.
    """

    async def fill(stage: Path) -> None:
        (stage / "package.json").write_text(package_json(entry), encoding="utf-8")
        environment = {**os.environ, "PATH": f"{tools.node.parent}:{os.environ.get('PATH', '')}"}
        code, output = await run_tool([*tools.npm, "install", *_NPM_FLAGS], stage, environment)
        if code != 0:
            raise install_failed(entry, f"npm ended with exit code {code}", output)
        _check_versions(stage, entry)
        if entry.finish is not None:
            code, output = await run_tool([str(tools.node), "-e", entry.finish], stage, environment)
            if code != 0:
                raise install_failed(entry, f"its last step ended with exit code {code}", output)

    name = install_name(entry, platform_name(platform.machine()), tools.version[0])
    return await install_once(entry, cache_root() / name, fill, may_install=may_install)


def package_json(entry: Entry) -> str:
    """The package.json of an install: the exact pins."""
    document = {"name": "ageval-agent", "private": True, "dependencies": dict(entry.packages)}
    return json.dumps(document, indent=1)


def _check_versions(stage: Path, entry: Entry) -> None:
    for name, version in entry.packages.items():
        document = stage / "node_modules" / name / "package.json"
        found = json.loads(document.read_bytes())["version"] if document.is_file() else None
        if found != version:
            raise install_failed(entry, f"{name} is {found}, not {version}", "")


# -- install in the box ----------------------------------------------------------------------------

_PROBE = "uname -m; node --version 2>/dev/null || echo none"

# $1: the directory of all installs, $2: the name of this one, $3: the marker, $4: what Node does last.
# Others may do the same at the same time, in other boxes: who makes the lock installs. It is kept fresh
# by a process that ends with its maker; one that is not fresh any more is of an install that was killed.
# That two install at once is then possible and does no harm: each has a directory of its own, and the
# last rename counts.
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
[ -z "$4" ] || node -e "$4" 2>&1 || exit 1
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
    log.info("installing the agent %s in the box (%s)", entry.name, listed(entry.packages))
    command = _INSTALL.replace("FLAGS", " ".join(_NPM_FLAGS)).replace("STALE", str(STALE_SECONDS))
    done = await box.exec(
        ["sh", "-c", command, "sh", base, name, MARKER, entry.finish or ""],
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
    if entry.python is not None:
        return await pypi.find_installed(entry, runtime)
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
    if entry.python is not None:
        shown = await pypi.ensure(entry, box, runtime, may_install=may_install)
        return Runtime(shown, node or "node", platform_name(platform.machine()))
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
