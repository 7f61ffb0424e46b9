"""Which files travel to the hosts."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_ageval.discovery import TASK_FILES

#: What version control, environments and caches keep beside the files that a run needs.
_NEVER = frozenset((".git", ".hg", ".svn", "__pycache__"))
_PASSED_OVER = frozenset(
    (
        ".ageval",
        ".venv",
        "venv",
        "node_modules",
        ".tox",
        ".nox",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
    )
)
_MANIFESTS = ("ageval.yaml", "dataset.toml")
_ROOTS_OF_DATA = (*_MANIFESTS, "tasks")


@dataclass
class Tree:
    """Files and directories with everything below them.

    `roots` are absolute. `without` are directories that are not sent, `ignored` patterns of names and of
    paths below a root. A ``.env`` that may hold credentials is not sent: `env_files` has those that were met.
    """

    roots: Sequence[Path]
    without: frozenset[Path] = frozenset()
    ignored: Sequence[str] = ()
    env_files: list[Path] = field(default_factory=list)
    #: Roots of data sets that were met.
    datasets: list[Path] = field(default_factory=list)
    _seen: set[Path] = field(default_factory=set)

    def entries(self) -> Iterator[tuple[Path, str]]:
        """Each with its name in the copy: its path without the leading slash."""
        waiting = list(self.roots)
        while waiting:
            root = waiting.pop(0)
            if root in self._seen or any(root.is_relative_to(seen) for seen in self._seen):
                continue
            for parent in reversed(root.parents):
                if parent != parent.parent:
                    yield parent, _name(parent)
            yield root, _name(root)
            if root.is_dir() and not root.is_symlink():
                for path in self._below(root, root, in_task=_is_task(root)):
                    yield path, _name(path)
                    if path.is_symlink() and (target := self._outside(path)) is not None:
                        waiting.append(target)
            self._seen.add(root)

    def _below(self, root: Path, directory: Path, *, in_task: bool) -> Iterator[Path]:
        try:
            found = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError:
            return
        if any(entry.name in _MANIFESTS for entry in found):
            self.datasets.append(directory)
        is_data = any(entry.name in _ROOTS_OF_DATA for entry in found) or directory == root
        for entry in found:
            path = Path(entry.path)
            if entry.name in _NEVER or path in self.without or self._is_ignored(root, path):
                continue
            if entry.is_dir(follow_symlinks=False):
                task = in_task or _is_task(path)
                if not task and (entry.name in _PASSED_OVER or (path / "pyvenv.cfg").is_file()):
                    continue
                yield path
                yield from self._below(root, path, in_task=task)
            elif entry.name == ".env" and is_data and not in_task:
                self.env_files.append(path)
            elif not entry.name.endswith(".pyc"):
                yield path

    def _is_ignored(self, root: Path, path: Path) -> bool:
        if not self.ignored:
            return False
        relative = path.relative_to(root).as_posix()
        return any(
            fnmatch.fnmatch(path.name, pattern) or fnmatch.fnmatch(relative, pattern)
            for pattern in self.ignored
        )

    def travels(self, path: Path) -> bool:
        """A link may name `path` as something that is there too."""
        return below_any(path, self.roots) or self._outside(path) is not None

    def _outside(self, link: Path) -> Path | None:
        """Where a link leads that leaves what travels, if that can travel too."""
        try:
            target = link.resolve(strict=True)
        except (OSError, RuntimeError):
            return None
        if any(target.is_relative_to(root) or root.is_relative_to(target) for root in self.roots):
            return None
        system = target.parts[1:2] and target.parts[1] in (
            "usr",
            "bin",
            "lib",
            "lib64",
            "etc",
            "proc",
            "sys",
            "dev",
        )
        return None if system else target


def _name(path: Path) -> str:
    return str(path).lstrip("/")


def _is_task(directory: Path) -> bool:
    return any((directory / name).is_file() for name in TASK_FILES)


def below_any(path: Path, roots: Iterable[Path]) -> bool:
    """`path` is one of these, or lies below one."""
    return any(path.is_relative_to(root) for root in roots)
