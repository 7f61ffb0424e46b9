"""Trees as tar streams, for kinds that share no files with the host.

`pack` writes what is to go into a box; `unpack` reads what came out of one, which may be anything:
nothing that it holds leads to a file outside of the destination.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from ageval_boxes._files import DEPTH, Budget, remove_tree
from pytest_ageval.errors import BoxError

_PIECE = 256 * 1024


class Writable(Protocol):
    """Takes all of `data`."""

    def write(self, data: bytes, /) -> int: ...


class Readable(Protocol):
    """Gives up to `size` bytes; b"" at the end."""

    def read(self, size: int, /) -> bytes: ...


def pack(source: Path, name: str, out: Writable) -> list[str]:
    """Write `source` (file or tree) to `out` as a tar stream whose one outermost entry is `name`.

    Modes, times, links (as links) and empty directories are kept; owners are not. Special files
    are left out; returns notes about them. Raises OSError.
    """
    notes: list[str] = []

    def fit(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            notes.append(f"{member.name}: a special file, left out")
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode &= 0o777
        return member

    target: Any = out  # the type stubs ask for more than a stream needs
    with tarfile.open(
        fileobj=target,
        mode="w|",
        bufsize=_PIECE,
        format=tarfile.GNU_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
    ) as tar:
        tar.add(source, arcname=name, filter=fit)
    return notes


def unpack(
    stream: Readable, name: str, dest: Path, budget: Budget, finish: Callable[[], None] | None = None
) -> bool:
    """Read a tar stream and put its outermost entry `name` at `dest`, replacing it.

    Whether there was such an entry. `finish` is called when all has been read, before anything is
    replaced: what it raises leaves `dest` as it was. Raises BoxError with the budget's title when it
    brings too much, and tarfile.TarError for what is not a whole tar stream. Special files are left out
    and noted.
    """
    source: Any = stream  # as above
    dest.parent.mkdir(parents=True, exist_ok=True)
    new = dest.parent / f".{dest.name[:100]}.{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with tarfile.open(
            fileobj=source, mode="r|", bufsize=_PIECE, encoding="utf-8", errors="surrogateescape"
        ) as tar:
            modes = _take(tar, name, new, budget)
        if finish is not None:
            finish()
        if not os.path.lexists(new):
            return False
        remove_tree(dest)
        new.rename(dest)
        for path, mode in reversed(modes):
            dest.joinpath(*path).chmod(mode)
    except BaseException:
        remove_tree(new)
        raise
    return True


def _take(tar: tarfile.TarFile, name: str, new: Path, budget: Budget) -> list[tuple[tuple[str, ...], int]]:
    """Everything in `tar`, at `new`; returns the modes of the directories, still to be set.

    Links are made last: until then every directory below `new` is one that we made.
    """
    modes: list[tuple[tuple[str, ...], int]] = []
    links: list[tuple[Path, str]] = []
    for member, below in _members(tar, name, budget):
        path = new.joinpath(*below)
        shown = str(PurePosixPath(name, *below))
        if member.isdir():
            path.mkdir(0o700, exist_ok=True, parents=True)
            modes.append((below, member.mode & 0o777))
        elif member.issym():
            links.append((path, member.linkname))
        elif member.islnk():
            _second_name(new, name, member.linkname, path, budget, shown)
        elif member.isreg():
            content = tar.extractfile(member)
            if content is not None:
                _write(path, content, member, budget)
        else:
            budget.notes.append(f"{shown}: a special file, left out")
    for path, target in links:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        if not os.path.lexists(path):
            path.symlink_to(target)
    return modes


def _members(
    tar: tarfile.TarFile, name: str, budget: Budget
) -> Iterator[tuple[tarfile.TarInfo, tuple[str, ...]]]:
    for member in tar:
        budget.take(files=1)
        parts = _parts(member.name)
        if not parts or parts[0] != name or ".." in parts or member.name.startswith("/"):
            raise BoxError("environment_path_invalid", f"the copy holds {member.name!r}")
        if len(parts) > DEPTH:
            raise BoxError(budget.title, f"{name}: directories nested too deeply")
        yield member, parts[1:]


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part not in ("", "."))


def _write(path: Path, content: IO[bytes], member: tarfile.TarInfo, budget: Budget) -> None:
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):  # a name that comes twice: the last one counts
        path.unlink()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        while piece := content.read(_PIECE):
            budget.take(len(piece))
            file.write(piece)
        os.fchmod(fd, member.mode & 0o777)
        file.flush()
        os.utime(fd, (member.mtime, member.mtime))


def _second_name(new: Path, name: str, target: str, path: Path, budget: Budget, shown: str) -> None:
    """A file that has several names in the box: a copy for each, so that they stay apart here."""
    parts = _parts(target)
    first = new.joinpath(*parts[1:])
    usable = parts[:1] == (name,) and ".." not in parts and first.is_file() and not first.is_symlink()
    if not usable:
        budget.notes.append(f"{shown}: a link to what is not in the copy, left out")
        return
    budget.take(first.stat().st_size)
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    shutil.copyfile(first, path, follow_symlinks=False)
    path.chmod(stat.S_IMODE(first.stat().st_mode))
