"""Locks among all processes of this user: files in the cache directory."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from pytest_ageval.box import cache_root


class Lock:
    """A lock that is held, with a note in its file for whoever holds it next."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def note(self) -> bytes:
        """What the last holder left; empty when that was nothing."""
        return os.pread(self._descriptor, 4096, 0)

    @note.setter
    def note(self, text: bytes) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text, 0)


def lock_path(area: str, name: str) -> Path:
    """The file of the lock `name`; what is in it is its note."""
    return cache_root() / area / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.lock"


@contextlib.asynccontextmanager
async def locked(area: str, name: str) -> AsyncIterator[Lock]:
    """Hold the lock `name` of `area`; wait for it without blocking the loop."""
    path = lock_path(area, name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.2)
        yield Lock(descriptor)
    finally:
        os.close(descriptor)
