"""What plugins add to the image of a box: stacked on it, each under a tag of its content."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from ageval_boxes.docker_box._build import archive_of, build_once, context_files, digest_of, image_id
from ageval_boxes.docker_box._engine import Engine
from pytest_ageval.box import ROOT, ImageLayer
from pytest_ageval.errors import BoxError

log = logging.getLogger("pytest_ageval.images")

#: Our recipe's name in the archive, so that a context may hold a ``Dockerfile`` of its own.
_RECIPE = ".ageval.Dockerfile"
#: Where the files of a layer with `dest` lie in the archive, apart from the recipe.
_FILES = "files"
_FROM = re.compile(r"(?im)^\s*FROM\s")


def check(layer: ImageLayer) -> None:
    """Raises BoxError ``environment_layer_invalid`` for a layer that cannot be built or shown."""
    why = _why_not(layer)
    if why is not None:
        raise BoxError("environment_layer_invalid", f"the image layer {layer.name}: {why}")


def _why_not(layer: ImageLayer) -> str | None:
    if layer.context is not None and not layer.context.is_dir():
        return f"its context {layer.context} is no directory"
    if layer.dest is None:
        if _FROM.search(layer.recipe):
            return "its recipe may have no FROM: it is stacked on the image of the task"
        return None if layer.recipe.strip() else "it has neither a recipe nor a dest"
    if layer.recipe.strip():
        return "with dest it can have no recipe"
    if layer.context is None:
        return "with dest it needs a context"
    path = PurePosixPath(layer.dest)
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2 or "\0" in layer.dest:
        return f"dest {layer.dest!r} is not an absolute path without '..'"
    if path == PurePosixPath(ROOT) or PurePosixPath(ROOT) in path.parents:
        return f"dest {layer.dest} is below {ROOT}, which belongs to the attempt"
    return None


async def stack(
    engine: Engine,
    image: str,
    layers: Sequence[ImageLayer],
    *,
    platform: str | None,
    labels: Mapping[str, str],
) -> str:
    """The name of `image` with `layers` on it, in their order; built now if need be.

    A tag is the digest of the image below, the recipe, the content and the platform. Raises BoxError
    ``environment_image_unresolved`` with the layer's name and the engine's words.
    """
    for layer in layers:
        image = await _add(engine, image, layer, platform, labels)
    return image


async def _add(
    engine: Engine, image: str, layer: ImageLayer, platform: str | None, labels: Mapping[str, str]
) -> str:
    below = await image_id(engine, image) or image
    # Root, whoever the image names: the container is root's anyway, and its commands say their user.
    text = f"FROM {image}\nUSER 0:0\n{_body(layer)}\n"
    about = json.dumps([below, platform, layer.dest])
    digest = await asyncio.to_thread(_digest, layer, about)
    tag = f"ageval-layer:{digest[:16]}"

    def packed() -> io.BufferedRandom:
        log.info("building the image layer %s (%s)", layer.name, tag)
        if layer.context is None:
            return archive_of(text, name=_RECIPE)
        prefix = "" if layer.dest is None else _FILES
        files = context_files(layer.context)
        return archive_of(text, layer.context, files, name=_RECIPE, prefix=prefix)

    build = {"labels": {**labels, "ageval.image": digest}, "dockerfile": _RECIPE}
    try:
        await build_once(engine, tag, packed, platform, build)
    except BoxError as error:
        raise BoxError(
            error.title, f"the image layer {layer.name}: {error.message}", detail=error.detail
        ) from error
    return tag


def _body(layer: ImageLayer) -> str:
    if layer.dest is None:
        return layer.recipe
    return f"COPY {json.dumps([f'{_FILES}/', f'{layer.dest}/'])}"


def _digest(layer: ImageLayer, about: str) -> str:
    """What the layer is: its recipe, and the bytes of its context or the key that stands for them."""
    if layer.context is None or layer.key is not None:
        words = json.dumps([layer.recipe, layer.key, about])
        return hashlib.sha256(words.encode()).hexdigest()
    return digest_of(layer.recipe, layer.context, context_files(layer.context), about)


def shown(layers: Sequence[ImageLayer]) -> list[tuple[Path, str]]:
    """Which directory of the host is to be seen where, for a box that shares the host's files."""
    return [
        (layer.context, layer.dest)
        for layer in layers
        if layer.dest is not None and layer.context is not None
    ]
