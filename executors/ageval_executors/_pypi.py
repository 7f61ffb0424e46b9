"""Agents' PyPI packages: installed once, outside every timed run, and shared by all attempts.

On a box that shares the host's files the install is a virtual environment in a cache directory of the
host (``$XDG_CACHE_HOME/pytest-ageval/agents/<name>-<digest>``); the digest covers names, versions, platform
and Python's version. It is made under a lock, in a directory of another name that is renamed when it is
complete, with ``uv`` if there is one and pip otherwise. In any other box it is made inside.

The environment is used through ``PyRuntime.python``, never through its activation or its scripts' first
lines: it has been renamed since they were written.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import platform
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ageval_executors._installs import find_uv, install_once, last_lines, make_once, run_tool
from pytest_ageval.box import HOME, Box, cache_root
from pytest_ageval.errors import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger("pytest_ageval.agents")

#: Seconds for one install.
INSTALL_SECONDS = 1800.0
MARKER = "ageval-packages.json"

#: Minor versions of Python 3 that are looked for, the best first.
_MINORS = (12, 13, 11, 14)
_LOOK = (
    "import sys, json; print(json.dumps([sys.version_info[:3], sys.base_prefix,"
    " getattr(sys, '_base_executable', sys.executable)]))"
)
#: What a box's Python must be able to load.
_TRY = "import ctypes, hashlib, os, sqlite3, ssl, sys, zlib; print(os.path.realpath(sys.executable))"


@dataclass(frozen=True, slots=True)
class PyPackages:
    """What one agent needs: exact versions by name, and the Pythons (major, minor) it runs on."""

    name: str
    pins: Mapping[str, str]
    python: tuple[int, int] = (3, 11)
    below: tuple[int, int] = (3, 15)

    def fits(self, version: tuple[int, ...]) -> bool:
        """That Python runs it."""
        return self.python <= tuple(version[:2]) < self.below

    @property
    def listed(self) -> str:
        """``a==1 b==2``, for messages."""
        return " ".join(f"{name}=={version}" for name, version in sorted(self.pins.items()))


@dataclass(frozen=True, slots=True)
class PyRuntime:
    """An install as a process in the box must spell it.

    `python` is its interpreter, `directory` the install; its scripts are ``[python,
    f"{directory}/bin/<script>"]``. `env` are variables that the process needs to start.
    """

    python: str
    directory: str
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostPython:
    """A Python of this machine: its program, its version, and the directory it belongs to."""

    program: Path
    version: tuple[int, int, int]
    prefix: Path

    @property
    def name(self) -> str:
        """``python3.12``."""
        return f"python{self.version[0]}.{self.version[1]}"


# -- Python on the host ----------------------------------------------------------------------------


async def find_python(packages: PyPackages, python: str | None = None) -> HostPython:
    """The given Python, the one that runs us, or one on PATH, whichever is first to fit.

    Raises `ExecutorError` ``agent_python_missing``.
    """
    seen: list[str] = []
    for candidate in [python] if python else _candidates(packages):
        found = await _look_at(candidate)
        if found is None:
            continue
        if packages.fits(found.version):
            return found
        seen.append(f"{candidate} is {'.'.join(map(str, found.version))}")
    floor, below = (".".join(map(str, version)) for version in (packages.python, packages.below))
    told = "; ".join(dict.fromkeys(seen)) or (f"{python} is no Python" if python else "none was found")
    raise ExecutorError(
        "agent_python_missing",
        f"the agent {packages.name} needs Python >= {floor}, < {below}; {told}. Put one on PATH or name "
        "it with the option python",
    )


def _candidates(packages: PyPackages) -> list[str]:
    found = [sys.executable]
    minors = [minor for minor in _MINORS if packages.fits((3, minor))]
    found += [path for minor in minors if (path := shutil.which(f"python3.{minor}"))]
    # A shim of pyenv on PATH does nothing unless its version is chosen; the versions themselves work.
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for minor in minors:
        found += [str(path) for path in sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python"), reverse=True)]
    return found


async def _look_at(candidate: str) -> HostPython | None:
    code, output = await _run([candidate, "-I", "-c", _LOOK], Path("/"), 30.0)
    try:
        version, prefix, program = json.loads(output) if code == 0 else (None, "", "")
        return HostPython(Path(program), tuple(version), Path(prefix)) if version else None
    except (ValueError, TypeError):
        return None


# -- install on the host ---------------------------------------------------------------------------


def _target(packages: PyPackages, python: HostPython) -> Path:
    key = json.dumps([sorted(packages.pins.items()), platform.machine(), python.version, str(python.prefix)])
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    return cache_root() / "agents" / f"{packages.name}-{digest}"


async def find_installed(packages: PyPackages, python: str | None = None) -> Path | None:
    """Where the packages are for boxes on this machine; None: they are not installed yet.

    Raises `ExecutorError` ``agent_python_missing`` when they cannot be.
    """
    target = _target(packages, await find_python(packages, python))
    return target if (target / MARKER).is_file() else None


async def _install_on_host(packages: PyPackages, python: HostPython, *, may_install: bool) -> Path:
    target = _target(packages, python)
    if (target / MARKER).is_file():
        return target
    if not may_install:
        raise _not_there(packages, f"is not installed in {target}")

    async def fill(stage: Path) -> str:
        return await _fill(packages, python, stage)

    await install_once(target, MARKER, packages.name, packages.listed, fill)
    return target


def _not_there(packages: PyPackages, why: str) -> ExecutorError:
    return ExecutorError(
        "agent_packages_missing",
        f"the agent {packages.name} {why}; it is installed in the environment phase, before the run",
    )


async def _fill(packages: PyPackages, python: HostPython, stage: Path) -> str:
    pins = [f"{name}=={version}" for name, version in sorted(packages.pins.items())]
    inside, uv = str(stage / "bin" / "python"), find_uv()
    # Compiled here: the first start of such an agent takes half a minute or more otherwise.
    if uv is not None:
        steps = [
            [uv, "venv", "--quiet", "--no-python-downloads", "--python", str(python.program), str(stage)],
            [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", inside, *pins],
        ]
        listing = [uv, "pip", "freeze", "--quiet", "--python", inside]
    else:
        steps = [
            [str(python.program), "-m", "venv", str(stage)],
            [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins],
        ]
        listing = [inside, "-m", "pip", "freeze", "--disable-pip-version-check"]
    for argv in steps:
        code, output = await _run(argv, stage.parent, INSTALL_SECONDS)
        if code != 0:
            raise install_failed(packages, f"{Path(argv[0]).name} ended with exit code {code}", output)
    _, resolved = await _run(listing, stage.parent, 120.0)
    return json.dumps({"packages": dict(packages.pins), "resolved": sorted(resolved.split())})


def install_failed(packages: PyPackages, why: str, output: str) -> ExecutorError:
    """The error of a failed install, with the installer's last lines."""
    return ExecutorError(
        "agent_install_failed",
        f"could not install {packages.listed}: {why}",
        detail=last_lines(output) or None,
    )


