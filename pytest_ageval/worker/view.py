"""What a task script sees of this machine. The parent plans it; the worker enters it (`namespace`)."""

# ruff: noqa: PTH118, PTH120

from __future__ import annotations

import contextlib
import functools
import json
import os
import pwd
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pytest_ageval.box import work_parent

if TYPE_CHECKING:
    from pytest_ageval.worker.namespace import Step
    from pytest_ageval.worker.spec import ScriptSpec

#: Directories in which the script has its own, empty and writable.
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - they become private

#: Places of every machine that hold credentials, or sockets of services that do anything for a user.
_PRIVATE = (Path("/home"), Path("/root"), Path("/run"), Path("/var/run"))

_PROBE = """\
import json, sys
sys.path.insert(0, sys.argv[1])
from pytest_ageval.worker import namespace
namespace.main(json.loads(sys.argv[2]))
"""


@functools.cache
def unusable() -> str | None:
    """Why scripts cannot be contained here, found by trying it once in a process; None if they can."""
    if not sys.platform.startswith("linux"):
        return "it needs Linux"
    steps = [["tmp", "/tmp", ""], ["hide", "/run", ""]]  # noqa: S108
    root = str(Path(__file__).resolve().parents[2])
    argv = [sys.executable, "-I", "-S", "-c", _PROBE, root, json.dumps(steps)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"the probe exited {done.returncode}"])[-1]
    return done.stdout.strip() or None


def words(trusted: bool) -> str:
    """``task scripts contained``, or that they are not and why, for the header of a run."""
    reason = "--trust-tasks" if trusted else unusable()
    return "task scripts contained" if reason is None else f"task scripts not contained ({reason})"


# Paths are text in what follows: a plan compares hundreds of them, which takes pathlib ten times as long.


def plan(spec: ScriptSpec) -> list[Step]:
    """The steps by which a worker takes the view of `spec`: places by depth, parents first.

    The host is read-only. Home directories, the directories for temporary files and those of other
    attempts are empty but for what Python, the data set and the attempt need. Of the task itself,
    run.py sees neither the gold nor the solution.
    """
    steps = list(_of_task(spec.kind, spec.task_root, spec.dataset_root, tuple(spec.hidden)))
    # The evaluator's gold is a copy of its own.
    own = (spec.workspace, spec.artifacts, spec.evaluation)
    for path in dict.fromkeys(str(path.absolute()) for path in own if path is not None):
        # Not resolved itself: what worked in the box may have put a link in its place.
        parent, name = os.path.split(path)
        real = os.path.join(_real(parent), name)
        steps.append((_depth(real), 2, ["rw", real, real]))
        if path != real:
            steps.append((_depth(path), 3, ["link", path, real]))
    owner = [] if spec.owner is None else [["own", *map(str, spec.owner)]]
    return [*owner, *(step for _, _, step in sorted(steps, key=lambda row: row[:2]))]


@functools.lru_cache(maxsize=1024)
def _of_task(
    kind: str, task_root: Path, dataset_root: Path | None, hidden: tuple[Path, ...]
) -> tuple[tuple[int, int, Step], ...]:
    """The steps that all attempts at a task share, with their ranks. (Resolving paths takes time.)"""
    temporary, broad = _temporary(), _broad()
    closed = broad | {_real(path) for path in (*_closed(kind, task_root, dataset_root), *hidden)}
    steps: list[tuple[int, int, Step]] = [
        (_depth(path), 0, ["tmp" if path in temporary else "hide", path, ""]) for path in closed
    ]
    own = [str(path.absolute()) for path in (task_root, dataset_root) if path is not None]
    steps += [(_depth(path), 1, ["ro", path, path]) for path in _shown(own, closed)]
    for path, real in (*((path, _real(path)) for path in own), *_machine_shows()):
        # What was reached by a link still is: a virtual environment, a data set.
        if path != real and _nearest(path, closed) is not None and not _holds(path, broad):
            steps.append((_depth(path), 3, ["link", path, real]))
    return tuple(steps)


