"""What a task script sees of this machine. The parent plans it; the worker enters it (`namespace`)."""

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


def plan(spec: ScriptSpec) -> list[Step]:
    """The steps by which a worker takes the view of `spec`: places by depth, parents first.

    The host is read-only. Home directories, the directories for temporary files and those of other
    attempts are empty but for what Python, the data set and the attempt need. Of the task itself,
    run.py sees neither the gold nor the solution.
    """
    steps = list(_of_task(spec.kind, spec.task_root, spec.dataset_root, tuple(spec.hidden)))
    # The evaluator's gold is a copy of its own.
    own = (spec.workspace, spec.artifacts, spec.evaluation)
    for path in dict.fromkeys(path.absolute() for path in own if path is not None):
        # Not resolved itself: what worked in the box may have put a link in its place.
        real = _real(path.parent) / path.name
        steps.append((len(real.parts), 2, ["rw", str(real), str(real)]))
        if path != real:
            steps.append((len(path.parts), 3, ["link", str(path), str(real)]))
    owner = [] if spec.owner is None else [["own", *map(str, spec.owner)]]
    return [*owner, *(step for _, _, step in sorted(steps, key=lambda row: row[:2]))]


@functools.lru_cache(maxsize=1024)
def _of_task(
    kind: str, task_root: Path, dataset_root: Path | None, hidden: tuple[Path, ...]
) -> tuple[tuple[int, int, Step], ...]:
    """The steps that all attempts at a task share, with their ranks. (Resolving paths takes time.)"""
    temporary = {_real(path) for path in _TEMPORARY}
    broad = {*_machine_hides(), *temporary}
    closed = broad | {_real(path) for path in (*_closed(kind, task_root, dataset_root), *hidden)}
    steps: list[tuple[int, int, Step]] = [
        (len(path.parts), 0, ["tmp" if path in temporary else "hide", str(path), ""]) for path in closed
    ]
    own = [path.absolute() for path in (task_root, dataset_root) if path is not None]
    shown = _shown(own, broad, closed)
    steps += [(len(path.parts), 1, ["ro", str(path), str(path)]) for path in shown]
    for path in (*own, *_machine_shows()):
        # What was reached by a link still is: a virtual environment, a data set.
        real = _real(path)
        if path != real and _nearest(path, closed) is not None and not _holds(path, broad):
            steps.append((len(path.parts), 3, ["link", str(path), str(real)]))
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
def _machine_hides() -> frozenset[Path]:
    homes = [Path.home(), Path(pwd.getpwuid(os.geteuid()).pw_dir), *_PRIVATE]
    found = {_real(path) for path in (*homes, Path(tempfile.gettempdir()), work_parent())}
    return frozenset(found - {Path("/")})


@functools.cache
def _machine_shows() -> tuple[Path, ...]:
    """What Python and the programs on PATH need, wherever it lies."""
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
    return tuple(dict.fromkeys(path.absolute() for path in found if path.exists()))


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


def _shown(own: Sequence[Path], broad: AbstractSet[Path], closed: AbstractSet[Path]) -> list[Path]:
    """What is shown although it lies in a place of `closed`; no links."""
    found: set[Path] = set()
    for path in (*own, *_machine_shows()):
        real = _real(path)
        inner = _visible_entries(real) if path in own and _holds(real, broad) else ()
        for target in map(_real, (real, *inner)):
            if not _holds(target, broad) and _nearest(target, closed) is not None:
                found.add(target)
    # What lies in another one is shown with it.
    return [target for target in found if _nearest(target, closed | found) in closed]


def _visible_entries(directory: Path) -> Iterator[Path]:
    """Of a directory that is a home as well, or holds one: nothing with a dot."""
    for entry in directory.iterdir():
        if not entry.name.startswith("."):
            yield entry


def _holds(path: Path, places: AbstractSet[Path]) -> bool:
    """`path` is one of `places`, or above one."""
    return any(path == place or path in place.parents for place in places)


def _nearest(path: Path, places: AbstractSet[Path]) -> Path | None:
    return next((parent for parent in path.parents if parent in places), None)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
