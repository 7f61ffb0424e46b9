"""One build on the engine: what goes into it, its digest, and that each tag is built by one process.

What is built has a tag made of the digest of all that goes into it, so that a change builds anew and
nothing else does. The others who want a tag that is being built wait and find it made.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ageval_boxes._locks import locked
from ageval_boxes.docker_box._engine import Engine, Image, call, failure
from pytest_ageval.errors import BoxError

#: Seconds for one build.
BUILD_SECONDS = 3600


async def image_of(engine: Engine, name: str) -> Image | None:
    """The image `name`, which is asked for once in a process; None if it is not on the engine."""
    from docker.errors import ImageNotFound, NotFound

    known = engine.memory.images.get(name)
    if known is not None:
        return known
    try:
        found = await call(engine.client.api.inspect_image, name)
    except BoxError as error:
        if isinstance(error.__cause__, (ImageNotFound, NotFound)):
            return None
        raise
    config = found.get("Config") or {}
    image = Image(str(found["Id"]), str(config.get("User") or ""), str(config.get("WorkingDir") or ""))
    engine.memory.images[name] = image
    return image


async def image_id(engine: Engine, name: str) -> str | None:
    """The id of the image `name`; None if it is not on the engine."""
    image = await image_of(engine, name)
    return None if image is None else image.id


async def build_once(
    engine: Engine,
    tag: str,
    packed: Callable[[], io.BufferedRandom],
    platform: str | None,
    more: Mapping[str, Any],
) -> None:
    """Build the archive of `packed` as `tag`, unless it is there. `more` are arguments of the SDK's build.

    Raises BoxError ``environment_image_unresolved`` or ``environment_disk_full`` with the engine's words.
    """
    if await image_id(engine, tag) is not None:
        return
    async with locked("docker", tag):
        if await image_id(engine, tag) is None:
            await _build(engine, tag, packed, platform, more)


async def _build(
    engine: Engine,
    tag: str,
    packed: Callable[[], io.BufferedRandom],
    platform: str | None,
    more: Mapping[str, Any],
) -> None:
    said: list[str] = []
    stopped = threading.Event()

    def build() -> None:
        with packed() as archive:
            steps: Iterator[dict[str, Any]] = engine.client.api.build(
                fileobj=archive,
                custom_context=True,
                tag=tag,
                platform=platform,
                rm=True,
                forcerm=True,
                decode=True,
                timeout=BUILD_SECONDS,
                **more,
            )
            errors = []
            for step in steps:
                if stopped.is_set():
                    raise BoxError("environment_image_unresolved", "the build was cancelled")
                said.append(str(step.get("stream", "")))
                errors += [str(step["error"]).strip()] if "error" in step else []
            if errors:
                raise BoxError("environment_image_unresolved", errors[0])

    try:
        await in_background(build, stopped.set)
    except BoxError as error:
        if error.title == "environment_daemon_unreachable":
            raise
        full = "no space left on device" in error.message.lower()
        step = next((text for text in reversed(said) if text.startswith("Step ")), "").strip()
        raise BoxError(
            "environment_disk_full" if full else "environment_image_unresolved",
            f"building {tag}: {error.message}" + (f" ({step[:200]})" if step else ""),
            detail="".join(said)[-4000:] or None,
        ) from error


async def in_background(work: Callable[[], None], cancel: Callable[[], None]) -> None:
    """Run something long in a thread that does not keep this process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except Exception as found:
            error = failure(found, "environment_image_unresolved")
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, daemon=True, name="ageval-docker-image").start()
    try:
        await done
    except asyncio.CancelledError:
        cancel()
        raise


# -- what goes into a build ------------------------------------------------------------------------


def context_files(context: Path, excluded: Sequence[str] = ()) -> list[str]:
    """What a build sees of `context`: all that neither its ``.dockerignore`` nor `excluded` leaves out."""
    from docker.utils.build import exclude_paths

    ignore = context / ".dockerignore"
    lines = ignore.read_text("utf-8").splitlines() if ignore.is_file() else []
    patterns = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    # Ours come last: no "!" of a task's own list brings gold back.
    return sorted(exclude_paths(str(context), [*patterns, *excluded], dockerfile=".dockerignore"))


def digest_of(recipe: str, context: Path, files: Sequence[str], more: str) -> str:
    """The digest of a build: its recipe, what `files` of its context hold, and `more`."""
    found = hashlib.sha256()

    def take(*parts: bytes) -> None:
        for part in parts:
            found.update(len(part).to_bytes(8, "big") + part)

    take(recipe.encode(), more.encode())
    for name in files:
        path = context / name
        info = path.lstat()
        if stat.S_ISLNK(info.st_mode):
            take(b"link", os.fsencode(name), os.fsencode(path.readlink()))
        elif stat.S_ISREG(info.st_mode):
            take(b"file", os.fsencode(name), oct(info.st_mode & 0o111).encode())
            with path.open("rb") as file:
                take(hashlib.file_digest(file, "sha256").digest())
        elif stat.S_ISDIR(info.st_mode):
            take(b"directory", os.fsencode(name))
    return found.hexdigest()


def archive_of(
    recipe: str,
    context: Path | None = None,
    files: Sequence[str] = (),
    *,
    name: str = "Dockerfile",
    prefix: str = "",
) -> io.BufferedRandom:
    """The context as the engine takes it, with the recipe as `name`, without times and owners.

    With `prefix` the context's files lie below that directory.
    """
    import tempfile

    archive = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            if prefix:
                _add_directory(tar, prefix)
            for file in files:
                inside = str(PurePosixPath(prefix, file))
                if context is not None and inside != name:
                    _add(tar, context / file, inside)
            data = recipe.encode()
            row = tarfile.TarInfo(name)
            row.size = len(data)
            tar.addfile(row, io.BytesIO(data))
    except BaseException:
        archive.close()
        raise
    archive.seek(0)
    return archive


def _add_directory(tar: tarfile.TarFile, name: str) -> None:
    row = tarfile.TarInfo(name)
    row.type, row.mode = tarfile.DIRTYPE, 0o755
    tar.addfile(row)


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    row = tar.gettarinfo(str(path), name)
    if row is None or not (row.isreg() or row.isdir() or row.issym() or row.islnk()):
        return
    row.uid = row.gid = 0
    row.uname = row.gname = ""
    row.mtime = 0
    if row.isreg():
        with path.open("rb") as file:
            tar.addfile(row, file)
    else:
        tar.addfile(row)
