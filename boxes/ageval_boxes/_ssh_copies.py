"""Copies to and from an ssh box, as tar streams. A connection that breaks in the middle is taken up once.

What had arrived by then is not sent again: both ends compare digests of it first. Small uploads go
straight into tar; of a large one the archive is kept beside the box until it is whole, and unpacked then.
Everything here blocks and is meant for threads.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ageval_boxes._files import Budget
from ageval_boxes._ssh_connection import BROKEN, Done, Host, lost
from ageval_boxes._ssh_scripts import (
    DOWNLOAD,
    DOWNLOAD_DIGEST,
    DOWNLOAD_REST,
    FORGET,
    MISSING,
    OUTSIDE,
    RECEIVE,
    RECEIVED,
    UPLOAD,
    UPLOAD_PARTS,
    script_command,
)
from ageval_boxes._tar import pack, unpack
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from paramiko import Channel

    from ageval_boxes._ssh_place import Place

#: Seconds without a byte after which a copy has failed.
SILENCE = 120.0

#: Seconds in which an archive that has arrived must be unpacked.
UNPACK_SECONDS = 1800.0

#: Bytes from which on an upload can be taken up in the middle; a smaller one begins anew.
RESUMED = 8 * 1024 * 1024


def once_more(work: Callable[[], Done]) -> Done:
    """Try again with a new connection when the old one is lost."""
    try:
        return work()
    except BoxError as error:
        if error.title != "environment_connection_lost":
            raise
        return work()


# -- into the box ----------------------------------------------------------------------------------


class _Gone(OSError):
    """The other end takes nothing more."""


class _Changed(Exception):
    """What is sent is not what was sent before."""


class _Writer:
    """Sends a stream to a channel without its first `skip` bytes, whose digest must be `digest`."""

    def __init__(self, channel: Channel, skip: int = 0, digest: str = "") -> None:
        self._channel = channel
        self._skip = skip
        self._digest = digest
        self._before = hashlib.sha256()
        self._sent = hashlib.sha256()

    def write(self, data: bytes) -> int:
        size = len(data)
        if self._skip:
            known, data = data[: self._skip], data[self._skip :]
            self._before.update(known)
            self._skip -= len(known)
            if not self._skip and self._before.hexdigest() != self._digest:
                raise _Changed
        if data:
            self._sent.update(data)
            try:
                self._channel.sendall(data)
            except BROKEN as error:
                raise _Gone(str(error)) from error
        return size

    @property
    def digest(self) -> str:
        """Of what was sent."""
        return self._sent.hexdigest()


class _Upload:
    def __init__(self, place: Place, source: Path, path: PurePosixPath) -> None:
        try:
            info = source.lstat()
        except OSError as error:
            raise BoxError("environment_upload_missing", f"{source}: {error}") from error
        mode = f"{stat.S_IMODE(info.st_mode) & 0o777:o}" if stat.S_ISDIR(info.st_mode) else ""
        self._place = place
        self._source = source
        self._path = path
        self._args = (place.box, *place.names(path), mode, place.staging)
        self.notes: list[str] = []

    def _pack(self, writer: _Writer) -> None:
        try:
            self.notes = pack(self._source, "x", writer)
        except _Gone:
            raise
        except (OSError, tarfile.TarError) as error:
            # Not to be taken for an end of the channel.
            raise BoxError("environment_upload_failed", f"{self._source}: {error}") from error

    def small(self) -> Done:
        """In one stream; after a lost connection from the beginning."""

        def send() -> Done:
            return self._place.run(
                UPLOAD, *self._args, feed=lambda channel: self._pack(_Writer(channel)), timeout=SILENCE
            )

        return once_more(send)

    def large(self) -> Done:
        """By way of files beside the box."""
        parts = [f"{self._place.staging}/part-{secrets.token_hex(8)}-{number}" for number in (1, 2)]
        try:
            return self._in_parts(*parts)
        finally:
            # Out of reach: they go with the box.
            with suppress(BoxError):
                self._place.run(FORGET, *parts, timeout=6.0)

    def _in_parts(self, first: str, second: str) -> Done:
        size, rest = "0", ""
        try:
            self._send(first)
        except BoxError as error:
            if error.title != "environment_connection_lost":
                raise
            done = once_more(lambda: self._place.run(RECEIVED, first))
            size, _, digest = done.stdout.strip().partition(" ")
            rest = second
            try:
                self._send(rest, int(size), digest)
            except _Changed:
                size = "0"
                self._send(rest)
        else:
            rest = first
        args = (*self._args, first, size, rest)
        return once_more(lambda: self._place.run(UPLOAD_PARTS, *args, timeout=UNPACK_SECONDS))

    def _send(self, file: str, skip: int = 0, digest: str = "") -> None:
        writer: _Writer | None = None

        def feed(channel: Channel) -> None:
            nonlocal writer
            writer = _Writer(channel, skip, digest)
            self._pack(writer)

        done = self._place.run(RECEIVE, file, feed=feed, timeout=SILENCE)
        if done.code != 0 or writer is None:
            raise BoxError("environment_upload_failed", f"{self._path}: {done.stderr.strip()[-500:]}")
        if done.stdout.strip() != writer.digest:
            raise BoxError("environment_upload_failed", f"{self._path}: what arrived is not what was sent")


def put(place: Place, source: Path, path: PurePosixPath) -> list[str]:
    """Replace `path` by `source`; returns notes about what was left out. Raises BoxError."""
    upload = _Upload(place, source, path)
    done = upload.large() if _at_least(source, RESUMED) else upload.small()
    _check(done, path, "environment_upload_failed")
    return [f"{source.name}{note[1:]}" for note in upload.notes]


def _at_least(source: Path, size: int) -> bool:
    """A file or tree of that many bytes, as far as can be seen."""
    info = source.lstat()
    if not stat.S_ISDIR(info.st_mode):
        return stat.S_ISREG(info.st_mode) and info.st_size >= size
    total = 0
    for top, _directories, files in os.walk(source):
        for name in files:
            with suppress(OSError):
                total += Path(top, name).lstat().st_size
            if total >= size:
                return True
    return False


# -- out of the box --------------------------------------------------------------------------------


class _Reader:
    """A tar stream out of the box. `total` is what came so far; see the module for lost connections."""

    def __init__(self, at: Host, container: str | None, args: tuple[str, ...], channel: Channel) -> None:
        self._at = at
        self._container = container
        self._args = args
        self._channel = channel
        self._hash = hashlib.sha256()
        self.total = 0
        self.resumed: Channel | None = None

    def read(self, size: int) -> bytes:
        while True:
            broken = False
            try:
                data: bytes = self._channel.recv(size)
            except TimeoutError:
                raise
            except BROKEN:
                # What was read is lost with its acknowledgement; it is asked for again.
                data, broken = b"", True
                self._at.abandon(self._channel)
            if broken or (not data and not self._at.alive(self._channel) and not self._whole):
                self._resume()
                continue
            self.total += len(data)
            self._hash.update(data)
            return data

    @property
    def _whole(self) -> bool:
        """The end of the stream was the other end's own."""
        return bool(self._channel.exit_status_ready()) and self._channel.recv_exit_status() >= 0

    def _resume(self) -> None:
        if self.resumed is not None:
            raise lost(self._at.address, "in the middle of a copy, for the second time")
        command = script_command(DOWNLOAD_REST, (*self._args, str(self.total)), self._container)
        channel = self._at.open(command, script=True)
        self.resumed = self._channel = channel
        channel.settimeout(SILENCE)
        channel.shutdown_write()
        line = bytearray()
        while not line.endswith(b"\n"):
            try:
                piece = channel.recv(1)
            except EOFError:
                piece = b""
            if not piece:
                raise lost(self._at.address, "in the middle of a copy")
            line += piece
        if line.decode("ascii", "replace").strip() != self._hash.hexdigest():
            raise BoxError(
                "environment_download_failed", "what was to be copied changed while the connection was down"
            )

    def finish(self) -> None:
        """Read to the end; after a lost connection, compare digests of the whole."""
        while self.read(65536):  # the padding after the end
            pass
        if self.resumed is None:
            return
        done = self._at.run(DOWNLOAD_DIGEST, *self._args, container=self._container, timeout=SILENCE)
        if done.stdout.strip() != self._hash.hexdigest():
            raise BoxError("environment_download_failed", "what arrived is not what is in the box")


