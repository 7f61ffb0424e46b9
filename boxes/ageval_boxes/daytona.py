"""The kind ``daytona``: a sandbox of Daytona (https://daytona.io), by their library (extra ``daytona``).

The key is read from ``DAYTONA_API_KEY`` by the library and goes nowhere else.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
import os
import secrets
import shlex
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ageval_boxes._remote import RemoteBox, pieces_of, sdk, swept
from ageval_boxes._remote_link import Link, Sink
from ageval_boxes._remote_owner import left_behind, recipe_hash, recipe_of
from pytest_ageval.errors import BoxError

#: Tags that mean another image tomorrow; Daytona refuses or caches them.
_FLOATING = frozenset({"latest", "lts", "stable"})
#: Seconds that the vendor may take for a sandbox, an image that has to be built included.
_CREATE = 600.0


class DaytonaOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The options of a daytona box.

    `snapshot`: the snapshot to use, exactly. `image`: an image with a fixed tag instead. Without both,
    a task with an ``environment/Dockerfile`` uses the snapshot ``<snapshot_name>-<hash>``, which must
    exist, and any other the account's default snapshot.
    `timeout_seconds`: after how long without us the sandbox is stopped, rounded up to minutes.
    `ephemeral`: a stopped sandbox is deleted.
    `target`: the region; the library's own setting when not given.
    """

    snapshot: str | None = None
    snapshot_name: str = "ageval-attempt"
    image: str | None = None
    timeout_seconds: int = 900
    ephemeral: bool = True
    target: str | None = None


class DaytonaBox(RemoteBox):
    """One Daytona sandbox."""

    kind = "daytona"
    Options = DaytonaOptions

    @classmethod
    def describe(cls, options: Mapping[str, Any]) -> str:
        """``daytona (image debian:12-slim)``, ``daytona (snapshot s)`` or ``daytona``."""
        for name in ("snapshot", "image"):
            if options.get(name):
                return f"daytona ({name} {options[name]})"
        return "daytona"

    @property
    def _lifetime(self) -> float:
        return float(self.options.timeout_seconds)

    async def preflight(self) -> None:
        """Refuse a missing library or key, and options that cannot be."""
        await asyncio.to_thread(sdk, "daytona", "daytona")
        if not os.environ.get("DAYTONA_API_KEY"):
            raise BoxError("environment_preflight_failed", "DAYTONA_API_KEY is not set")
        if self.options.timeout_seconds < 1:
            raise BoxError("environment_preflight_failed", "timeout_seconds must be at least 1")
        image = self.options.image
        if image and self.options.snapshot:
            raise BoxError("environment_preflight_failed", "snapshot and image exclude each other")
        if image and "@" not in image:
            tag = image.rpartition("/")[2].partition(":")[2]
            if not tag or tag in _FLOATING:
                raise BoxError("environment_preflight_failed", f"the image {image!r} needs a fixed tag")

    async def _make_link(self) -> Link:
        recipe = None if self.options.snapshot or self.options.image else recipe_of(self.spec.task_root)
        if recipe is None:
            return DaytonaLink(self.options, self.options.snapshot)
        name = f"{self.options.snapshot_name}-{await asyncio.to_thread(recipe_hash, recipe)}"
        link = DaytonaLink(self.options, name)
        there = False
        try:
            there = await link.has_snapshot(name)
        finally:
            if not there:
                await link.disconnect()
        if not there:
            raise BoxError(
                "environment_image_unresolved",
                f"there is no Daytona snapshot {name!r} for {recipe / 'Dockerfile'}; build it once with "
                f"daytona snapshot create {name} --dockerfile {recipe / 'Dockerfile'} --context {recipe}, "
                f"or set snapshot or image",
            )
        return link

    @classmethod
    def reap(cls, labels: Mapping[str, str]) -> list[str]:
        """Delete sandboxes of this account with these labels whose owner on this machine is gone (or is us).

        Without the library or the key there is nothing that could be asked.
        """
        if not os.environ.get("DAYTONA_API_KEY") or importlib.util.find_spec("daytona") is None:
            return []
        return swept(cls.kind, _reap(labels))


async def _reap(labels: Mapping[str, str]) -> list[str]:
    library = sdk("daytona", "daytona")
    removed = []
    async with library.AsyncDaytona() as client:
        async for sandbox in client.list(library.ListSandboxesQuery(labels=dict(labels))):
            if left_behind(sandbox.labels):
                await sandbox.delete()
                attempt = sandbox.labels.get("ageval.attempt", "?")
                removed.append(f"daytona box of {attempt}: sandbox {sandbox.id}")
    return removed


class DaytonaCommand:
    """A command in a session of its own, and the connection that follows its output."""

    def __init__(self, process: Any, session: str, command: str, stdout: Sink, stderr: Sink) -> None:
        self._process = process
        self._session = session
        self._command = command
        self.ended: asyncio.Future[BaseException | None] = asyncio.ensure_future(self._follow(stdout, stderr))
        self._closed = False

    async def _follow(self, stdout: Sink, stderr: Sink) -> BaseException | None:
        try:
            await self._process.get_session_command_logs_async(self._session, self._command, stdout, stderr)
        except Exception as error:
            return error
        return None

    async def send(self, data: bytes) -> None:
        """Write to stdin, which takes text."""
        await self._process.send_session_command_input(self._session, self._command, data.decode("ascii"))

    async def close_stdin(self) -> None:
        """Daytona cannot close stdin; the end is a line of its own (`Link.encoded_stdin`)."""
        raise BoxError("environment_capability_missing", "stdin of a Daytona session cannot be closed")

    async def close(self) -> None:
        """Close the connection and delete the session."""
        if self._closed:
            return
        self._closed = True
        if not self.ended.done():
            await asyncio.wait({self.ended}, timeout=0.5)
        if not self.ended.done():
            self.ended.cancel()
            await asyncio.wait({self.ended})
        # A session that is gone already, with its sandbox or by itself, is as good.
        await asyncio.gather(self._process.delete_session(self._session), return_exceptions=True)


