"""Which directories are tasks, and of which data set: what the disk says, before anything is collected."""

from __future__ import annotations

import fnmatch
import os
import re
import types
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_ageval.errors import ConfigError
from pytest_ageval.options import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: Files that make a directory a task.
TASK_FILES = ("task.yaml", "task.toml")


def _auto() -> str:
    return "auto"


#: ``--ageval-harbor`` of the session that collects.
_harbor: Callable[[], str] = _auto

HARBOR_FILE = TASK_FILES[1]

#: Bytes of a task file that are searched for its format.
HEAD = 4096

_DECLARED = re.compile(rb"^format:[ \t]*['\"]?ageval\.task/", re.MULTILINE)


def is_task_directory(path: Path) -> bool:
    """`path` is a task: it is in the tasks root of a data set, or its task file says what it is."""
    if path.name.startswith(".") or path.name == "__pycache__":
        return False
    file = task_file(path)
    if file.name == HARBOR_FILE:
        return _is_harbor_task(path)
    if dataset_of(path) is not None:
        return file.is_file() or _holds_files(path)
    try:
        with file.open("rb") as stream:
            return _DECLARED.search(stream.read(HEAD)) is not None
    except OSError:
        return False


def _is_harbor_task(path: Path) -> bool:
    """A task.toml with an instruction or with steps; any task.toml where that is asked for."""
    mode = _harbor()
    if mode == "off":
        return False
    return mode == "on" or (path / "instruction.md").is_file() or (path / "steps").is_dir()


def task_file(directory: Path) -> Path:
    """The file that describes the task; the first possible name when there is none."""
    for name in TASK_FILES:
        if (directory / name).is_file():
            return directory / name
    return directory / TASK_FILES[0]


def dataset_of(directory: Path) -> Path | None:
    """The root of the data set in whose tasks root `directory` lies directly."""
    return dataset_with_tasks_in(directory.parent)


@cache
def dataset_with_tasks_in(parent: Path) -> Path | None:
    """The root of the data set whose tasks root is `parent`."""
    root = _closest_dataset(parent)
    return root if root is not None and _tasks_root(root) == parent else None


@cache
def _closest_dataset(path: Path) -> Path | None:
    if (path / "ageval.yaml").is_file():
        return path
    return None if path == path.parent else _closest_dataset(path.parent)


def _tasks_root(root: Path) -> Path:
    """Where the data set keeps its tasks; the usual place if its file is broken (reported later)."""
    from pytest_ageval.config import load_dataset

    try:
        return load_dataset(root).tasks_root
    except ConfigError:
        return root / "tasks"


def _holds_files(path: Path) -> bool:
    """Not just what version control or Python left behind of a task that was removed."""
    try:
        with os.scandir(path) as entries:
            return any(entry.name[0] != "." and entry.name != "__pycache__" for entry in entries)
    except OSError:
        return False


def is_hidden_task(path: Path, config: pytest.Config) -> bool:
    """A task directory that pytest would pass over because of its name, and for nothing else."""
    patterns = config.getini("norecursedirs")
    if not any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns):
        return False
    return path.is_dir() and is_task_directory(path) and not _excluded(path, config)


def _excluded(path: Path, config: pytest.Config) -> bool:
    """The user's own exclusions: --ignore, --ignore-glob and their conftest.py counterparts."""
    paths = [Path(given).absolute() for given in config.getoption("ignore") or ()]
    globs = [str(Path(given).absolute()) for given in config.getoption("ignore_glob") or ()]
    for plugin in config.pluginmanager.get_plugins():
        base = Path(getattr(plugin, "__file__", None) or "/").parent
        if isinstance(plugin, types.ModuleType) and base in path.parents:
            paths += [base / given for given in getattr(plugin, "collect_ignore", ())]
            globs += [str(base / given) for given in getattr(plugin, "collect_ignore_glob", ())]
    return path in paths or any(fnmatch.fnmatch(str(path), pattern) for pattern in globs)


def outside_tasks(arguments: Sequence[str], cwd: Path) -> list[str]:
    """`arguments`, where a path into a task directory becomes the directory above the task."""
    found = [_outside_task(argument, cwd) for argument in arguments]
    if not found:
        above = _outside_task(".", cwd)
        return [] if above == "." else [above]
    return found


def _outside_task(argument: str, cwd: Path) -> str:
    path = Path(os.path.normpath(cwd / argument.partition("::")[0]))
    for directory in (path, *path.parents):
        # Almost always a look at one file; reading it is left to the two cases where it exists.
        if any((directory / name).is_file() for name in TASK_FILES) and is_task_directory(directory):
            return str(directory.parent)
    return argument


def forget(config: pytest.Config) -> None:
    """Look at the disk anew, with the options of `config`: a process may hold several sessions."""
    global _harbor

    @cache
    def mode() -> str:
        try:
            return resolve(config, "harbor")[0] or "auto"
        except pytest.UsageError:  # said when the options are checked
            return "auto"

    _harbor = mode
    dataset_with_tasks_in.cache_clear()
    _closest_dataset.cache_clear()


def has_tasks(nodeids: Iterable[str], rootpath: Path) -> bool:
    """Some of these are attempts. The controller of a distributed run knows node ids only."""
    files = dict.fromkeys(Path(nodeid.partition("::")[0]) for nodeid in nodeids)
    named = (rootpath / file for file in files if file.name in TASK_FILES)
    return any(is_task_directory(file.parent) for file in named)
