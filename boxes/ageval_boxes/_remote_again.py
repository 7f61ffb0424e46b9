"""A box in a vendor's cloud that another process opened: found again, taken over, ended, swept away."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import importlib.util
import itertools
import os
import secrets
from collections.abc import Mapping
from typing import Any

from ageval_boxes import _remote_cloud as cloud
from ageval_boxes import _remote_scripts as scripts
from ageval_boxes._locks import locked
from ageval_boxes._remote_link import Link, Report
from ageval_boxes._remote_owner import BOX, OWNER, marks, owner_lives
from ageval_boxes._remote_sandbox import PATIENCE, RemoteSandbox
from pytest_ageval.box import Leftover, ProbeStatus
from pytest_ageval.errors import BoxError


class FoundAgain(RemoteSandbox):
    """The methods of a remote box that are about sandboxes of other processes."""

    @classmethod
    @abc.abstractmethod
    def _account(cls) -> cloud.Account:
        """The account of `key_name`; called in a running loop."""

    # -- one of them -----------------------------------------------------------------------------

    async def probe(self, handle: Mapping[str, Any]) -> ProbeStatus:
        """Ask the vendor for the sandbox, and the sandbox for commands that still run."""
        await self.preflight()
        found = await self._look(handle)
        if isinstance(found, ProbeStatus):
            return found
        if (owned := _owned(found)) is not None:
            return owned
        if found.state == "stopped":
            return ProbeStatus("idle", f"sandbox {found.sandbox_id} is stopped; its files are there")
        if running := await self._commands_of(found):
            return ProbeStatus("busy", f"{len(running)} commands of it still run")
        return ProbeStatus("idle", f"sandbox {found.sandbox_id}, its owner is gone")

    async def _look(self, handle: Mapping[str, Any]) -> cloud.Found | ProbeStatus:
        """The sandbox that `handle` names; why there is none."""
        sandbox_id, box_id = str(handle.get("sandbox_id") or ""), str(handle.get("id") or "")
        if handle.get("kind") != self.kind or not sandbox_id or not box_id:
            return ProbeStatus("absent", f"the handle names no {self.kind} sandbox")
        account = self._account()
        try:
            found = await account.look(sandbox_id)
        except Exception as error:
            raise BoxError(
                "environment_connection_lost", f"{self.kind}: {type(error).__name__}: {error}"
            ) from error
        finally:
            await account.close()
        if found is None:
            return ProbeStatus("absent", f"there is no sandbox {sandbox_id}")
        if found.labels.get(BOX) != box_id:
            return ProbeStatus("absent", f"sandbox {sandbox_id} is not that of box {box_id}")
        if found.state not in ("running", "stopped"):
            return ProbeStatus("absent", f"sandbox {sandbox_id} is {found.state}")
        return found

    async def _commands_of(self, found: cloud.Found) -> list[str]:
        link = self._connect()
        try:
            await link.join(found.sandbox_id)
            return await _busy(link, found.labels[BOX])
        except BoxError:
            raise
        except Exception as error:
            raise BoxError(
                "environment_connection_lost", f"{self.kind} sandbox {found.sandbox_id}: {error}"
            ) from error
        finally:
            await link.disconnect()

    async def attach(self, handle: Mapping[str, Any]) -> None:
        """Take over a sandbox whose owner is gone, and extend its time from now on.

        Its labels become those of this box. A sandbox of another machine is not taken over: whether its
        owner lives cannot be known here.
        """
        if self._state != "new":
            raise BoxError("environment_already_started", f"this box is {self._state}")
        sandbox_id, box_id = str(handle.get("sandbox_id") or ""), str(handle.get("id") or "")
        # Two processes of this user do not take over the same sandbox.
        async with locked(self.kind, f"attach {sandbox_id}"):
            status = await self.probe(handle)
            if status.state != "idle":
                raise BoxError(
                    f"environment_attach_{'busy' if status.state == 'busy' else 'invalid'}", status.detail
                )
            await asyncio.to_thread(self._make_work_dir, box_id)
            link = self._connect()
            try:
                await link.join(sandbox_id)
                await link.own(marks(self.spec.labels, box_id))
            except Exception as error:
                # Not ours yet: `stop` must not end it.
                await link.disconnect()
                raise BoxError(
                    "environment_attach_invalid", f"{self.kind} sandbox {sandbox_id}: {error}"
                ) from error
        self._id, self._link, self._state, self._asked = box_id, link, "started", True
        # What its first owner left running keeps its numbers for itself.
        self._numbers = itertools.count(secrets.randbits(40))
        self._spawn(self._keep_alive())
        await self._call(lambda token: scripts.make_directory(token, box_id))

    async def discard(self, handle: Mapping[str, Any]) -> None:
        """Delete the sandbox that `handle` names, and verify it."""
        await self.preflight()
        if handle.get("kind") != self.kind:
            raise BoxError("environment_attach_invalid", f"the handle names no {self.kind} sandbox")
        found = await self._look(handle)
        if isinstance(found, ProbeStatus):
            await asyncio.to_thread(cloud.remove_directories, self.kind, str(handle.get("id") or ""))
            return
        if (owned := _owned(found)) is not None:
            raise BoxError("environment_attach_busy", owned.detail)
        account = self._account()
        try:
            await cloud.remove(account, self.kind, found.labels[BOX])
        finally:
            await account.close()
        await asyncio.to_thread(cloud.remove_directories, self.kind, found.labels[BOX])

    # -- all of them -----------------------------------------------------------------------------

    @classmethod
    def _can_ask(cls) -> bool:
        return bool(os.environ.get(cls.key_name)) and importlib.util.find_spec(cls.kind) is not None

    @classmethod
    def leftovers(cls, labels: Mapping[str, str]) -> list[Leftover]:
        """Sandboxes of this account with these labels. None without the library or the key."""
        return cloud.leftovers(cls.kind, cls._account, labels) if cls._can_ask() else []

    @classmethod
    def reap(cls, labels: Mapping[str, str]) -> list[str]:
        """Delete sandboxes of this account with these labels whose owner on this machine is gone (or is us).

        Without the library or the key there is nothing that could be asked.
        """
        return cloud.reap(cls.kind, cls._account, labels) if cls._can_ask() else []


def _owned(found: cloud.Found) -> ProbeStatus | None:
    lives = owner_lives(found.labels)
    if lives is None:
        where = found.labels.get(OWNER, "").partition("/")[0] or "unknown"
        return ProbeStatus("busy", f"its owner is a process of another machine ({where})")
    return ProbeStatus("busy", "its owner still lives") if lives else None


async def _busy(link: Link, box_id: str) -> list[str]:
    report = Report(secrets.token_hex(6))
    line = scripts.as_line(scripts.busy(report.token, box_id).encode())
    command = await link.command(line, stdout=report.feed, stderr=report.note)
    try:
        await report.end(command, PATIENCE)
    finally:
        closing = asyncio.ensure_future(command.close())
        with contextlib.suppress(Exception):  # the connection goes with the link
            await asyncio.wait({closing}, timeout=5)
    return report.of("K")
