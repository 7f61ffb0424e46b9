"""The other end of an ssh box: a directory of the host or a container on it, and copies to and from there.

Everything here blocks and is meant for threads.
"""

from __future__ import annotations

import json
import stat
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ageval_boxes._files import Budget
from ageval_boxes._ssh_connection import Done, Host
from ageval_boxes._ssh_leftovers import Note, root_name
from ageval_boxes._ssh_scripts import (
    DOCKER,
    DOWNLOAD,
    MISSING,
    OUTSIDE,
    START,
    START_INSIDE,
    UNUSABLE,
    UPLOAD,
)
from ageval_boxes._tar import pack, unpack
from pytest_ageval.box import ROOT
from pytest_ageval.errors import BoxError

#: Seconds in which an image must have been pulled.
PULL_SECONDS = 1800.0

#: Seconds without a byte after which a copy has failed.
_SILENCE = 120.0

#: How docker is told of what a task asks for.
LIMITS = {"cpus": "--cpus={}", "memory_mb": "--memory={}m", "pids": "--pids-limit={}"}


@dataclass(frozen=True, slots=True)
class Place:
    """An open box on a host: what is its ``/attempt``, where copies are prepared, temporary files, PATH.

    `root` is its directory on the host, or the name of its container.
    """

    at: Host
    root: str
    box: str
    staging: str
    tmp: str
    path: str
    container: str | None = None

    def inside(self, path: str) -> str:
        """`path` (below ``/attempt``) as a process in the box spells it."""
        return str(PurePosixPath(self.box, *PurePosixPath(path).parts[2:]))

    def run(self, script: str, *args: str, **options: Any) -> Done:
        """Run one of our scripts where the processes of the box are; see `Host.run`."""
        return self.at.run(script, *args, container=self.container, **options)

    def _names(self, path: PurePosixPath) -> tuple[str, str]:
        """The parent directory and the name of a path of the box, for the scripts."""
        if len(path.parts) == 2:
            return "..", PurePosixPath(self.box).name
        return str(PurePosixPath(".", *path.parts[2:-1])), path.name

    def put(self, source: Path, path: PurePosixPath) -> list[str]:
        """Replace `path` by `source`; returns notes about what was left out. Raises BoxError."""
        try:
            info = source.lstat()
        except OSError as error:
            raise BoxError("environment_upload_missing", f"{source}: {error}") from error
        mode = f"{stat.S_IMODE(info.st_mode) & 0o777:o}" if stat.S_ISDIR(info.st_mode) else ""
        notes: list[str] = []
        unreadable: list[Exception] = []

        def send(channel: Any) -> None:
            try:
                notes.extend(pack(source, "x", _Writer(channel)))
            except _Gone:
                raise
            except (OSError, tarfile.TarError) as error:
                unreadable.append(error)

        args = (self.box, *self._names(path), mode, self.staging)
        done = self.run(UPLOAD, *args, feed=send, timeout=_SILENCE)
        if unreadable:
            raise BoxError("environment_upload_failed", f"{source}: {unreadable[0]}")
        _check(done, path, "environment_upload_failed")
        return [f"{source.name}{note[1:]}" for note in notes]

    def get(self, path: PurePosixPath, dest: Path, budget: Budget) -> list[str]:
        """Copy `path` to `dest`, replacing it; returns notes about what was left out. Raises BoxError."""
        parent, name = self._names(path)
        arrived = False

        def take(channel: Any) -> None:
            nonlocal arrived
            stream = _Reader(channel)
            try:
                arrived = unpack(stream, name, dest, budget)
            except tarfile.TarError as error:
                if stream.total:
                    raise OSError(f"the copy is not whole: {error}") from error
            while stream.read(65536):  # the padding after the end
                pass

        try:
            done = self.run(DOWNLOAD, self.box, parent, name, take=take, timeout=_SILENCE)
        except OSError as error:
            raise BoxError("environment_download_failed", f"{path}: {error}") from error
        if done.code in (OUTSIDE, MISSING) or not arrived:
            _check(done, path, "environment_download_failed")
            raise BoxError("environment_download_missing", f"{path}: {'; '.join(budget.notes)}")
        if done.code != 0:
            budget.notes += done.stderr.strip().splitlines()[:20]
        return budget.notes


class _Gone(OSError):
    """The other end takes nothing more."""


class _Writer:
    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def write(self, data: bytes) -> int:
        try:
            self._channel.sendall(data)
        except OSError as error:
            raise _Gone(str(error)) from error
        return len(data)


class _Reader:
    """Also counts, so that nothing at all can be told from half of something."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.total = 0

    def read(self, size: int) -> bytes:
        data: bytes = self._channel.recv(size)
        self.total += len(data)
        return data


def _check(done: Done, path: PurePosixPath, title: str) -> None:
    if done.code == OUTSIDE:
        raise BoxError("environment_path_invalid", f"{path}: {done.stderr.strip()[-500:]}")
    if done.code == MISSING:
        raise BoxError("environment_download_missing", f"{path} does not exist")
    if done.code != 0:
        raise BoxError(title, f"{path}: {done.stderr.strip()[-500:] or done.code}")


# -- opening ---------------------------------------------------------------------------------------


def open_directory(at: Host, note: Note) -> Place:
    """Make the directories of a box on the host. Raises BoxError."""
    marker = json.dumps({name: value for name, value in note.data.items() if name != "address"})
    done = at.run(START, str(note.data["parent"]), root_name(note.box_id), marker)
    _refuse(at, done)
    root, path = done.stdout.rstrip("\n").rsplit("\n", 1)
    return Place(at, root, f"{root}/box", f"{root}/staging", f"{root}/tmp", path)  # noqa: S108 - the box's own


def open_container(
    at: Host, note: Note, image: str, labels: Mapping[str, str], resources: Mapping[str, Any]
) -> Place:
    """Start a container of `image`, which docker pulls if need be. Raises BoxError."""
    name = root_name(note.box_id)
    words = ["run", "-d", "--init", "--name", name, "--security-opt", "no-new-privileges"]
    for label, value in {**labels, "ageval.box": note.box_id}.items():
        words += ["--label", f"{label}={value}"]
    words += [LIMITS[key].format(value) for key, value in resources.items() if key in LIMITS]
    words += ["--entrypoint", "tail", image, "-f", "/dev/null"]
    _refuse(at, at.run(DOCKER, *words, timeout=PULL_SECONDS))
    staging, tmp = "/var/tmp/ageval-staging", "/tmp"  # noqa: S108 - the container's own
    done = at.run(START_INSIDE, staging, container=name)
    _refuse(at, done)
    return Place(at, name, ROOT, staging, tmp, done.stdout.strip(), name)


def _refuse(at: Host, done: Done) -> None:
    if done.code != 0:
        title = "environment_preflight_failed" if done.code == UNUSABLE else "environment_start_failed"
        raise BoxError(title, f"{at.address}: {done.stderr.strip()[-500:]}")