async def _run(argv: Sequence[str], cwd: Path, seconds: float) -> tuple[int, str]:
    # What configures the caller's own Python is not for another one.
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return await run_tool(argv, cwd, env, seconds)


# -- an install of the host, seen from a box that shows it elsewhere -------------------------------


async def _shown_elsewhere(
    packages: PyPackages, box: Box, python: HostPython, install: Path, shown: str
) -> PyRuntime:
    """A virtual environment whose links are spelled for the box: its Python, and the packages."""
    expose = box.expose  # type: ignore[attr-defined]  # the caller saw it
    program, env = await _own_python(box, python), {}
    if program is None:
        copy = await asyncio.to_thread(_copy_python, python)
        directory = expose(copy)
        program = f"{directory}/bin/{python.name}"
        if any(copy.glob("lib/libpython*.so*")):
            env = {"LD_LIBRARY_PATH": f"{directory}/lib"}
        ran = await box.exec([program, "-I", "-c", _TRY], env=env, timeout=60)
        if not ran.ok:
            raise ExecutorError(
                "agent_python_missing",
                f"the box has no {python.name} for the agent {packages.name}, and the one of this machine "
                f"does not run in it; use an image with {python.name}",
                detail=(ran.stderr or ran.stdout)[-1000:],
            )
    view = await asyncio.to_thread(_write_view, install, shown, python, program)
    return PyRuntime(f"{expose(view)}/bin/python", shown, env)


async def _own_python(box: Box, python: HostPython) -> str | None:
    """The box's own Python of that minor version, as it names itself: what PATH has may be a script."""
    found = await box.exec(["sh", "-c", 'exec "$0" -I -c "$1"', python.name, _TRY], timeout=60)
    return found.stdout.strip() or None if found.ok else None


def _copy_python(python: HostPython) -> Path:
    """A copy of that Python's program, standard library and shared library, beside the installs."""
    key = hashlib.sha256(f"{python.prefix}\0{python.version}".encode()).hexdigest()[:12]
    target = cache_root() / "agents" / f"{python.name}-{key}"

    def fill(stage: Path) -> None:
        (stage / "bin").mkdir()
        shutil.copy2(python.program.resolve(), stage / "bin" / python.name)
        unwanted = ("test", "idlelib", "site-packages", "dist-packages", "config-3*")
        library = Path("lib", python.name)
        shutil.copytree(
            python.prefix / library,
            stage / library,
            symlinks=False,
            ignore=shutil.ignore_patterns(*unwanted),
            ignore_dangling_symlinks=True,
        )
        for shared in python.prefix.glob(f"lib/lib{python.name}*.so*"):
            shutil.copy2(shared, stage / "lib" / shared.name)

    return make_once(target, fill)


