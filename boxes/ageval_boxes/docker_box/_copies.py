"""Copying by archives, for containers whose files the host does not share."""

from __future__ import annotations

import base64
import itertools
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from ageval_boxes._files import DEPTH, Budget, remove_tree
from ageval_boxes.docker_box._engine import CALL_SECONDS, Engine
from pytest_ageval.errors import BoxError

_unique = itertools.count()

#: The bits of a mode, as Go counts them, that are set for all but regular files.
_KIND = 0x8F280000


def pack(source: Path, name: str, owner: tuple[int, int]) -> tuple[IO[bytes], list[str]]:
    """An archive of `source` under `name`, all of it owned by `owner`; and what was left out."""
    notes: list[str] = []

    def adopt(row: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (row.isreg() or row.isdir() or row.issym() or row.islnk()):
            notes.append(f"{row.name}: a special file, left out")
            return None
        row.uid, row.gid = owner
        row.uname = row.gname = ""
        row.mode &= 0o777
        return row

    archive = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(str(source), arcname=name, filter=adopt)
    except BaseException:
        archive.close()
        raise
    archive.seek(0)
    return archive, notes


def exists(engine: Engine, container: str, path: str) -> Literal["file", "other"] | None:
    """Whether `path` of the container is a regular file or something else; None: it is not there. Blocks.

    A link at its end is not followed.
    """
    api = engine.client.api
    url = api._url("/containers/{0}/archive", container)  # the SDK has no call for it
    answer = api.head(url, params={"path": path}, timeout=CALL_SECONDS)
    if answer.status_code == 404:
        return None
    answer.raise_for_status()
    about = json.loads(base64.b64decode(answer.headers["X-Docker-Container-Path-Stat"]))
    # Go's bits: those beyond the permissions say what it is.
    return "file" if int(about["mode"]) & _KIND == 0 else "other"


def send(engine: Engine, container: str, directory: str, archive: IO[bytes]) -> None:
    """Unpack `archive` in a directory of the container. Blocks."""
    if not engine.client.api.put_archive(container, directory, archive):
        raise BoxError("environment_upload_failed", f"the engine did not take the archive for {directory}")


def fetch(engine: Engine, container: str, path: str, dest: Path, budget: Budget) -> list[str]:
    """Copy `path` of the container to `dest`, replacing it; returns what was left out. Blocks."""
    from docker.errors import NotFound

    try:
        chunks, _about = engine.client.api.get_archive(container, path)
    except NotFound as error:
        if "Could not find" in str(error.explanation) or "no such file" in str(error.explanation).lower():
            raise BoxError("environment_download_missing", f"{path} does not exist") from error
        raise
    dest.parent.mkdir(parents=True, exist_ok=True)
    new = dest.parent / f".{dest.name[:100]}.{os.getpid()}-{next(_unique)}"
    try:
        with closing(chunks), tarfile.open(fileobj=_Stream(chunks), mode="r|") as tar:  # type: ignore[call-overload]
            _unpack(tar, new, budget)
        if not os.path.lexists(new):
            raise BoxError("environment_download_missing", f"{path}: neither a file nor a directory")
        remove_tree(dest)
        new.rename(dest)
    except BaseException:
        remove_tree(new)
        raise
    return budget.notes


class _Stream:
    """A file to read from an iterator of chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int) -> bytes:
        """`size` bytes, or fewer at the end."""
        while len(self._rest) < size:
            piece = next(self._chunks, None)
            if piece is None:
                break
            self._rest += piece
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def _unpack(tar: tarfile.TarFile, new: Path, budget: Budget) -> None:
    """Unpack an archive with one entry at its top as `new`. Nothing is written through a link."""
    modes: list[tuple[Path, int]] = []
    for row in tar:
        inner = PurePosixPath(row.name).parts[1:]
        if ".." in inner or len(inner) > DEPTH:
            raise BoxError(budget.title, f"{row.name}: a path that cannot be copied")
        place = new.joinpath(*inner)
        if inner and not _plain_directories(new, inner[:-1]):
            raise BoxError(budget.title, f"{row.name}: leads through a link")
        budget.take(files=1)
        if row.isdir():
            place.mkdir(0o700)
            modes.append((place, row.mode))
        elif row.issym():
            place.symlink_to(row.linkname)
        elif row.islnk():
            _copy_link(row, new, place)
        elif row.isreg():
            _copy_file(tar, row, place, budget)
        else:
            budget.notes.append(f"{row.name}: a special file, left out")
    for place, mode in reversed(modes):
        place.chmod(mode & 0o777)


def _plain_directories(new: Path, parts: tuple[str, ...]) -> bool:
    here = new
    for part in ("", *parts):
        here = here / part
        if not stat.S_ISDIR(here.lstat().st_mode):
            return False
    return True


def _copy_link(row: tarfile.TarInfo, new: Path, place: Path) -> None:
    first = PurePosixPath(row.linkname).parts[1:]
    origin = new.joinpath(*first)
    if ".." in first or not _plain_directories(new, first[:-1]) or origin.is_symlink():
        raise BoxError("environment_download_failed", f"{row.name}: a link that cannot be copied")
    place.write_bytes(origin.read_bytes())
    place.chmod(origin.stat().st_mode & 0o777)


def _copy_file(tar: tarfile.TarFile, row: tarfile.TarInfo, place: Path, budget: Budget) -> None:
    budget.take(row.size)
    source: Any = tar.extractfile(row)
    with place.open("xb") as file:
        while piece := source.read(1024 * 1024):
            file.write(piece)
    place.chmod(row.mode & 0o777)
    os.utime(place, (row.mtime, row.mtime))