def get(place: Place, path: PurePosixPath, dest: Path, budget: Budget) -> list[str]:
    """Copy `path` to `dest`, replacing it; returns notes about what was left out. Raises BoxError."""
    args = (place.box, *place.names(path))
    arrived = False
    stream: _Reader | None = None

    def take(channel: Any) -> None:
        nonlocal arrived, stream
        stream = _Reader(place.at, place.container, args, channel)
        try:
            arrived = unpack(stream, args[2], dest, budget, stream.finish)
        except tarfile.TarError as error:
            if stream.total:
                raise OSError(f"the copy is not whole: {error}") from error
            stream.finish()

    try:
        done = place.run(DOWNLOAD, *args, take=take, timeout=SILENCE)
    except OSError as error:
        raise BoxError("environment_download_failed", f"{path}: {error}") from error
    except BoxError as error:
        # The first channel is lost; what came by the second one is whole.
        if error.title != "environment_connection_lost" or not arrived:
            raise
        return budget.notes
    finally:
        if stream is not None and stream.resumed is not None:
            place.at.release(stream.resumed)
    if done.code in (OUTSIDE, MISSING) or not arrived:
        _check(done, path, "environment_download_failed")
        raise BoxError("environment_download_missing", f"{path}: {'; '.join(budget.notes)}")
    if done.code != 0:
        budget.notes += done.stderr.strip().splitlines()[:20]
    return budget.notes


def _check(done: Done, path: PurePosixPath, title: str) -> None:
    if done.code == OUTSIDE:
        raise BoxError("environment_path_invalid", f"{path}: {done.stderr.strip()[-500:]}")
    if done.code == MISSING:
        raise BoxError("environment_download_missing", f"{path} does not exist")
    if done.code != 0:
        raise BoxError(title, f"{path}: {done.stderr.strip()[-500:] or done.code}")
