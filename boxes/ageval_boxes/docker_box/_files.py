"""The files of a container's box: its directories on the host, and copying into it and out of it."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import secrets
import stat
from abc import abstractmethod
from pathlib import Path, PurePosixPath
from typing import Any

from ageval_boxes import _leftovers
from ageval_boxes._files import DOWNLOAD_BYTES, DOWNLOAD_FILES, Budget, get, give, put
from ageval_boxes.docker_box import _copies
from ageval_boxes.docker_box._commands import Commands, any_path
from ageval_boxes.docker_box._engine import call, failure
from pytest_ageval.box import ARTIFACTS, HOME, ROOT, WORKSPACE, Box, BoxSpec, check_path, work_parent
from pytest_ageval.errors import BoxError


def is_file(path: Path) -> bool:
    """`path` is a regular file, not a link to one."""
    return stat.S_ISREG(path.lstat().st_mode)


class BoxFiles(Box):
    """What `DockerBox` has of files: directories of the host that the box shows, or copies of its own."""

    #: The most that one download may bring, in bytes and in files.
    download_bytes: int = DOWNLOAD_BYTES
    download_files: int = DOWNLOAD_FILES

    def __init__(self, spec: BoxSpec) -> None:
        super().__init__(spec)
        self.warnings: list[str] = []
        self._id = secrets.token_hex(8)
        self._owned = False
        self._container_id = ""
        self._shared = False
        self._user = (10001, 10001)
        self._files = spec.work_dir / "box"
        self._staging = spec.work_dir / "staging"

    @property
    @abstractmethod
    def _running(self) -> Commands:
        """The commands of the box that is open. Raises BoxError ``environment_not_started``."""

    @abstractmethod
    async def _service(self, name: str) -> str:
        """The container of a compose service."""

    # -- on the host -------------------------------------------------------------------------------

    def _make_directories(self) -> None:
        work = self.spec.work_dir
        if work_parent() in work.parents:
            _leftovers.default_work_parent()
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Exclusive: two boxes never share a directory.
        with (work / _leftovers.MARKER).open("x", encoding="utf-8") as file:
            self._owned = True
            json.dump(self._note(self._id), file)
        for path in (WORKSPACE, HOME, ARTIFACTS):
            (self._files / PurePosixPath(path).name).mkdir(parents=True)
        self._files.chmod(0o755)
        if self._gives_to is not None:
            give(self._files, self._gives_to)

    def _note(self, box_id: str) -> dict[str, Any]:
        return {**_leftovers.marker(box_id, self.spec.labels), "kind": self.kind}

    @property
    def _gives_to(self) -> tuple[int, int] | None:
        """To whom shared files are given; None where they are the user's anyway."""
        return self._user if self._shared and os.geteuid() == 0 and self._user != (0, 0) else None

    def visible_path(self, path: str) -> str:
        """`path` as it is, if it is below /attempt."""
        return str(check_path(path))

    def host_path(self, path: str) -> Path | None:
        """Where `path` is on the host; None where the box's files are copied."""
        check_path(path)
        return self._files.joinpath(*PurePosixPath(path).parts[2:]) if self._shared else None

    # -- copying -----------------------------------------------------------------------------------

    async def upload(self, source: Path, dest: str, *, service: str | None = None) -> None:
        """Copy into the box; see `Box.upload`. FIFOs, sockets and devices are left out (`warnings`).

        With `service`, `dest` is any absolute path of that service's container.
        """
        commands = self._running
        path = any_path(dest) if service is not None else check_path(dest)
        if service is None and len(path.parts) == 2:
            raise BoxError("environment_path_invalid", f"{dest} cannot be replaced as a whole")
        try:
            if self._shared and service is None:
                work = functools.partial(put, self._files, self._staging, source, path, ROOT, self._gives_to)
                notes = await asyncio.to_thread(work)
            else:
                target = commands if service is None else commands.of(await self._service(service))
                notes = await self._send(target, source, path, (0, 0) if service else self._user)
        except FileNotFoundError as error:
            raise BoxError("environment_upload_missing", f"{source} does not exist") from error
        except OSError as error:
            raise failure(error, "environment_upload_failed") from error
        self.warnings += [f"upload of {note}" for note in notes]

    async def _send(
        self, target: Commands, source: Path, path: PurePosixPath, owner: tuple[int, int]
    ) -> list[str]:
        archive, notes = await asyncio.to_thread(_copies.pack, source, path.name, owner)
        with archive:
            plain = await asyncio.to_thread(is_file, source)
            if not await self._has_room(target, path, plain=plain):
                await target.make_room(path, owner)
            await call(_copies.send, target.engine, target.container, str(path.parent), archive)
        return notes

    async def _has_room(self, target: Commands, path: PurePosixPath, *, plain: bool) -> bool:
        """The engine can unpack a file (`plain`) or a tree as `path` as things are.

        A command that makes room costs far more than to ask.
        """
        look = functools.partial(call, _copies.exists, target.engine, target.container)
        there = await look(str(path))
        if there is None:
            return await look(str(path.parent)) == "other"
        return plain and there == "file"

    async def download(self, source: str, dest: Path, *, service: str | None = None) -> None:
        """Copy out of the box; see `Box.download`. A tree or file replaces `dest`.

        BoxError ``environment_download_too_large`` beyond `download_bytes` or `download_files`.
        FIFOs, sockets, devices and unreadable files are left out (`warnings`).
        """
        commands = self._running
        path = any_path(source) if service is not None else check_path(source)
        budget = Budget("environment_download_too_large", self.download_bytes, self.download_files)
        try:
            if self._shared and service is None:
                notes = await asyncio.to_thread(get, self._files, path, dest, ROOT, budget)
            else:
                target = self._container_id if service is None else await self._service(service)
                notes = await call(_copies.fetch, commands.engine, target, str(path), dest, budget)
        except FileNotFoundError as error:
            raise BoxError("environment_download_missing", f"{source} does not exist") from error
        except OSError as error:
            raise failure(error, "environment_download_failed") from error
        self.warnings += [f"download of {note}" for note in notes]