def _write_view(install: Path, shown: str, python: HostPython, program: str) -> Path:
    key = hashlib.sha256(f"{shown}\0{program}".encode()).hexdigest()[:12]
    target = install.with_name(f"{install.name}-{key}")
    if target.exists():
        return target
    stage = target.with_name(f".{target.name}.{os.getpid()}.part")
    shutil.rmtree(stage, ignore_errors=True)
    library = stage / "lib" / python.name
    library.mkdir(parents=True)
    (stage / "bin").mkdir()
    (stage / "bin" / "python").symlink_to(program)
    (library / "site-packages").symlink_to(f"{shown}/lib/{python.name}/site-packages")
    config = f"home = {os.path.dirname(program)}\ninclude-system-site-packages = false\n"  # noqa: PTH120 - of the box
    (stage / "pyvenv.cfg").write_text(config, encoding="utf-8")
    try:
        stage.rename(target)
    except OSError:  # another process was first, with the same links
        shutil.rmtree(stage, ignore_errors=True)
    return target


# -- install in the box ----------------------------------------------------------------------------

_FIND = (
    'test -f "$1" && echo installed || echo missing; shift;'
    ' for p in "$@"; do command -v "$p" >/dev/null && "$p" -I -c'
    " 'import sys, venv; print(sys.executable, sys.version_info[0], sys.version_info[1])' 2>/dev/null;"
    " done; true"
)
_MAKE = (
    'set -e; stage="$1.$$"; trap \'rm -rf "$stage"\' EXIT; mkdir -p "$(dirname "$1")";'
    ' "$2" -m venv "$stage"; target="$1"; mark="$3"; shift 3;'
    ' "$stage/bin/python" -m pip install --quiet --disable-pip-version-check "$@";'
    ' touch "$stage/$mark"; [ -f "$target/$mark" ] || mv "$stage" "$target"'
)


async def _install_in_box(
    packages: PyPackages, box: Box, python: str | None, *, may_install: bool
) -> PyRuntime:
    """As on the host, inside the box, with the box's own Python and pip."""
    key = hashlib.sha256(json.dumps(sorted(packages.pins.items())).encode()).hexdigest()[:12]
    directory = f"{box.cache_path() or box.visible_path(HOME) + '/.ageval-runtime'}/{packages.name}-{key}"
    names = [python] if python else ["python3", *(f"python3.{minor}" for minor in _MINORS)]
    found = await box.exec(["sh", "-c", _FIND, "sh", f"{directory}/{MARKER}", *names], timeout=120)
    state, *rows = found.stdout.split("\n")
    runtime = PyRuntime(f"{directory}/bin/python", directory)
    if state == "installed":
        return runtime
    pythons = [row.rsplit(" ", 2) for row in rows if row.count(" ") >= 2]
    fitting = [row[0] for row in pythons if packages.fits((int(row[1]), int(row[2])))]
    if not fitting:
        floor = ".".join(map(str, packages.python))
        raise ExecutorError(
            "agent_python_missing",
            f"the agent {packages.name} needs Python >= {floor} with venv in the box; use an image that "
            "has it",
        )
    if not may_install:
        raise _not_there(packages, "is not installed in the box")
    log.info("installing the agent %s in the box (%s)", packages.name, packages.listed)
    pins = [f"{name}=={version}" for name, version in sorted(packages.pins.items())]
    done = await box.exec(
        ["sh", "-c", _MAKE, "sh", directory, fitting[0], MARKER, *pins], timeout=INSTALL_SECONDS
    )
    if not done.ok:
        raise install_failed(packages, f"exit code {done.exit_code} in the box", done.stdout + done.stderr)
    return runtime


# -- what an executor calls ------------------------------------------------------------------------


async def ensure_packages(
    packages: PyPackages, box: Box, *, python: str | None = None, may_install: bool
) -> PyRuntime:
    """The install of `packages` for `box`, visible in it. Installs only if `may_install`.

    `python` names the interpreter; on a box that shares the host's files it is one of the host. Raises
    `ExecutorError` ``agent_python_missing``, ``agent_packages_missing`` or ``agent_install_failed``.
    """
    expose = getattr(box, "expose", None)
    if not callable(expose):
        return await _install_in_box(packages, box, python, may_install=may_install)
    found = await find_python(packages, python)
    install = await _install_on_host(packages, found, may_install=may_install)
    shown = expose(install)
    if shown is not None and shown != str(install):
        return await _shown_elsewhere(packages, box, found, install, shown)
    if found.prefix != Path("/usr"):
        expose(found.prefix)
    return PyRuntime(str(install / "bin" / "python"), str(install))