class DaytonaLink:
    """One sandbox of Daytona."""

    encoded_stdin = True

    def __init__(self, options: DaytonaOptions, snapshot: str | None) -> None:
        self._library = sdk("daytona", "daytona")
        self._options = options
        self._snapshot = snapshot
        self._client: Any = self._library.AsyncDaytona()
        self._sandbox: Any = None
        self._labels: dict[str, str] = {}

    @property
    def sandbox_id(self) -> str:
        """Daytona's id of the sandbox."""
        return "" if self._sandbox is None else str(self._sandbox.id)

    async def has_snapshot(self, name: str) -> bool:
        """There is a snapshot of that name."""
        try:
            await self._client.snapshot.get(name)
        except self._library.DaytonaNotFoundError:
            return False
        except Exception as error:
            raise BoxError("environment_start_failed", f"Daytona: {type(error).__name__}: {error}") from error
        return True

    async def open(self, labels: Mapping[str, str]) -> None:
        """Create the sandbox."""
        library = self._library
        self._labels = dict(labels)
        common = {
            "labels": self._labels,
            "auto_stop_interval": math.ceil(self._options.timeout_seconds / 60),
            "auto_delete_interval": 0 if self._options.ephemeral else None,
            "target": self._options.target,
        }
        common = {name: value for name, value in common.items() if value is not None}
        params = (
            library.CreateSandboxFromImageParams(image=self._options.image, **common)
            if self._options.image
            else library.CreateSandboxFromSnapshotParams(snapshot=self._snapshot, **common)
        )
        try:
            self._sandbox = await self._client.create(params, timeout=_CREATE)
        except Exception as error:
            raise BoxError(
                "environment_start_failed", f"Daytona gave no sandbox: {type(error).__name__}: {error}"
            ) from error

    async def command(
        self, line: str, *, stdout: Sink, stderr: Sink, stdin: bool = False, root: bool = False
    ) -> DaytonaCommand:
        """Start a shell command line in a new session, as the superuser with `root` where sudo allows it."""
        if root:
            line = (
                'if [ "$(id -u)" != 0 ] && sudo -n true 2>/dev/null; then '
                f"exec sudo -n sh -c {shlex.quote(line)}; else {line}; fi"
            )
        process = self._sandbox.process
        session = f"ageval-{secrets.token_hex(8)}"
        await process.create_session(session)
        request = self._library.SessionExecuteRequest(command=line, run_async=True, suppress_input_echo=True)
        started = await process.execute_session_command(session, request)
        return DaytonaCommand(process, session, started.cmd_id, stdout, stderr)

    async def put(self, path: str, source: Path) -> None:
        """Write a file of the host to `path` in the sandbox."""
        await self._sandbox.fs.upload_file_stream(pieces_of(source), path, timeout=0)

    async def fetch(self, path: str, dest: Path) -> None:
        """Write a file of the sandbox to `dest`."""
        stream: AsyncIterator[bytes] = await self._sandbox.fs.download_file_stream(path, timeout=0)
        with dest.open("wb") as file:
            async for piece in stream:
                await asyncio.to_thread(file.write, piece)

    async def keep_alive(self) -> None:
        """Tell Daytona that the sandbox is in use."""
        await self._sandbox.refresh_activity()

    async def exists(self) -> bool:
        """Daytona still has the sandbox running."""
        try:
            found = await self._client.get(self._sandbox.id)
        except self._library.DaytonaNotFoundError:
            return False
        return str(getattr(found.state, "value", found.state)) == "started"

    async def _ours(self) -> list[Any]:
        query = self._library.ListSandboxesQuery(labels={"ageval.box": self._labels["ageval.box"]})
        return [found async for found in self._client.list(query) if _lives(found)]

    async def close(self) -> None:
        """Delete the sandbox, and look until none of this box is listed any more."""
        if not self._labels:
            return
        try:
            for _ in range(20):
                found = await self._ours()
                if not found:
                    return
                # Another request may have been quicker.
                done = await asyncio.gather(*(sandbox.delete() for sandbox in found), return_exceptions=True)
                for error in done:
                    if isinstance(error, BaseException) and not isinstance(
                        error, (self._library.DaytonaNotFoundError, self._library.DaytonaConflictError)
                    ):
                        raise error
                await asyncio.sleep(0.1)
        except Exception as error:
            raise BoxError(
                "environment_stop_failed",
                f"Daytona sandbox {self.sandbox_id}: {type(error).__name__}: {error}",
            ) from error
        raise BoxError("environment_stop_failed", f"Daytona still lists the sandbox {self.sandbox_id}")

    async def disconnect(self) -> None:
        """Close the connections of the library. Idempotent."""
        await self._client.close()


def _lives(sandbox: Any) -> bool:
    return str(getattr(sandbox.state, "value", sandbox.state)) not in ("destroyed", "destroying")
