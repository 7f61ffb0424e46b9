"""The directory with the tasks of a data set: one collector, so that ten thousand tasks cost seconds.

pytest asks its hooks about every directory and file, and makes a collector and a report for each. Where
nobody listens but pytest and this plugin, the answers for all tasks are alike, and are asked for once.
Everything else (a task that is named on the command line, a plugin or a conftest.py that has a say in what
is collected, a name that needs care) is left to the hooks, with the same items and the same ids.
"""

from __future__ import annotations

import contextlib
import os
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_ageval.collection import TaskFile
from pytest_ageval.discovery import TASK_FILES, dataset_with_tasks_in
from pytest_ageval.errors import ConfigError
from pytest_ageval.known_plugins import unknown_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Names of tasks about which there is nothing to ask.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

#: The hooks whose answers could differ from task to task, and whose answers are known.
_HOOKS = (
    "pytest_ignore_collect",
    "pytest_collect_directory",
    "pytest_collect_file",
    "pytest_pycollect_makemodule",
    "pytest_generate_tests",
)


class TasksRoot(pytest.Directory):
    """The tasks root of a data set."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """The items of all tasks, and whatever else lies beside them."""
        with os.scandir(self.path) as entries:
            names = sorted((entry.name, entry.is_dir()) for entry in entries)
        if not self._is_asked_for:
            names = [row for row in names if self.session.isinitpath(self.path / row[0], with_parents=True)]
        plain = {name for name, is_directory in names if is_directory and self._is_plain_task(name)}
        if not plain or not self._alike:
            plain = set()
        elif hasattr(self.config, "workerinput"):
            self._read_with_the_other_workers(sorted(plain))
        for name, is_directory in names:
            if name in plain:
                yield from self._task(name)
            else:
                yield from self._by_hooks(self.path / name, is_directory)

    def _read_with_the_other_workers(self, names: Sequence[str]) -> None:
        from pytest_ageval.config.readings import read_together
        from pytest_ageval.job import running_dir

        with contextlib.suppress(OSError):  # each for itself, then
            read_together([self._file(name) for name in names], running_dir(self.config))

    @property
    def _is_asked_for(self) -> bool:
        """The directory itself, or one above it, is an argument; otherwise only what is named in it is."""
        return any(map(self.session.isinitpath, (self.path, *self.path.parents)))

    def _is_plain_task(self, name: str) -> bool:
        if _PLAIN.fullmatch(name) is None or name == "__pycache__":
            return False
        if not os.path.isfile(f"{self._path}/{name}/{TASK_FILES[0]}"):  # noqa: PTH113 - as often as there are tasks
            return False
        return not self.session.isinitpath(f"{self._path}/{name}", with_parents=True)

    @cached_property
    def _path(self) -> str:
        return os.fspath(self.path)

    def _file(self, name: str) -> Path:
        return Path(f"{self._path}/{name}/{TASK_FILES[0]}")

    def _task(self, name: str) -> Iterator[pytest.Item]:
        file: TaskFile = TaskFile.from_parent(
            self,
            path=self._file(name),
            name=f"{name}/{TASK_FILES[0]}",
            nodeid=f"{self.nodeid}/{name}/{TASK_FILES[0]}",
        )
        file.root, file.dataset_id = self._root, self._dataset_id
        return file.items(self._shape(file))

    def _shape(self, file: TaskFile) -> Sequence[pytest.Function]:
        """What pytest makes of a task; asked for the first one."""
        if self._made is None:
            self._made = file.functions()
        return self._made

    _made: Sequence[pytest.Function] | None = None

    @cached_property
    def _root(self) -> Path:
        return cast("Path", dataset_with_tasks_in(self.path))

    @cached_property
    def _dataset_id(self) -> str | None:
        from pytest_ageval.job import Job

        try:
            return Job.of(self.config).dataset(self._root).dataset_id
        except ConfigError:
            return None

    @property
    def _alike(self) -> bool:
        """Every task would be collected in the same way, and nothing is wrong with what they share."""
        from pytest_ageval.job import Job

        if self.nodeid in ("", ".") or self._has_exclusions() or not self._nobody_listens():
            return False
        job = Job.of(self.config)
        job.task_seen(self._root)
        if job.usage_error is not None or job.regrading is not None:  # then each task has variants of its own
            return False
        return job.dataset_error(self._root) is None

    def _has_exclusions(self) -> bool:
        option = self.config.getoption
        if option("ignore", None) or option("ignore_glob", None):
            return True
        names = ("collect_ignore", "collect_ignore_glob")
        plugins: Iterable[Any] = self.config.pluginmanager.get_plugins()
        return any(getattr(plugin, name, None) for plugin in plugins for name in names)

    def _nobody_listens(self) -> bool:
        return all(unknown_module(self.ihook, name) is None for name in _HOOKS)

    def _by_hooks(self, path: Path, is_directory: bool) -> Iterator[pytest.Item | pytest.Collector]:
        """As every other directory of pytest does it."""
        named = self.session.isinitpath(path, with_parents=is_directory)
        if not named and self.ihook.pytest_ignore_collect(collection_path=path, config=self.config):
            return
        if is_directory:
            found = self.ihook.pytest_collect_directory(path=path, parent=self)
            if found is not None:
                yield found
        elif path.is_file():
            for collectors in self.ihook.pytest_collect_file(file_path=path, parent=self):
                yield from collectors if isinstance(collectors, list) else [collectors]
