"""Agents from PyPI: an install that holds its own Python, so that it runs wherever its files are shown.

``<install>/bin/python3`` and ``<install>/lib/pythonX.Y`` are copies of a Python of the host; the
packages lie in its site-packages, compiled to byte code. Nothing in it names the place where it was
made, as a virtual environment would, so a container can have it under another path. Programs are
started through that interpreter, whatever their first line says.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ageval_executors._installs import find_uv
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
from pytest_ageval.box import HOME, Box
from pytest_ageval.errors import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ageval_executors.acp.entries import Entry

log = logging.getLogger("pytest_ageval.agents")

_IN_BOX = f"{HOME}/.ageval-runtime"
_ABOUT = (
    "import json, os, sys, sysconfig as s; print(json.dumps({'version': '%d.%d.%d' % sys.version_info[:3],"
    " 'executable': os.path.realpath(sys.executable), 'stdlib': s.get_path('stdlib'),"
    " 'library': os.path.join(s.get_config_var('LIBDIR') or '', s.get_config_var('INSTSONAME') or '')}))"
)
#: Of the standard library: what no agent needs.
_LEFT_OUT = ("site-packages", "dist-packages", "test", "idlelib", "turtledemo", "__pycache__", "config-*")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python of the host. `library` is its shared library, if it has one."""

    executable: Path
    stdlib: Path
    library: Path
    version: str


async def find_python(entry: Entry) -> Interpreter:
    """A Python that runs `entry`: the one that runs now, or one on PATH.

    Raises `ExecutorError` ``acp_runtime_python``.
    """
    assert entry.python is not None
    seen = {}
    for candidate in _candidates(entry):
        found = await _about(candidate)
        if found is None:
            continue
        version = parse_version(found.version)
        if version is not None and entry.python.floor <= version < entry.python.ceiling:
            return found
        seen[found.version] = candidate
    have = ", ".join(f"{path} is {version}" for version, path in seen.items())
    raise python_unfit(entry, have or "no Python was found")


def python_unfit(entry: Entry, found: str) -> ExecutorError:
    """The error of a Python out of range."""
    assert entry.python is not None
    floor, ceiling = (".".join(map(str, v)) for v in (entry.python.floor, entry.python.ceiling))
    return ExecutorError(
        "acp_runtime_python",
        f"the agent {entry.name} needs Python >= {floor} and < {ceiling}; {found}. Install one and have "
        "it on PATH",
    )


def _candidates(entry: Entry) -> Iterator[Path]:
    assert entry.python is not None
    yield Path(sys.executable)
    first, end = entry.python.floor[1], entry.python.ceiling[1]
    for name in [*(f"python3.{minor}" for minor in range(first, end)), "python3"]:
        if (found := shutil.which(name)) is not None:
            yield Path(found)


async def _about(python: Path) -> Interpreter | None:
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-I", "-c", _ABOUT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError:
        return None
    out, _ = await process.communicate()
    try:
        row = json.loads(out)
    except ValueError:
        return None
    return Interpreter(Path(row["executable"]), Path(row["stdlib"]), Path(row["library"]), row["version"])


def _target(entry: Entry, python: Interpreter) -> Path:
    return cache_root() / install_name(entry, platform_name(platform.machine()), python.version)


async def host_directory(entry: Entry) -> Path:
    """Where the packages of `entry` are, or will be."""
    return _target(entry, await find_python(entry))


async def find_installed(entry: Entry, runtime: str | None) -> Path | None:
    """Where the packages of `entry` are for boxes on this machine; None: they are not installed yet."""
    if runtime is not None:
        return _given(runtime)
    target = _target(entry, await find_python(entry))
    return target if (target / MARKER).is_file() else None


def _given(runtime: str) -> Path:
    directory = Path(runtime).expanduser().resolve()
    if not (directory / "bin" / "python3").exists():
        raise ExecutorError("acp_runtime_missing", f"the option runtime: {directory} has no bin/python3")
    return directory


async def ensure(entry: Entry, box: Box, runtime: str | None, *, may_install: bool) -> str:
    """The install of `entry` as `box` spells it. Installs only if `may_install`."""
    expose = getattr(box, "expose", None)
    if not callable(expose):
        return runtime or await _in_box(entry, box, may_install=may_install)
    if runtime is not None:
        directory = _given(runtime)
    else:
        directory = await install_on_host(entry, may_install=may_install)
    return expose(directory) or str(directory)


# -- on the host -----------------------------------------------------------------------------------


async def install_on_host(entry: Entry, *, may_install: bool) -> Path:
    """The directory that holds `entry`'s packages; made now if it is missing and `may_install`.

    Raises `ExecutorError` ``acp_runtime_python``, ``acp_runtime_missing``, ``acp_runtime_install_failed``.
    """
    python = await find_python(entry)

    async def fill(stage: Path) -> None:
        await _fill(entry, python, stage)

    return await install_once(entry, _target(entry, python), fill, may_install=may_install)