def _closed(kind: str, task_root: Path, dataset_root: Path | None) -> Iterator[Path]:
    """What a script must not see of the data set."""
    if dataset_root is not None:
        yield dataset_root / ".ageval"
        yield dataset_root / ".env"
    if kind == "run":
        yield task_root / "evaluation"
        yield task_root / "solution"
        # The history of the data set has them as well.
        yield from (parent / ".git" for parent in task_root.absolute().parents)


@functools.cache
def _temporary() -> frozenset[str]:
    return frozenset(_real(path) for path in _TEMPORARY)


@functools.cache
def _broad() -> frozenset[str]:
    """What is empty in every view, but for single places."""
    homes = [Path.home(), Path(pwd.getpwuid(os.geteuid()).pw_dir), *_PRIVATE]
    found = {_real(path) for path in (*homes, Path(tempfile.gettempdir()), work_parent())}
    return frozenset(found - {"/"}) | _temporary()


@functools.cache
def _machine_shows() -> tuple[tuple[str, str], ...]:
    """What Python and the programs on PATH need, wherever it lies: as it is named, and where it really is."""
    executable = Path(sys.executable).resolve()
    found = [Path(sys.prefix), Path(sys.base_prefix), executable.parent.parent]
    found += [Path(text) for text in os.environ.get("PYTHONPATH", "").split(os.pathsep) if text]
    found += [Path(__file__).resolve().parents[1], Path(site.getusersitepackages())]
    for directory in site.getsitepackages():
        found += _installed_elsewhere(Path(directory))
    for text in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if text.startswith("/"):
            found.append(_tool_root(Path(text)))
    found.append(Path("/etc/resolv.conf").resolve())
    return tuple(
        (path, _real(path)) for path in dict.fromkeys(str(p.absolute()) for p in found if p.exists())
    )


def _installed_elsewhere(packages: Path) -> Iterator[Path]:
    """Where the code of editable installations is: by their metadata, and by the older path files."""
    for file in packages.glob("*.dist-info/direct_url.json"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            given = json.loads(file.read_bytes())
            if given.get("dir_info", {}).get("editable"):
                yield Path(unquote(urlsplit(given["url"]).path))
    for file in packages.glob("*.pth"):
        with contextlib.suppress(OSError, ValueError):
            lines = file.read_text(encoding="utf-8").splitlines()
            yield from (Path(line) for line in lines if line.startswith("/"))


def _tool_root(entry: Path) -> Path:
    """``<prefix>/bin`` needs ``<prefix>/lib``; ``~/.local`` and ``~`` are too much."""
    home, prefix = Path.home(), entry.parent
    # A shim of pyenv, asdf or mise starts the manager that lies beside it.
    whole = entry.name == "shims" or (entry.name == "bin" and (prefix / "lib").is_dir())
    return prefix if whole and prefix not in (home, home / ".local") else entry


def _shown(own: Sequence[str], closed: AbstractSet[str]) -> list[str]:
    """What is shown although it lies in a place of `closed`; no links."""
    broad = _broad()
    targets = [real for _, real in _machine_shows()]
    for path in own:
        targets.append(real := _real(path))
        if _holds(real, broad):
            targets += map(_real, _visible_entries(real))
    found = {path for path in targets if _nearest(path, closed) is not None and not _holds(path, broad)}
    # What lies in another one is shown with it.
    return [target for target in found if _nearest(target, closed | found) in closed]


def _visible_entries(directory: str) -> Iterator[str]:
    """Of a directory that is a home as well, or holds one: nothing with a dot."""
    with os.scandir(directory) as found:
        for entry in found:
            if not entry.name.startswith("."):
                yield entry.path


def _holds(path: str, places: AbstractSet[str]) -> bool:
    """`path` is one of `places`, or above one."""
    if path in places:
        return True
    start = path if path.endswith("/") else f"{path}/"
    return any(place.startswith(start) for place in places)


def _nearest(path: str, places: AbstractSet[str]) -> str | None:
    """The place that lies above `path`, of several the deepest."""
    while len(path) > 1:
        path = os.path.dirname(path)
        if path in places:
            return path
    return None


def _depth(path: str) -> int:
    return path.count("/")


def _real(path: str | Path) -> str:
    return os.path.realpath(path)
