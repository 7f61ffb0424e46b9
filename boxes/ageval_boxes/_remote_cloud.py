"""What all vendors of sandboxes have in common: accounts with labelled sandboxes that can be deleted."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ageval_boxes import _leftovers
from ageval_boxes._remote_owner import BOX, left_behind, of_attempt
from pytest_ageval.box import Leftover
from pytest_ageval.errors import BoxError

T = TypeVar("T")

#: Seconds that the vendor has to answer when all sandboxes of an account are looked at or removed.
_PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Found:
    """A sandbox of ours in an account.

    `labels` say whose it is now. `state` is ``running``, ``stopped`` (its files are there), or the
    vendor's word for what is neither.
    """

    sandbox_id: str
    labels: Mapping[str, str]
    state: str
    created: datetime.datetime | None = None


class Account(Protocol):
    """The sandboxes of an account at a vendor. Methods raise the exceptions of the vendor's library."""

    async def find(self, labels: Mapping[str, str]) -> list[Found]:
        """The sandboxes with all of `labels` that are not gone; of ours only."""
        ...

    async def look(self, sandbox_id: str) -> Found | None:
        """One sandbox; None if it is gone."""
        ...

    async def delete(self, sandbox_id: str) -> None:
        """Ask for its end. One that is gone is as good."""
        ...

    async def close(self) -> None:
        """Close our connections. Idempotent."""
        ...


async def remove(account: Account, kind: str, box_id: str) -> None:
    """Delete the sandbox of a box, and look until none of that box is listed any more.

    By its label, since a sandbox may have been made whose id never reached us. BoxError
    ``environment_stop_failed`` if it stays.
    """
    try:
        for _ in range(20):
            found = await account.find({BOX: box_id})
            if not found:
                return
            for sandbox in found:
                await account.delete(sandbox.sandbox_id)
            await asyncio.sleep(0.1)
    except Exception as error:
        raise BoxError(
            "environment_stop_failed", f"{kind} box {box_id}: {type(error).__name__}: {error}"
        ) from error
    raise BoxError("environment_stop_failed", f"{kind}: the sandbox of box {box_id} is listed still")


def leftovers(kind: str, open_account: Callable[[], Account], labels: Mapping[str, str]) -> list[Leftover]:
    """The sandboxes with `labels`, as `Box.leftovers` says them.

    One that another machine's process made counts as one whose owner lives: it is not ours to remove.
    """

    async def look(account: Account) -> list[Leftover]:
        found = await account.find(labels)
        listed = {one.labels[BOX] for one in found}
        return [_as_leftover(kind, one) for one in found] + [
            left for left, box_id in _directories(kind, labels) if box_id not in listed
        ]

    return _asking(kind, open_account, look)


def reap(kind: str, open_account: Callable[[], Account], labels: Mapping[str, str]) -> list[str]:
    """Delete the sandboxes with `labels` whose owner on this machine is gone (or is us), and verify."""

    async def sweep(account: Account) -> list[str]:
        removed = []
        for found in await account.find(labels):
            if left_behind(found.labels):
                await remove(account, kind, found.labels[BOX])
                left = _as_leftover(kind, found)
                remove_directories(kind, found.labels[BOX])
                removed.append(f"{kind} box of {left.labels.get('ageval.attempt', '?')}: {left.where}")
        for left, box_id in _directories(kind, labels):
            if not await account.find({BOX: box_id}):
                remove_directories(kind, box_id)
                removed.append(f"{kind} box of {left.labels.get('ageval.attempt', '?')}: {left.where}")
        return removed

    return _asking(kind, open_account, sweep)


def remove_directories(kind: str, box_id: str) -> None:
    """Remove the directories on this machine of the box `box_id` whose owner is dead, or is us."""
    for directory, found in _leftovers.abandoned(kind, {}):
        if found.get("id") == box_id:
            _leftovers.remove_directory(directory)


def _directories(kind: str, labels: Mapping[str, str]) -> list[tuple[Leftover, str]]:
    """Such directories of boxes with `labels`, and the ids of these boxes."""
    rows = []
    for directory, found in _leftovers.abandoned(kind, labels):
        try:
            age = max(0.0, time.time() - directory.stat().st_mtime)
        except OSError:  # its owner was us, and has just removed it
            continue
        rows.append((Leftover(kind, str(directory), found["labels"], age), str(found.get("id"))))
    return rows


def _as_leftover(kind: str, found: Found) -> Leftover:
    age = None if found.created is None else max(0.0, time.time() - found.created.timestamp())
    where = f"sandbox {found.sandbox_id}"
    return Leftover(kind, where, of_attempt(found.labels), age, not left_behind(found.labels))


def _asking(
    kind: str, open_account: Callable[[], Account], work: Callable[[Account], Awaitable[list[T]]]
) -> list[T]:
    async def main() -> list[T]:
        account = open_account()
        try:
            return await work(account)
        finally:
            await account.close()

    try:
        return asyncio.run(asyncio.wait_for(main(), _PATIENCE))
    except BoxError:
        raise
    except Exception as error:
        raise BoxError("environment_connection_lost", f"{kind}: {type(error).__name__}: {error}") from error


def when(text: str | datetime.datetime | None) -> datetime.datetime | None:
    """A vendor's time; None when there is none, or it cannot be read."""
    if isinstance(text, str):
        try:
            text = datetime.datetime.fromisoformat(text)
        except ValueError:
            return None
    if text is not None and text.tzinfo is None:
        return text.replace(tzinfo=datetime.UTC)
    return text
