"""An ssh box of another process: what became of it, taking it over, ending it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ageval_boxes import _ssh_leftovers
from ageval_boxes._adoption import busy
from ageval_boxes._ssh_connection import Address, host, in_thread
from ageval_boxes._ssh_leftovers import Note, noted
from ageval_boxes._ssh_place import look
from pytest_ageval.box import ProbeStatus
from pytest_ageval.errors import BoxError

_T = TypeVar("_T")


async def _twice(work: Callable[[], Awaitable[_T]]) -> _T:
    """Try again with a new connection when the old one turns out to be lost."""
    try:
        return await work()
    except BoxError as error:
        if error.title != "environment_connection_lost":
            raise
        return await work()


def _known(handle: Mapping[str, Any], here: Address) -> Note:
    note = Note.of(handle)
    there = note.address
    if (here.host, here.port, here.user) != (there.host, there.port, there.user):
        raise BoxError("environment_attach_invalid", f"the box is on {there}, and the options name {here}")
    return note


async def probe(handle: Mapping[str, Any], address: Address) -> ProbeStatus:
    """What became of the box of `handle`. Raises BoxError."""
    if handle.get("kind") != "ssh":
        return ProbeStatus("absent", "not a handle of the kind ssh")
    note = _known(handle, address)
    why = note.owner
    if why and noted(note.box_id):
        return ProbeStatus("busy", why)
    # Without a note, an owner that lives has stopped the box, or keeps its notes elsewhere.
    at = host(address)
    processes = await _twice(lambda: in_thread(lambda: look(at, note)))
    if processes is None:
        return ProbeStatus("absent", f"it is not on {address} any more")
    if why:
        return ProbeStatus("busy", why)
    if processes:
        return ProbeStatus("busy", f"still running: {', '.join(processes[:5])}")
    return ProbeStatus("idle")


async def take_over(
    handle: Mapping[str, Any], address: Address, labels: Mapping[str, str], work: Path, *, container: bool
) -> Note:
    """The note of the box of `handle`, which is this process's from now on. Raises BoxError."""
    old = _known(handle, address)
    if bool(old.data.get("container")) != container:
        what = "a directory" if container else "a container"
        raise BoxError("environment_attach_invalid", f"the box is {what}; the option image says otherwise")
    status = await probe(handle, address)
    if status.state == "absent":
        raise BoxError("environment_attach_invalid", status.detail)
    if status.state == "busy":
        raise busy(status.detail)
    note = Note.new(old.box_id, labels, address)
    await in_thread(lambda: _ssh_leftovers.claim(old, note))
    if old.data.get("work_dir") != str(work):
        await asyncio.to_thread(_ssh_leftovers.remove_work, old.data)
    note.write(work_dir=str(work))
    return note


async def discard(handle: Mapping[str, Any], address: Address) -> None:
    """End and remove the box of `handle`. Raises BoxError."""
    old = _known(handle, address)
    if not noted(old.box_id) and (await probe(handle, address)).state == "absent":
        return
    note = Note.new(old.box_id, old.data.get("labels") or {}, address)
    await in_thread(lambda: _ssh_leftovers.claim(old, note))
    await end(note, keep=False)
    await asyncio.to_thread(_ssh_leftovers.remove_work, old.data)


async def end(note: Note, *, keep: bool) -> None:
    """Kill everything in a box of this process and remove its files on the host unless `keep`; forget it.

    BoxError ``environment_stop_failed`` if the host is out of reach: it is noted to be removed later.
    """
    at = host(note.address)
    try:
        await _twice(lambda: in_thread(lambda: _ssh_leftovers.remove(at, note, keep=keep, timeout=6.0)))
    except BoxError as error:
        note.write(orphan=True)
        raise BoxError(
            "environment_stop_failed",
            f"{note.data.get('root', 'a box')} on {note.address} is still there ({error.message}); it is "
            "removed when the host is used next, or by: pytest-ageval clean",
        ) from error
    note.forget()
