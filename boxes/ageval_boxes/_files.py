"""Copying trees into and out of a directory in which an untrusted process may change anything at any time.

Every path inside such a directory is walked component by component with directory descriptors and
`O_NOFOLLOW`; symbolic links in the middle are followed only inside the box, links at the end never.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NoReturn

from pytest_ageval.box import ROOT
from pytest_ageval.errors import BoxError

#: The most that one download may bring: bytes, files, and directories in directories.
DOWNLOAD_BYTES = 4 * 1024**3
DOWNLOAD_FILES = 200_000
DEPTH = 128

_LINKS = 40
_PIECE = 8 * 1024 * 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A FIFO that took a file's place must not block us.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_unique = itertools.count()


@dataclass
class Budget:
    """What a copy may still bring, and what it left out. `notes` is for people, `title` for errors."""

    title: str
    max_bytes: float = float("inf")
    max_files: float = float("inf")
    notes: list[str] = field(default_factory=list)

    def take(self, size: int = 0, files: int = 0) -> None:
        """Count; BoxError with `title` when it is too much."""
        self.max_bytes -= size
        self.max_files -= files
        if self.max_bytes < 0 or self.max_files < 0:
            self._refuse("bytes" if self.max_bytes < 0 else "files")

    def check(self, size: int) -> None:
        """BoxError for a file of so many bytes before any of them is written, holes included."""
        if size > self.max_bytes:
            self._refuse("bytes")

    def _refuse(self, what: str) -> NoReturn:
        raise BoxError(self.title, f"more {what} than one copy may bring")


def _outside(path: PurePosixPath, why: str) -> BoxError:
    return BoxError("environment_path_invalid", f"{path}: {why}")


def _target(here: list[str], link: str, visible: str, path: PurePosixPath) -> list[str]:
    """The components below the box's root that a link in the directory `here` leads to."""
    if link.startswith("/"):
        for root in (visible, ROOT):
            if link == root or link.startswith(f"{root}/"):
                return [part for part in link[len(root) :].split("/") if part not in ("", ".")]
        raise _outside(path, f"a symbolic link leads out of the box ({link})")
    return here + [part for part in link.split("/") if part not in ("", ".")]


@contextmanager
def parent_of(
    box: Path,
    path: PurePosixPath,
    *,
    visible: str = ROOT,
    create: bool = False,
    owner: tuple[int, int] | None = None,
) -> Iterator[tuple[int, str]]:
    """The opened directory that holds `path`, and the last component.

    `box` is the host's directory behind ``/attempt``; `visible` what a process in the box calls it
    (what absolute links begin with). With `create`, missing directories are made, and given to `owner`.
    """
    *todo, last = path.parts[2:]
    todo.reverse()
    stack = [os.open(box, _DIRECTORY)]
    names: list[str] = []
    links = 0
    try:
        while todo:
            name = todo.pop()
            if name == "..":
                if not names:
                    raise _outside(path, "a symbolic link leads out of the box")
                names.pop()
                os.close(stack.pop())
                continue
            link = _link(stack[-1], name)
            if link is not None:
                links += 1
                if links > _LINKS:
                    raise _outside(path, "too many symbolic links")
                again = _target(names, link, visible, path)
                if link.startswith("/") or names:
                    _unwind(stack)
                    names = []
                todo += reversed(again)
                continue
            stack.append(_enter(stack[-1], name, path, create=create, owner=owner))
            names.append(name)
        yield stack[-1], last
    finally:
        for fd in stack:
            os.close(fd)


def _unwind(stack: list[int]) -> None:
    while len(stack) > 1:
        os.close(stack.pop())


def _link(fd: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=fd)
    except OSError:
        return None


