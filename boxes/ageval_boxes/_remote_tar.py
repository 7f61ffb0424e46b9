"""Trees as tar files: written from the host's files, read back from an archive that is not trusted."""

from __future__ import annotations

import itertools
import os
import shutil
import tarfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ageval_boxes._files import DEPTH, Budget, remove_tree
from pytest_ageval.errors import BoxError

_unique = itertools.count()
#: Names are bytes that are usually UTF-8.
_NAMES: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"}


def write_archive(source: Path, archive: Path) -> tuple[int | None, list[str]]:
    """Write `source` as the entry ``x``; returns the mode of a directory, to be set last, and notes.

    Keeps modes, times, links as links, empty directories; leaves special files out. A directory's
    own entry is writable, so that it can be moved. Raises FileNotFoundError, OSError.
    """
    notes: list[str] = []
    mode: int | None = None

    def keep(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal mode
        if not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
            notes.append(f"{info.name.replace('x', source.name, 1)}: a special file, left out")
            return None
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mode &= 0o777
        if info.name == "x" and info.isdir():
            mode = info.mode
            info.mode |= 0o700
        return info

    with tarfile.open(
        archive, "w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as tar:
        tar.add(source, "x", filter=keep)
    if notes and mode is None:
        raise BoxError("environment_upload_missing", f"{source}: neither a file nor a directory")
    return mode, notes


@dataclass
class _Tree:
    """What has been unpacked so far, below `root`; links and directories' modes come last."""

    root: Path
    budget: Budget
    directories: dict[PurePosixPath, int] = field(default_factory=dict)
    files: dict[PurePosixPath, Path] = field(default_factory=dict)
    links: dict[PurePosixPath, str] = field(default_factory=dict)

    def place(self, name: str) -> PurePosixPath | None:
        """Where an entry goes, if its name stays below the root and under directories that we made."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or len(path.parts) > DEPTH:
            self.budget.notes.append(f"{name}: a path that leads elsewhere, left out")
            return None
        if path in self.directories or path in self.files or path in self.links:
            self.budget.notes.append(f"{name}: comes twice, left out")
            return None
        if len(path.parts) > 1 and path.parent not in self.directories:
            self.budget.notes.append(f"{name}: not in a directory of the archive, left out")
            return None
        return path

    def add(self, tar: tarfile.TarFile, info: tarfile.TarInfo) -> None:
        """Unpack one entry."""
        path = self.place(info.name)
        if path is None:
            return
        target = self.root / path
        if info.isdir():
            self.budget.take(files=1)
            target.mkdir(0o700)
            self.directories[path] = info.mode & 0o777
        elif info.issym():
            self.budget.take(files=1)
            self.links[path] = info.linkname
        elif info.islnk():
            first = self.files.get(PurePosixPath(info.linkname))
            if first is None:
                self.budget.notes.append(f"{info.name}: a link to nothing in the archive, left out")
                return
            self.budget.take(first.stat().st_size, 1)
            shutil.copy2(first, target)
            self.files[path] = target
        elif info.isreg():
            self._file(tar, info, path)
        else:
            self.budget.notes.append(f"{info.name}: a special file, left out")

    def _file(self, tar: tarfile.TarFile, info: tarfile.TarInfo, path: PurePosixPath) -> None:
        self.budget.take(info.size, 1)
        data = tar.extractfile(info)
        if data is None:
            return
        target = self.root / path
        with target.open("xb") as out:
            shutil.copyfileobj(data, out, 1024 * 1024)
        os.utime(target, (info.mtime, info.mtime))
        target.chmod(info.mode & 0o777)
        self.files[path] = target

    def finish(self) -> None:
        """Make the links, of which none existed while files were written, and set the modes."""
        for path, target in self.links.items():
            (self.root / path).symlink_to(target)
        for path, mode in sorted(self.directories.items(), reverse=True):
            if len(path.parts) > 1:
                (self.root / path).chmod(mode)


def read_archive(archive: Path, name: str, dest: Path, budget: Budget) -> list[str]:
    """Replace `dest` by the entry `name` of `archive`; returns notes.

    Nothing in the archive can make us write elsewhere. Raises BoxError with the budget's title when
    it is too much, and ``environment_download_failed`` when it is no archive.
    """
    dest.parent.mkdir(parents=True, exist_ok=True)
    new = dest.parent / f".{dest.name[:100]}.{os.getpid()}-{next(_unique)}"
    new.mkdir(0o700)
    tree = _Tree(new, budget)
    try:
        try:
            with tarfile.open(archive, "r:", **_NAMES) as tar:
                for info in tar:
                    tree.add(tar, info)
        except tarfile.TarError as error:
            raise BoxError(
                "environment_download_failed", f"the box's tar gave no archive: {error}"
            ) from error
        tree.finish()
        found = new / name
        if not os.path.lexists(found):
            raise BoxError(
                "environment_download_missing", "; ".join(budget.notes) or f"no {name} in the archive"
            )
        remove_tree(dest)
        found.rename(dest)
        mode = tree.directories.get(PurePosixPath(name))
        if mode is not None:
            dest.chmod(mode)
    finally:
        remove_tree(new)
    return budget.notes
