"""Making what sandboxes are made from, once: by one process of this user at a time, others wait."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from ageval_boxes._locks import lock_path, locked
from pytest_ageval.errors import BoxError

log = logging.getLogger("pytest_ageval.box")

#: Seconds for one build.
BUILD_SECONDS = 3600.0

#: What the note of a lock says while a build goes on, and after one that did not end well.
_UNFINISHED = b"unfinished"


class BuildLog:
    """What the vendor says of a build: each line is logged, the end is kept for an error."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: list[str] = []

    def __call__(self, line: object) -> None:
        """The next line."""
        text = str(line).rstrip()
        if text:
            log.info("%s: %s", self._name, text)
            self._lines.append(text)
            del self._lines[:-200]

    @property
    def tail(self) -> str | None:
        """The last 4000 characters."""
        return "\n".join(self._lines)[-4000:] or None


async def once(
    kind: str,
    name: str,
    *,
    there: Callable[[], Awaitable[bool]],
    build: Callable[[BuildLog], Awaitable[None]],
    missing: str | None,
) -> None:
    """Build `name` unless it is `there`.

    A vendor may list what is being built, or could not be built: so what a build of ours did not
    finish is built again. `missing`: nothing may be built, and why; BoxError
    ``environment_image_unresolved`` then, and when a build fails.
    """
    trusted = missing is not None or not _unfinished(kind, name)
    if trusted and await asking(kind, there):
        return
    if missing is not None:
        raise BoxError("environment_image_unresolved", missing)
    async with locked(kind, name) as lock:
        if lock.note != _UNFINISHED and await asking(kind, there):
            return
        said = BuildLog(name)
        lock.note = _UNFINISHED
        begun = time.monotonic()
        log.info("%s: %s is not there yet and is built now", kind, name)
        try:
            await build(said)
        except BoxError:
            raise
        except Exception as error:
            raise BoxError(
                "environment_image_unresolved",
                f"{kind} could not build {name}: {type(error).__name__}: {error}",
                detail=said.tail,
            ) from error
        log.info("%s: %s was built in %.0f s", kind, name, time.monotonic() - begun)
        lock.note = b""


def _unfinished(kind: str, name: str) -> bool:
    try:
        return lock_path(kind, name).read_bytes() == _UNFINISHED
    except OSError:
        return False


async def asking(kind: str, there: Callable[[], Awaitable[bool]]) -> bool:
    """What `there` says; BoxError ``environment_start_failed`` when the vendor does not answer."""
    try:
        return await there()
    except BoxError:
        raise
    except Exception as error:
        raise BoxError("environment_start_failed", f"{kind}: {type(error).__name__}: {error}") from error
