"""From which image a box is made: one that exists, a recipe of the task, or our base.

What is built has a tag made of the digest of all that goes into it, so that a change builds anew and
nothing else does. One process builds a tag at a time; the others wait and find it made.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import io
import os
import re
import stat
import tarfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ageval_boxes.docker_box._engine import Engine, call, failure
from pytest_ageval.box import cache_root
from pytest_ageval.errors import BoxError

BASE = "ageval-attempt:base"
#: Never part of a build: gold, the solution, evidence, and what is not worth hashing.
EXCLUDED = ("evaluation", "solution", ".ageval", ".git", "**/__pycache__", "**/*.pyc", "**/node_modules")
#: Seconds for one build.
BUILD_SECONDS = 3600
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
        if await _image_id(engine, image) is None:
            await _pull(engine, image, platform)
        return image
    if recipe is None or context is None:
        return await base(engine, platform, python_version, labels)
    text = await asyncio.to_thread(recipe.read_text, "utf-8")
    origin = ""
    if _FROM_BASE.search(text):
        origin_tag = await base(engine, platform, python_version, labels)
        origin = await _image_id(engine, origin_tag) or ""
        text = _FROM_BASE.sub(rf"\g<1>{origin_tag}", text)
    digest, files = await asyncio.to_thread(_digest, text, context, f"{platform}\0{origin}")
    tag = f"ageval-task:{digest[:16]}"
    build = {"labels": {**labels, "ageval.image": digest}}

    def packed() -> io.BufferedRandom:
        return _archive(text, context, files)

    await _build_once(engine, tag, packed, platform, build)
    return tag


async def base(
    engine: Engine, platform: str | None, python_version: str | None, labels: Mapping[str, str]
) -> str:
    """The name of the base image; built from our recipe if it is not there."""
    tag = BASE if python_version is None else f"{BASE}-py{python_version}"
    if await _image_id(engine, tag) is not None:
        return tag
    text = _RECIPE.read_text("utf-8")
    arguments = {} if python_version is None else {"BASE": f"python:{python_version}-slim"}
    try:
        build = {"labels": {**labels, "ageval.image": "base"}, "buildargs": arguments}
        await _build_once(engine, tag, lambda: _archive(text, None, ()), platform, build)
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


async def _image_id(engine: Engine, name: str) -> str | None:
    from docker.errors import ImageNotFound, NotFound

    try:
        found = await call(engine.client.api.inspect_image, name)
    except BoxError as error:
        if isinstance(error.__cause__, (ImageNotFound, NotFound)):
            return None
        raise
    return str(found["Id"])


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
        await _in_background(pull, lambda: None)
    except BoxError as error:
        if error.title in ("environment_daemon_unreachable", "environment_disk_full"):
            raise
        where = f" for {platform}" if platform else ""
        raise BoxError(
            "environment_image_unresolved",
            f"the image {image}{where} is not here and cannot be pulled: {error.message}",
        ) from error


async def _build_once(
    engine: Engine,
    tag: str,
    packed: Callable[[], io.BufferedRandom],
    platform: str | None,
    more: Mapping[str, Any],
) -> None:
    if await _image_id(engine, tag) is not None:
        return
    async with _locked(tag):
        if await _image_id(engine, tag) is None:
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
        await _in_background(build, stopped.set)
    except BoxError as error:
        if error.title == "environment_daemon_unreachable":
            raise
        full = "no space left on device" in error.message.lower()
        raise BoxError(
            "environment_disk_full" if full else "environment_image_unresolved",
            f"building {tag}: {error.message}",
            detail="".join(said)[-4000:] or None,
        ) from error


async def _in_background(work: Callable[[], None], cancel: Callable[[], None]) -> None:
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


@contextlib.asynccontextmanager
async def _locked(tag: str) -> AsyncIterator[None]:
    """Hold the lock of `tag` among all processes of this user."""
    directory = cache_root() / "docker"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{tag.replace(':', '-')}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


# -- what goes into a build ------------------------------------------------------------------------


def _context_files(context: Path) -> list[str]:
    from docker.utils.build import exclude_paths

    ignore = context / ".dockerignore"
    lines = ignore.read_text("utf-8").splitlines() if ignore.is_file() else []
    patterns = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    # Ours come last: no "!" of a task's own list brings gold back.
    return sorted(exclude_paths(str(context), [*patterns, *EXCLUDED], dockerfile=".dockerignore"))


def _digest(recipe: str, context: Path, more: str) -> tuple[str, list[str]]:
    """The digest of a build, and the files of its context."""
    found = hashlib.sha256()

    def take(*parts: bytes) -> None:
        for part in parts:
            found.update(len(part).to_bytes(8, "big") + part)

    take(recipe.encode(), more.encode())
    files = _context_files(context)
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
    return found.hexdigest(), files


def _archive(recipe: str, context: Path | None, files: list[str] | tuple[str, ...]) -> io.BufferedRandom:
    """The context as the engine takes it, with the recipe as ``Dockerfile``, without times and owners."""
    import tempfile

    archive = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in files:
            if context is None or PurePosixPath(name) == PurePosixPath("Dockerfile"):
                continue
            path = context / name
            row = tar.gettarinfo(str(path), name)
            if row is None or not (row.isreg() or row.isdir() or row.issym() or row.islnk()):
                continue
            row.uid = row.gid = 0
            row.uname = row.gname = ""
            row.mtime = 0
            if row.isreg():
                with path.open("rb") as file:
                    tar.addfile(row, file)
            else:
                tar.addfile(row)
        data = recipe.encode()
        row = tarfile.TarInfo("Dockerfile")
        row.size = len(data)
        tar.addfile(row, io.BytesIO(data))
    archive.seek(0)
    return archive
