"""From which image a box is made: one that exists, a recipe of the task, or our base."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ageval_boxes.docker_box._build import (
    archive_of,
    build_once,
    context_files,
    digest_of,
    image_id,
    in_background,
)
from ageval_boxes.docker_box._engine import Engine
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from ageval_boxes.docker_box._options import DockerOptions

BASE = "ageval-attempt:base"
#: Never part of a build: gold, the solution, evidence, and what is not worth hashing.
EXCLUDED = ("evaluation", "solution", ".ageval", ".git", "**/__pycache__", "**/*.pyc", "**/node_modules")
_RECIPE = Path(__file__).parent / "base" / "Dockerfile"
_FROM_BASE = re.compile(rf"(?im)^(\s*FROM\s+(?:--platform=\S+\s+)?){re.escape(BASE)}(?=\s|$)")


async def resolve(
    engine: Engine,
    *,
    image: str | None,
    recipe: Path | None,
    context: Path | None,
    platform: str | None,
    python_version: str | None,
    labels: Mapping[str, str],
) -> str:
    """The name of the image to use; pulled or built now if need be.

    `recipe` is a Dockerfile in `context`. Raises BoxError ``environment_image_unresolved`` with the
    engine's words.
    """
    if image is not None:
        if await image_id(engine, image) is None:
            await _pull(engine, image, platform)
        return image
    if recipe is None or context is None:
        return await base(engine, platform, python_version, labels)
    text = await asyncio.to_thread(recipe.read_text, "utf-8")
    origin = ""
    if _FROM_BASE.search(text):
        origin_tag = await base(engine, platform, python_version, labels)
        origin = await image_id(engine, origin_tag) or ""
        text = _FROM_BASE.sub(rf"\g<1>{origin_tag}", text)
    files = await asyncio.to_thread(context_files, context, EXCLUDED)
    digest = await asyncio.to_thread(digest_of, text, context, files, f"{platform}\0{origin}")
    tag = f"ageval-task:{digest[:16]}"
    build = {"labels": {**labels, "ageval.image": digest}}

    def packed() -> io.BufferedRandom:
        return archive_of(text, context, files)

    await build_once(engine, tag, packed, platform, build)
    return tag


def recipe_of(task_root: Path | None, options: DockerOptions) -> tuple[Path | None, Path | None]:
    """The task's recipe and the directory that its COPY sees, if it has one.

    Raises BoxError ``environment_image_unresolved`` for options that name none.
    """
    if task_root is None:
        return None, None
    root = task_root.resolve()
    recipe = task_root / (options.dockerfile or "environment/Dockerfile")
    if options.dockerfile and not (recipe.is_file() and recipe.resolve().is_relative_to(root)):
        raise BoxError(
            "environment_image_unresolved",
            f"the option dockerfile: no file {options.dockerfile} in {task_root}",
        )
    if not recipe.is_file():
        return None, None
    context = task_root / (options.build_context or "")
    if not (context.is_dir() and context.resolve().is_relative_to(root)):
        raise BoxError(
            "environment_image_unresolved",
            f"the option build_context: no directory {options.build_context} in {task_root}",
        )
    return recipe, context


async def base(
    engine: Engine, platform: str | None, python_version: str | None, labels: Mapping[str, str]
) -> str:
    """The name of the base image; built from our recipe if it is not there."""
    tag = BASE if python_version is None else f"{BASE}-py{python_version}"
    if await image_id(engine, tag) is not None:
        return tag
    text = _RECIPE.read_text("utf-8")
    arguments = {} if python_version is None else {"BASE": f"python:{python_version}-slim"}
    try:
        build = {"labels": {**labels, "ageval.image": "base"}, "buildargs": arguments}
        await build_once(engine, tag, lambda: archive_of(text), platform, build)
    except BoxError as error:
        if error.title != "environment_image_unresolved":
            raise
        raise BoxError(
            "environment_image_unresolved",
            f"the base image {tag} is not here and cannot be built: {error.message}; load one that has "
            f"sh, grep and python3 under that name (docker load, docker import), or set the option image",
            detail=error.detail,
        ) from error
    return tag


async def _pull(engine: Engine, image: str, platform: str | None) -> None:
    def pull() -> None:
        repository, digest, rest = image.partition("@")
        name, colon, tag = repository.rpartition(":")
        if digest:
            name, tag = repository, rest
        elif not colon or "/" in tag:
            name, tag = repository, "latest"
        steps = engine.client.api.pull(name, tag=tag, platform=platform, stream=True, decode=True)
        # To the end also after an error, so that the connection can be used again.
        for error in [str(step["error"]) for step in steps if "error" in step]:
            raise BoxError("environment_image_unresolved", error)

    try:
        await in_background(pull, lambda: None)
    except BoxError as error:
        if error.title in ("environment_daemon_unreachable", "environment_disk_full"):
            raise
        where = f" for {platform}" if platform else ""
        raise BoxError(
            "environment_image_unresolved",
            f"the image {image}{where} is not here and cannot be pulled: {error.message}",
        ) from error
