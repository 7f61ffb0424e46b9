"""The kind ``e2b``: a sandbox of E2B (https://e2b.dev), through their library (extra ``e2b``).

The key is read from ``E2B_API_KEY`` by the library and goes nowhere else.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ageval_boxes._remote import RemoteBox, pieces_of, sdk, swept
from ageval_boxes._remote_link import Link, Sink
from ageval_boxes._remote_owner import left_behind, recipe_hash, recipe_of
from pytest_ageval.errors import BoxError

#: Seconds for one request to the vendor.
_REQUEST = 60.0


class E2BOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The options of an e2b box.

    `template_id`: the template to use, by name or id, exactly. Without it the template is `template`,
    and ``<template>__<hash>`` for a task with an ``environment/Dockerfile``; it must exist.
    `timeout_seconds`: how long the sandbox outlives us; it is put off while the attempt runs.
    `metadata`: further metadata of the sandbox.
    """

    template_id: str | None = None
    template: str = "ageval-attempt"
    timeout_seconds: int = 900
    metadata: dict[str, str] = msgspec.field(default_factory=dict)


class E2BBox(RemoteBox):
    """One E2B sandbox."""

    kind = "e2b"
    Options = E2BOptions

    @classmethod
    def describe(cls, options: Mapping[str, Any]) -> str:
        """``e2b (template base)``."""
        return (
            f"e2b (template {options.get('template_id') or options.get('template') or E2BOptions().template})"
        )

    @property
    def _lifetime(self) -> float:
        return float(self.options.timeout_seconds)

    async def preflight(self) -> None:
        """Refuse a missing library or key, and options that cannot be."""
        await asyncio.to_thread(sdk, "e2b", "e2b")
        if not os.environ.get("E2B_API_KEY"):
            raise BoxError("environment_preflight_failed", "E2B_API_KEY is not set")
        if self.options.timeout_seconds < 1:
            raise BoxError("environment_preflight_failed", "timeout_seconds must be at least 1")

    async def _make_link(self) -> Link:
        return E2BLink(self.options, await self._template())

    async def _template(self) -> str:
        if self.options.template_id:
            return str(self.options.template_id)
        recipe = recipe_of(self.spec.task_root)
        if recipe is None:
            return str(self.options.template)
        name = f"{self.options.template}__{await asyncio.to_thread(recipe_hash, recipe)}"
        e2b = sdk("e2b", "e2b")
        try:
            there = await e2b.AsyncTemplate.exists(name)
        except Exception as error:
            raise BoxError("environment_start_failed", f"E2B: {type(error).__name__}: {error}") from error
        if not there:
            raise BoxError(
                "environment_image_unresolved",
                f"there is no E2B template {name!r} for {recipe / 'Dockerfile'}; build it once with "
                f"Template.build(Template(file_context_path={str(recipe)!r})"
                f".from_dockerfile({str(recipe / 'Dockerfile')!r}), {name!r}), or set template_id",
            )
        return name

    @classmethod
    def reap(cls, labels: Mapping[str, str]) -> list[str]:
        """Kill sandboxes of this account with these labels whose owner on this machine is gone (or is us).

        Without the library or the key there is nothing that could be asked.
        """
        if not os.environ.get("E2B_API_KEY") or importlib.util.find_spec("e2b") is None:
            return []
        return swept(cls.kind, _reap(labels))


async def _reap(labels: Mapping[str, str]) -> list[str]:
    e2b = sdk("e2b", "e2b")
    removed = []
    for found in await _list(e2b, labels):
        metadata = found.metadata or {}
        if left_behind(metadata) and await e2b.AsyncSandbox.kill(found.sandbox_id):
            removed.append(f"e2b box of {metadata.get('ageval.attempt', '?')}: sandbox {found.sandbox_id}")
    return removed


async def _list(e2b: Any, labels: Mapping[str, str]) -> list[Any]:
    pages = e2b.AsyncSandbox.list(e2b.SandboxQuery(metadata=dict(labels)))
    found = []
    while pages.has_next:
        found += await pages.next_items()
    return found


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

    def __init__(self, options: E2BOptions, template: str) -> None:
        self._e2b = sdk("e2b", "e2b")
        self._options = options
        self._template = template
        self._sandbox: Any = None
        self._labels: dict[str, str] = {}

    @property
    def sandbox_id(self) -> str:
        """E2B's id of the sandbox."""
        return "" if self._sandbox is None else str(self._sandbox.sandbox_id)

    async def open(self, labels: Mapping[str, str]) -> None:
        """Create the sandbox. The library itself repeats a request that was put off (429, 503)."""
        self._labels = dict(labels)
        try:
            self._sandbox = await self._e2b.AsyncSandbox.create(
                template=self._template,
                timeout=self._options.timeout_seconds,
                metadata={**self._options.metadata, **labels},
            )
        except Exception as error:
            raise BoxError(
                "environment_start_failed",
                f"E2B gave no sandbox of {self._template!r}: {type(error).__name__}: {error}",
            ) from error

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
        await self._sandbox.set_timeout(self._options.timeout_seconds)

    async def exists(self) -> bool:
        """E2B still has the sandbox running."""
        try:
            found = await self._sandbox.get_info()
        except self._e2b.NotFoundException:
            return False
        return str(getattr(found.state, "value", found.state)) == "running"

    async def close(self) -> None:
        """Kill the sandbox, and look until none of this box is listed any more.

        By the label, since a sandbox may have been made whose id never reached us.
        """
        if not self._labels:
            return
        try:
            for _ in range(20):
                found = await _list(self._e2b, {"ageval.box": self._labels["ageval.box"]})
                if not found:
                    return
                for sandbox in found:
                    await self._e2b.AsyncSandbox.kill(sandbox.sandbox_id)
                await asyncio.sleep(0.1)
        except Exception as error:
            raise BoxError(
                "environment_stop_failed", f"E2B sandbox {self.sandbox_id}: {type(error).__name__}: {error}"
            ) from error
        raise BoxError("environment_stop_failed", f"E2B still lists the sandbox {self.sandbox_id}")

    async def disconnect(self) -> None:
        """Nothing to close: the library shares its connections."""
