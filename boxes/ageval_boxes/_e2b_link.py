"""One sandbox of E2B, and all of ours in an account."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from ageval_boxes._remote_cloud import Found, when
from ageval_boxes._remote_link import Sink
from ageval_boxes._remote_owner import BOX, OURS, OWNER, left_behind, owner
from ageval_boxes._remote_sandbox import pieces_of, sdk
from pytest_ageval.errors import BoxError

#: Seconds for one request to the vendor.
_REQUEST = 60.0

#: The file of a sandbox, the superuser's, with the labels that it got after it was made.
ADOPTED = "/var/lib/ageval-labels.json"


class E2BAccount:
    """The sandboxes of the account whose key the library reads."""

    def __init__(self) -> None:
        self._e2b = sdk("e2b", "e2b")

    async def find(self, labels: Mapping[str, str]) -> list[Found]:
        """The sandboxes of ours with `labels`; those in a file of an adopted one count, not its metadata."""
        # The box of a sandbox never changes; any other label may be another one by now.
        query = dict(labels) if set(labels) == {BOX} else dict([OURS])
        pages = self._e2b.AsyncSandbox.list(self._e2b.SandboxQuery(metadata=query))
        found = []
        while pages.has_next:
            found += [await self._found(info) for info in await pages.next_items()]
        return [one for one in found if labels.items() <= one.labels.items()]

    async def look(self, sandbox_id: str) -> Found | None:
        """One sandbox of the account."""
        try:
            info = await self._e2b.AsyncSandbox.get_info(sandbox_id)
        except self._e2b.NotFoundException:
            return None
        return await self._found(info)

    async def _found(self, info: Any) -> Found:
        labels = dict(info.metadata or {})
        state = str(getattr(info.state, "value", info.state))
        # Nobody takes over the sandbox of a process that lives.
        if state == "running" and left_behind(labels) and labels.get(OWNER) != owner():
            labels |= await self._adopted(info.sandbox_id)
        return Found(info.sandbox_id, labels, state, when(info.started_at))

    async def _adopted(self, sandbox_id: str) -> dict[str, str]:
        try:
            sandbox = await self._e2b.AsyncSandbox.connect(sandbox_id, timeout=1)
            text = await sandbox.files.read(ADOPTED, user="root", request_timeout=_REQUEST)
            said = json.loads(text)
        except (self._e2b.NotFoundException, ValueError):
            return {}
        if not isinstance(said, dict):
            return {}
        return {str(name): str(value) for name, value in said.items() if name != BOX}

    async def delete(self, sandbox_id: str) -> None:
        """Kill it."""
        await self._e2b.AsyncSandbox.kill(sandbox_id)

    async def close(self) -> None:
        """Nothing to close: the library shares its connections."""


class E2BCommand:
    """A background command of the library. Its output goes to the sinks and is not kept."""

    def __init__(self, e2b: Any, handle: Any, commands: Any) -> None:
        self._e2b = e2b
        self._handle = handle
        self._commands = commands
        self.ended: asyncio.Future[BaseException | None] = asyncio.ensure_future(self._wait())

    async def _wait(self) -> BaseException | None:
        try:
            await self._handle.wait()
        except self._e2b.CommandExitException:
            return None
        except Exception as error:
            return error
        return None

    async def send(self, data: bytes) -> None:
        """Write to stdin; returns when the process has taken it."""
        await self._commands.send_stdin(self._handle.pid, data, request_timeout=0)

    async def close_stdin(self) -> None:
        """Close stdin."""
        await self._commands.close_stdin(self._handle.pid)

    async def close(self) -> None:
        """Give the stream back to the library."""
        if not self.ended.done():
            # The stream's own end follows the report's last line at once.
            await asyncio.wait({self.ended}, timeout=1.0)
        if not self.ended.done():
            await self._handle.disconnect()
            self.ended.cancel()
            await asyncio.wait({self.ended})


class E2BLink:
    """One sandbox of E2B."""

    encoded_stdin = False

    def __init__(self, timeout: int, metadata: Mapping[str, str]) -> None:
        self._e2b = sdk("e2b", "e2b")
        self._timeout = timeout
        self._metadata = metadata
        self._sandbox: Any = None

    @property
    def sandbox_id(self) -> str:
        """E2B's id of the sandbox."""
        return "" if self._sandbox is None else str(self._sandbox.sandbox_id)

    @property
    def account(self) -> E2BAccount:
        """The account of the key."""
        return E2BAccount()

    async def open(self, labels: Mapping[str, str], image: str | None) -> None:
        """Create the sandbox. The library itself repeats a request that was put off (429, 503)."""
        try:
            self._sandbox = await self._e2b.AsyncSandbox.create(
                template=image,
                timeout=self._timeout,
                metadata={**self._metadata, **labels},
            )
        except Exception as error:
            raise BoxError(
                "environment_start_failed",
                f"E2B gave no sandbox of {image!r}: {type(error).__name__}: {error}",
            ) from error

    async def join(self, sandbox_id: str) -> None:
        """Connect to a sandbox. E2B then lets it live for `timeout_seconds` more, if that is longer."""
        self._sandbox = await self._e2b.AsyncSandbox.connect(sandbox_id, timeout=self._timeout)

    async def own(self, labels: Mapping[str, str]) -> None:
        """Write the labels into a file of the sandbox: E2B cannot change metadata."""

        async def pieces() -> AsyncIterator[bytes]:
            yield json.dumps(dict(labels)).encode()

        await self._sandbox.files.write(ADOPTED, pieces(), user="root", request_timeout=_REQUEST)

    async def command(
        self, line: str, *, stdout: Sink, stderr: Sink, stdin: bool = False, root: bool = False
    ) -> E2BCommand:
        """Start a shell command line, as the superuser with `root`."""
        commands = self._sandbox.commands
        handle = await commands.run(
            line,
            background=True,
            user="root" if root else None,
            on_stdout=stdout,
            on_stderr=stderr,
            stdin=stdin,
            timeout=0,
            request_timeout=_REQUEST,
            retain_output=False,
        )
        return E2BCommand(self._e2b, handle, commands)

    async def put(self, path: str, source: Path) -> None:
        """Write a file of the host to `path` in the sandbox."""
        await self._sandbox.files.write(path, pieces_of(source), request_timeout=0)

    async def fetch(self, path: str, dest: Path) -> None:
        """Write a file of the sandbox to `dest`."""
        stream = await self._sandbox.files.read(path, format="stream")
        with dest.open("wb") as file:
            async for piece in stream:
                await asyncio.to_thread(file.write, piece)

    async def keep_alive(self) -> None:
        """Start the sandbox's time again."""
        await self._sandbox.set_timeout(self._timeout)

    async def exists(self) -> bool:
        """E2B still has the sandbox running."""
        try:
            found = await self._sandbox.get_info()
        except self._e2b.NotFoundException:
            return False
        return str(getattr(found.state, "value", found.state)) == "running"

    async def disconnect(self) -> None:
        """Nothing to close: the library shares its connections."""