async def _fill(entry: Entry, python: Interpreter, stage: Path) -> None:
    await asyncio.to_thread(_copy_python, python, stage)
    interpreter = str(stage / "bin" / "python3")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "UV_"))}
    pins = [f"{name}=={version}" for name, version in entry.packages.items()]
    for argv in _installers(interpreter, pins):
        code, output = await run_tool(argv, stage, environment)
        if code != 0:
            raise install_failed(entry, f"{Path(argv[0]).name} ended with exit code {code}", output)
    check = (
        "import sys, ssl; from importlib.metadata import version\n"
        "for pin in sys.argv[1:]:\n"
        "    name, _, wanted = pin.partition('==')\n"
        "    assert version(name) == wanted, f'{name} is {version(name)}'\n"
    )
    code, output = await run_tool([interpreter, "-I", "-c", check, *pins], stage, environment)
    if code != 0:
        raise install_failed(entry, "what was installed cannot be used", output)


def _installers(interpreter: str, pins: list[str]) -> list[list[str]]:
    """The commands that install: uv's where there is one, since pip takes minutes for some agents."""
    uv = find_uv()
    if uv is not None:
        flags = ["--quiet", "--break-system-packages", "--compile-bytecode", "--link-mode", "copy"]
        return [[uv, "pip", "install", *flags, "--python", interpreter, *pins]]
    pip = [interpreter, "-I", "-m", "pip"]
    return [
        [interpreter, "-I", "-m", "ensurepip", "--upgrade"],
        [*pip, "install", "--quiet", "--disable-pip-version-check", "--no-warn-script-location", *pins],
    ]


def _copy_python(python: Interpreter, stage: Path) -> None:
    (stage / "bin").mkdir()
    (stage / "lib").mkdir()
    program = stage / "bin" / "python3"
    shutil.copy2(python.executable, program)
    if python.library.suffix != ".a" and python.library.is_file():
        shutil.copy2(python.library, stage / "lib" / python.library.name)
        program.write_bytes(_beside_itself(program.read_bytes(), python.library.parent))
    library = stage / "lib" / python.stdlib.name
    shutil.copytree(python.stdlib, library, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=False)
    (library / "site-packages").mkdir(exist_ok=True)
    (library / "EXTERNALLY-MANAGED").unlink(missing_ok=True)


def _beside_itself(program: bytes, directory: Path) -> bytes:
    """`program` with its library looked for in ``../lib`` and not in `directory` (its run path).

    Left as it is where the path does not stand in it exactly once, or is too short: then it runs only where
    `directory` is shown too.
    """
    before, after = os.fsencode(directory) + b"\0", b"$ORIGIN/../lib\0"
    if program.count(before) != 1 or len(before) < len(after):
        return program
    return program.replace(before, after.ljust(len(before), b"\0"))


# -- in the box ------------------------------------------------------------------------------------

_PROBE = """
python3 -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null || echo none
test -f "$1" && echo installed || echo missing
"""
_INSTALL = """
set -e
rm -rf "$1.part"; mkdir -p "$(dirname "$1")"; python3 -m venv "$1.part"
directory=$1 marker=$2; shift 2
"$directory.part/bin/python3" -m pip install --quiet --disable-pip-version-check "$@" 2>&1
: > "$directory.part/$marker"
rm -rf "$directory"; mv "$directory.part" "$directory"
"""


async def _in_box(entry: Entry, box: Box, *, may_install: bool) -> str:
    """A virtual environment in the box, with the box's own Python and pip."""
    root = box.cache_path() or box.visible_path(_IN_BOX)
    directory = f"{root}/{install_name(entry, 'box', 0)}"
    found = await box.exec(["sh", "-c", _PROBE, "sh", f"{directory}/{MARKER}"], timeout=60)
    text, state = [*found.stdout.split("\n"), "", ""][:2]
    version = parse_version(text)
    if state == "installed":
        return directory
    assert entry.python is not None
    if version is None or not entry.python.floor <= version < entry.python.ceiling:
        raise python_unfit(entry, "the box has " + ("none" if version is None else text.strip()))
    if not may_install:
        raise ExecutorError(
            "acp_runtime_missing", f"the agent {entry.name} is not installed in the box, in {directory}"
        )
    log.info("installing the agent %s in the box (%s)", entry.name, listed(entry.packages))
    pins = [f"{name}=={version}" for name, version in entry.packages.items()]
    command = ["sh", "-c", _INSTALL, "sh", directory, MARKER, *pins]
    done = await box.exec(command, timeout=INSTALL_SECONDS)
    if not done.ok:
        raise install_failed(entry, f"exit code {done.exit_code} in the box", f"{done.stdout}\n{done.stderr}")
    return directory
