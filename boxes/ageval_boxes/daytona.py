"""The kind ``daytona``: a sandbox of Daytona (https://daytona.io), by their library (extra ``daytona``).

The key is read from ``DAYTONA_API_KEY`` by the library and goes nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from ageval_boxes import _remote_recipe as recipes
from ageval_boxes._daytona_link import DaytonaAccount, DaytonaLink
from ageval_boxes._daytona_snapshot import Snapshots
from ageval_boxes._remote import RemoteBox
from ageval_boxes._remote_link import Link
from pytest_ageval.errors import BoxError

#: Tags that mean another image tomorrow; Daytona refuses or caches them.
_FLOATING = frozenset({"latest", "lts", "stable"})


class DaytonaOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The options of a daytona box.

    `snapshot`: the snapshot to use, exactly. `image`: an image with a fixed tag instead. Without both,
    a task with an ``environment/Dockerfile`` uses the snapshot ``<snapshot_name>-<digest>`` of it and of
    what it copies, and any other the account's default snapshot.
    `build`: a snapshot that is missing is built.
    `timeout_seconds`: after how long without us the sandbox is stopped, rounded up to minutes.
    `ephemeral`: a stopped sandbox is deleted.
    `target`: the region; the library's own setting when not given.
    """

    snapshot: str | None = None
    snapshot_name: str = "ageval-attempt"
    image: str | None = None
    build: bool = True
    timeout_seconds: int = 900
    ephemeral: bool = True
    target: str | None = None


class DaytonaBox(RemoteBox):
    """One Daytona sandbox."""

    kind = "daytona"
    at_once = 10  # of the first tier, with sandboxes of the default size
    Options = DaytonaOptions
    key_name = "DAYTONA_API_KEY"
    keys_at = "https://app.daytona.io/dashboard/keys"

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

    @classmethod
    def _refusal(cls, options: DaytonaOptions) -> str | None:
        if options.image and options.snapshot:
            return "snapshot and image exclude each other"
        if options.image and "@" not in options.image:
            tag = options.image.rpartition("/")[2].partition(":")[2]
            if not tag or tag in _FLOATING:
                return f"the image {options.image!r} needs a fixed tag"
        return super()._refusal(options)

    def _connect(self) -> DaytonaLink:
        options = self.options
        return DaytonaLink(
            timeout_seconds=options.timeout_seconds,
            ephemeral=options.ephemeral,
            target=options.target,
            image=options.image,
        )

    async def _image(self, link: Link) -> str | None:
        assert isinstance(link, DaytonaLink)
        recipe = await self._recipe()
        if recipe is None:
            return self.options.snapshot  # type: ignore[no-any-return]
        options = self.options
        snapshots = Snapshots(
            link.client,
            options.snapshot_name,
            build=options.build,
            target=options.target,
            # A directory of the box: it is found and removed when we are killed.
            staging=self.spec.work_dir / "snapshot",
        )
        return await snapshots.resolve(recipe, self.spec.layers)

    async def _recipe(self) -> recipes.Recipe | None:
        """What a snapshot of ours is made from; None where none is needed."""
        options, layers = self.options, self.spec.layers
        if options.snapshot:
            # What is only a directory is an agent's install, which can be made in the box too.
            needed = [layer.name for layer in layers if layer.recipe]
            if needed:
                raise BoxError(
                    "environment_image_unresolved",
                    f"nothing can be added to the snapshot {options.snapshot!r}, and {', '.join(needed)} "
                    f"must be; use image, or leave snapshot out",
                )
            if layers:
                names = ", ".join(layer.name for layer in layers)
                self.warnings.append(f"{names}: not put into the snapshot {options.snapshot!r}")
            return None
        if options.image:
            return recipes.of_image(options.image) if layers else None
        recipe = await asyncio.to_thread(recipes.of_task, self.spec.task_root)
        return recipe or (recipes.of_base() if layers else None)

    @classmethod
    def _account(cls) -> DaytonaAccount:
        return DaytonaAccount()