def _enter(
    fd: int, name: str, path: PurePosixPath, *, create: bool, owner: tuple[int, int] | None = None
) -> int:
    try:
        try:
            return os.open(name, _DIRECTORY, dir_fd=fd)
        except FileNotFoundError:
            if not create:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=fd)
                if owner is not None:
                    os.chown(name, *owner, dir_fd=fd, follow_symlinks=False)
            return os.open(name, _DIRECTORY, dir_fd=fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise _outside(path, f"{name!r} is not a directory") from error
        raise


def _copy_bytes(source: int, dest: int, budget: Budget) -> None:
    """Copy a file without holding it in memory; in the kernel, shared blocks included, where that works."""
    try:
        while done := os.copy_file_range(source, dest, _PIECE):
            budget.take(done)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        while piece := os.read(source, _PIECE):
            budget.take(len(piece))
            view = memoryview(piece)
            while view:
                view = view[os.write(dest, view) :]


def _copy_file(fd: int, name: str, dest: Path, shown: str, budget: Budget) -> None:
    try:
        source = os.open(name, _FILE, dir_fd=fd)
    except PermissionError:
        budget.notes.append(f"{shown}: not readable, left out")
        return
    try:
        info = os.fstat(source)
        if not stat.S_ISREG(info.st_mode):
            budget.notes.append(f"{shown}: not a regular file, left out")
            return
        budget.take(files=1)
        budget.check(info.st_size)
        out = os.open(dest, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _copy_bytes(source, out, budget)
            os.fchmod(out, info.st_mode & 0o777)
            os.utime(out, ns=(info.st_atime_ns, info.st_mtime_ns))
        finally:
            os.close(out)
    finally:
        os.close(source)


def copy_entry(fd: int, name: str, dest: Path, budget: Budget, shown: str, depth: int = 0) -> int:
    """Copy what `name` in the directory `fd` is to `dest`, which must not exist; returns its mode.

    Modes (without setuid and the like) and times are kept; links are copied as links; anything that
    is neither file, directory nor link is left out and noted. A directory's own mode is set last
    by the caller of the outermost call, so that it can still be moved.
    """
    info = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if stat.S_ISLNK(info.st_mode):
        budget.take(files=1)
        dest.symlink_to(os.readlink(name, dir_fd=fd))
    elif stat.S_ISREG(info.st_mode):
        _copy_file(fd, name, dest, shown, budget)
    elif stat.S_ISDIR(info.st_mode):
        if depth >= DEPTH:
            raise BoxError(budget.title, f"{shown}: directories nested too deeply")
        _copy_directory(fd, name, dest, budget, shown, depth)
    else:
        budget.notes.append(f"{shown}: a special file, left out")
    return info.st_mode & 0o777


def _copy_directory(fd: int, name: str, dest: Path, budget: Budget, shown: str, depth: int) -> None:
    budget.take(files=1)
    dest.mkdir(0o700)
    try:
        source = os.open(name, _DIRECTORY, dir_fd=fd)
    except PermissionError:
        budget.notes.append(f"{shown}: not readable, left out")
        return
    try:
        with os.scandir(source) as entries:
            for entry in entries:
                inner = dest / entry.name
                path = f"{shown}/{entry.name}"
                with suppress(FileNotFoundError):  # taken away while we looked
                    mode = copy_entry(source, entry.name, inner, budget, path, depth + 1)
                    if inner.is_dir() and not inner.is_symlink():
                        inner.chmod(mode)
    finally:
        os.close(source)


def put(
    box: Path,
    staging: Path,
    source: Path,
    path: PurePosixPath,
    visible: str,
    owner: tuple[int, int] | None = None,
) -> list[str]:
    """Copy `source` of the host into the box, replacing `path`; returns notes.

    The copy is made in `staging` (same file system, out of the box's sight) and moved into place,
    so that nothing in the box can lead the writing elsewhere. `owner` is the user and group to
    which the copy, and directories made on the way, are given (root only).
    """
    budget = Budget("environment_upload_invalid")
    staging.mkdir(mode=0o700, exist_ok=True)
    new = staging / f"new-{next(_unique)}"
    outer = os.open(source.absolute().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mode = copy_entry(outer, source.name, new, budget, source.name)
    finally:
        os.close(outer)
    if not os.path.lexists(new):
        raise BoxError("environment_upload_missing", f"{source}: neither a file nor a directory")
    if owner is not None:
        give(new, owner)
    with parent_of(box, path, visible=visible, create=True, owner=owner) as (fd, last):
        _swap(new, fd, last, staging, mode)
    return budget.notes


def give(path: Path, owner: tuple[int, int], *, of: int | None = None) -> None:
    """Give `path` and all below it to `owner`; with `of`, only what belongs to that user.

    Never follows a link, also when the box changes the tree at the same time.
    """
    fd = os.open(path.parent, _DIRECTORY)
    try:
        _give_one(fd, path.name, owner, of)
    finally:
        os.close(fd)
    if path.is_symlink() or not path.is_dir():
        return
    for _top, directories, files, inner in os.fwalk(path, follow_symlinks=False):
        for name in (*directories, *files):
            with suppress(FileNotFoundError):  # taken away while we looked
                _give_one(inner, name, owner, of)


def _give_one(fd: int, name: str, owner: tuple[int, int], of: int | None) -> None:
    if of is not None:
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if info.st_uid != of or (info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode)):
            return
    os.chown(name, *owner, dir_fd=fd, follow_symlinks=False)


def _swap(new: Path, fd: int, last: str, staging: Path, mode: int) -> None:
    old = staging / f"old-{next(_unique)}"
    directory = new.is_dir() and not new.is_symlink()
    moved = os.open(new, _DIRECTORY) if directory else -1
    try:
        with suppress(FileNotFoundError):
            _unlock(fd, last)
            os.rename(last, old, src_dir_fd=fd)
        os.rename(new, last, dst_dir_fd=fd)
        if directory:
            os.fchmod(moved, mode)
    finally:
        if directory:
            os.close(moved)
    remove_tree(old)


def _unlock(fd: int, name: str) -> None:
    """Make `name` movable if it is a directory: moving one needs the right to write to it."""
    try:
        found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    except (NotADirectoryError, FileNotFoundError):
        return
    try:
        # By /proc, since a descriptor for a directory that we may not read allows no fchmod.
        Path(f"/proc/self/fd/{found}").chmod(0o700)
    finally:
        os.close(found)


def get(box: Path, path: PurePosixPath, dest: Path, visible: str, budget: Budget) -> list[str]:
    """Copy `path` of the box to `dest` of the host, replacing it; returns notes."""
    dest.parent.mkdir(parents=True, exist_ok=True)
    new = dest.parent / f".{dest.name[:100]}.{os.getpid()}-{next(_unique)}"
    try:
        if len(path.parts) == 2:
            outer = os.open(box.parent, _DIRECTORY)
            try:
                mode = copy_entry(outer, box.name, new, budget, str(path))
            finally:
                os.close(outer)
        else:
            with parent_of(box, path, visible=visible) as (fd, last):
                mode = copy_entry(fd, last, new, budget, str(path))
        if not os.path.lexists(new):
            raise BoxError("environment_download_missing", "; ".join(budget.notes))
        remove_tree(dest)
        new.rename(dest)
        if dest.is_dir() and not dest.is_symlink():
            dest.chmod(mode)
    except BaseException:
        remove_tree(new)
        raise
    return budget.notes


def remove_tree(path: Path) -> None:
    """Remove `path`, whatever modes and however deep its directories are. No error if it does not exist.

    Directories are moved up before they are emptied, so that no path grows beyond what the system takes.
    """
    try:
        info = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(info.st_mode):
        path.unlink()
        return
    pending = [path]
    while pending:
        directory = pending.pop()
        directory.chmod(0o700)
        with os.scandir(directory) as found:
            entries = list(found)
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)  # noqa: PTH108 - the entry has no Path
            elif directory == path:
                pending.append(Path(entry.path))
            else:
                moved = path / f".ageval-{next(_unique)}-{os.getpid()}"
                os.chmod(entry.path, 0o700)  # noqa: PTH101 - a directory, and not a link: just looked
                os.rename(entry.path, moved)  # noqa: PTH104 - the entry has no Path
                pending.append(moved)
        if directory != path:
            directory.rmdir()
    shutil.rmtree(path)
