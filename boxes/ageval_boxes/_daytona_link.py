"""One sandbox of Daytona, and all of ours in an account."""

from __future__ import annotations

import asyncio
import math
import secrets
import shlex
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from ageval_boxes._remote_cloud import Found, when
from ageval_boxes._remote_link import Sink
from ageval_boxes._remote_owner import BOX
from ageval_boxes._remote_sandbox import pieces_of, sdk
from pytest_ageval.errors import BoxError

#: Seconds that the vendor may take for a sandbox, an image that has to be built included.
_CREATE = 600.0


class DaytonaAccount:
    """The sandboxes of the account whose key the library reads."""

    def __init__(self, client: Any = None) -> None:
        self._library = sdk("daytona", "daytona")
        self._own = client is None
        self._client: Any = self._library.AsyncDaytona() if client is None else client

    async def find(self, labels: Mapping[str, str]) -> list[Found]:
        """The sandboxes of ours with `labels`."""
        query = self._library.ListSandboxesQuery(labels=dict(labels))
        found = [_found(sandbox) async for sandbox in self._client.list(query)]
        return [one for one in found if BOX in one.labels and one.state not in ("destroyed", "destroying")]

    async def look(self, sandbox_id: str) -> Found | None:
        """One sandbox of the account."""
        try:
            return _found(await self._client.get(sandbox_id))
        except self._library.DaytonaNotFoundError:
            return None

    async def delete(self, sandbox_id: str) -> None:
        """Delete it; another request may have been quicker."""
        gone = (self._library.DaytonaNotFoundError, self._library.DaytonaConflictError)
        try:
            await (await self._client.get(sandbox_id)).delete()
        except gone:
            return

    async def close(self) -> None:
        """Close the connections, if they are ours alone."""
        if self._own:
            await self._client.close()


def _found(sandbox: Any) -> Found:
    state = _state(sandbox)
    return Found(
        str(sandbox.id),
        dict(sandbox.labels or {}),
        "running" if state == "started" else state,
        when(sandbox.created_at),
    )


def _state(sandbox: Any) -> str:
    return str(getattr(sandbox.state, "value", sandbox.state))


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

    def __init__(
        self,
        *,
        timeout_seconds: int,
        ephemeral: bool,
        target: str | None,
        image: str | None,
    ) -> None:
        self._library = sdk("daytona", "daytona")
        self._common = {
            "auto_stop_interval": math.ceil(timeout_seconds / 60),
            "auto_delete_interval": 0 if ephemeral else None,
            "target": target,
        }
        self._base_image = image
        self.client: Any = self._library.AsyncDaytona()
        self._sandbox: Any = None

    @property
    def sandbox_id(self) -> str:
        """Daytona's id of the sandbox."""
        return "" if self._sandbox is None else str(self._sandbox.id)

    @property
    def account(self) -> DaytonaAccount:
        """The account of the key, through the connections of this link."""
        return DaytonaAccount(self.client)

    async def open(self, labels: Mapping[str, str], image: str | None) -> None:
        """Create the sandbox, from the snapshot `image`."""
        library = self._library
        common: dict[str, Any] = {name: value for name, value in self._common.items() if value is not None}
        common["labels"] = dict(labels)
        params = (
            library.CreateSandboxFromImageParams(image=self._base_image, **common)
            if self._base_image and image is None
            else library.CreateSandboxFromSnapshotParams(snapshot=image, **common)
        )
        try:
            self._sandbox = await self.client.create(params, timeout=_CREATE)
        except Exception as error:
            raise BoxError(
                "environment_start_failed", f"Daytona gave no sandbox: {type(error).__name__}: {error}"
            ) from error

    async def join(self, sandbox_id: str) -> None:
        """Connect to a sandbox, and start one that was stopped."""
        self._sandbox = await self.client.get(sandbox_id)
        if _state(self._sandbox) == "stopped":
            await self._sandbox.start()

    async def own(self, labels: Mapping[str, str]) -> None:
        """Replace our labels; those that the library or the vendor set stay."""
        others = {n: v for n, v in self._sandbox.labels.items() if not n.startswith("ageval.")}
        await self._sandbox.set_labels({**others, **labels})

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
            return _state(await self.client.get(self._sandbox.id)) == "started"
        except self._library.DaytonaNotFoundError:
            return False

    async def disconnect(self) -> None:
        """Close the connections of the library. Idempotent."""
        await self.client.close()
