"""Snapshots of Daytona: looked up, and built with Daytona's own library when they are missing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ageval_boxes import _remote_recipe as recipes
from ageval_boxes._files import remove_tree
from ageval_boxes._remote_build import BUILD_SECONDS, BuildLog, once
from ageval_boxes._remote_sandbox import sdk
from pytest_ageval.box import ImageLayer
from pytest_ageval.errors import BoxError

#: States of a snapshot that no time mends, and those that time changes.
_FAILED = ("error", "build_failed")
_COMING = ("building", "pending", "pulling", "snapshotting", "removing")
#: Seconds between two looks at a snapshot that another machine builds.
_LOOK = 2.0
#: As whom commands run in a snapshot that says nothing of a user.
_USER = "root"


class Snapshots:
    """The snapshots whose names begin with `prefix`. `build`: missing ones are built, in `staging`."""

    def __init__(self, client: Any, prefix: str, *, build: bool, target: str | None, staging: Path) -> None:
        self._library = sdk("daytona", "daytona")
        self._client = client
        self._prefix = prefix
        self._build = build
        self._target = target
        self._staging = staging

    async def resolve(self, recipe: recipes.Recipe, layers: Sequence[ImageLayer]) -> str:
        """The name of the snapshot of `recipe` with `layers`, built now if need be.

        BoxError ``environment_image_unresolved`` when it may not or cannot be built.
        """
        digest = recipe.digest
        for layer in layers:
            digest = recipes.stacked(digest, layer)
        name = f"{self._prefix}-{digest[:12]}"
        what = " with the layer ".join([recipe.source, *(layer.name for layer in layers)])

        async def build(said: BuildLog) -> None:
            await self._make(name, recipe, layers, said)

        missing = (
            f"there is no Daytona snapshot {name!r} for {what}, and the option build is false; "
            f"leave build out, or set snapshot or image"
        )
        await once(
            "daytona",
            name,
            there=lambda: self._usable(name),
            build=build,
            missing=None if self._build else missing,
        )
        return name

    async def _state(self, name: str) -> str | None:
        try:
            found = await self._client.snapshot.get(name)
        except self._library.DaytonaNotFoundError:
            return None
        return str(getattr(found.state, "value", found.state))

    async def _usable(self, name: str) -> bool:
        """The snapshot can be used. Waits for one that is on its way, and wakes one that sleeps."""
        async with asyncio.timeout(BUILD_SECONDS):
            state = await self._state(name)
            while state in _COMING:
                await asyncio.sleep(_LOOK)
                state = await self._state(name)
        if state == "inactive":
            await self._client.snapshot.activate(name)
        return state in ("active", "inactive")

    async def _make(
        self, name: str, recipe: recipes.Recipe, layers: Sequence[ImageLayer], said: BuildLog
    ) -> None:
        # What a killed process asked for may be done by now.
        if await self._usable(name):
            return
        if await self._state(name) in _FAILED:
            await self._client.snapshot.delete(name)
            await self._gone(name)
        directory = self._staging
        try:
            dockerfile = await asyncio.to_thread(recipes.stage, recipe, layers, directory, user=_USER)
            image = self._library.Image.from_dockerfile(dockerfile, strict_context=True)
            params = self._library.CreateSnapshotParams(name=name, image=image, region_id=self._target)
            await self._client.snapshot.create(params, on_logs=said, timeout=BUILD_SECONDS)
        finally:
            await asyncio.to_thread(remove_tree, directory)

    async def _gone(self, name: str) -> None:
        for _ in range(60):
            if await self._state(name) is None:
                return
            await asyncio.sleep(0.5)
        raise BoxError("environment_image_unresolved", f"Daytona still has the failed snapshot {name}")
