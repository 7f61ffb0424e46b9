"""Files as a stream of chunks, and back. Nothing is ever whole in memory."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

#: Bytes of one message.
CHUNK = 256 * 1024


class Broken(Exception):
    """What arrived is not what was sent."""


class _Outlet:
    """Writes in chunks to `send`, and keeps the digest of all of it."""

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self._send = send
        self._waiting = bytearray()
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._waiting += data
        while len(self._waiting) >= CHUNK:
            self._out(CHUNK)
        return len(data)

    def _out(self, size: int) -> None:
        chunk = bytes(self._waiting[:size])
        del self._waiting[:size]
        self._digest.update(chunk)
        self._send(chunk)

    def finish(self) -> str:
        if self._waiting:
            self._out(len(self._waiting))
        return self._digest.hexdigest()


class _Exactly:
    """As many bytes as the header has promised: a file may grow or shrink while it is read."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream = stream
        self._left = size

    def read(self, size: int = -1) -> bytes:
        size = self._left if size < 0 else min(size, self._left)
        data = self._stream.read(size)
        self._left -= size
        return data.ljust(size, b"\0")


Links = Callable[[Path, str], str]
Contents = Callable[[Path, str], bytes | None]


def pack(
    entries: Iterable[tuple[Path, str]],
    send: Callable[[bytes], object],
    links: Links = lambda path, target: target,
    contents: Contents = lambda path, name: None,
) -> tuple[str, int]:
    """Send files, directories and symbolic links, each under a name; returns the digest and their number.

    What cannot be read is left out. `links` gives the target of a link as it is to be, and `contents` what is
    to be in a file in place of what is.
    """
    outlet, count = _Outlet(send), 0
    with tarfile.open(fileobj=cast("BinaryIO", outlet), mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for path, name in entries:
            count += _add(tar, path, name, links, contents)
    return outlet.finish(), count


def _add(tar: tarfile.TarFile, path: Path, name: str, links: Links, contents: Contents) -> bool:
    try:
        tar.inodes = {}  # type: ignore[attr-defined]  # a second name of a file is a file of its own
        info = tar.gettarinfo(path, name)
        if info is None or not (info.isreg() or info.isdir() or info.issym()):
            return False
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        if info.issym():
            info.linkname = links(path, info.linkname)
        if not info.isreg():
            tar.addfile(info)
            return True
        if (data := contents(path, name)) is not None:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            return True
        with path.open("rb") as stream:
            tar.addfile(info, cast("BinaryIO", _Exactly(stream, info.size)))
    except (FileNotFoundError, PermissionError):
        return False
    return True


def below(directory: Path, prefix: str = "") -> Iterator[tuple[Path, str]]:
    """Everything in a directory, each with its relative name, parents first. Links are not followed."""
    try:
        found = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found:
        path, name = Path(entry.path), f"{prefix}{entry.name}"
        yield path, name
        if entry.is_dir(follow_symlinks=False):
            yield from below(path, f"{name}/")


class Spool:
    """A stream that arrives, kept in a file until it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = hashlib.sha256()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("wb")

    def write(self, chunk: bytes) -> None:
        """Take the next chunk."""
        self._digest.update(chunk)
        self._stream.write(chunk)

    def finish(self, digest: str) -> None:
        """It is whole. Raises `Broken` when it is not."""
        self._stream.close()
        if self._digest.hexdigest() != digest:
            raise Broken("the transfer was not complete")

    def drop(self) -> None:
        """Away with the file."""
        self._stream.close()
        self.path.unlink(missing_ok=True)


def unpack_trusted(path: Path, directory: Path) -> None:
    """Make the files of a stream that the controller sent, on a host: as they are there."""
    with tarfile.open(path, "r:") as tar:
        tar.extractall(directory, filter="fully_trusted")  # noqa: S202


def unpack_in_place_of(path: Path, target: Path) -> None:
    """Make the directory `target` of a stream that a host sent; one that is there is replaced whole.

    A member whose name leads out of the directory is an error, `Broken`; a link that does is left out.
    """
    aside = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
    old = target.with_name(f".{target.name}.{os.urandom(4).hex()}.old")
    try:
        aside.mkdir()
        with tarfile.open(path, "r:") as tar:
            tar.extractall(aside, filter=_from_a_host)  # noqa: S202
        if target.exists():
            target.rename(old)
        aside.rename(target)
    except tarfile.TarError as error:
        raise Broken(str(error)) from error
    finally:
        for directory in (aside, old):
            shutil.rmtree(directory, ignore_errors=True)


def _from_a_host(member: tarfile.TarInfo, directory: str) -> tarfile.TarInfo | None:
    """Modes of directories are kept: some are their owner's alone."""
    try:
        found = tarfile.data_filter(member, directory)
    except (tarfile.AbsoluteLinkError, tarfile.LinkOutsideDestinationError):
        return None
    if member.isdir():
        return found.replace(mode=stat.S_IMODE(member.mode) & 0o755 | 0o700, deep=False)
    return found
