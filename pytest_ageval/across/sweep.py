"""The end of a run on a host: processes, boxes and files go. Also a program, for when nobody else is left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

#: Seconds for which workers that lost their controller may clean up.
WORKERS_SECONDS = 40.0

#: In the directory of the run on a host: where workers say that they live, and what they share.
WORKERS = ".workers"
RUNNING = ".running"
AGENT = ".agent"


def lock(path: Path) -> int:
    """Say that this process lives, for as long as it does; returns what must stay open."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def _is_held(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def hold(base: Path, worker: str) -> int:
    """Say that this process works in `base`; as `lock`."""
    (base / WORKERS).mkdir(exist_ok=True)
    return lock(base / WORKERS / worker)


def living(base: Path) -> Iterator[tuple[str, int]]:
    """Name and process id of the workers that live."""
    for path in sorted((base / WORKERS).glob("*")):
        if _is_held(path):
            with contextlib.suppress(ValueError):
                yield path.name, int(path.read_text() or "0")


def abandoned() -> Iterator[Path]:
    """Directories of this user's runs in which nobody works any more, where they are by default."""
    for agent in Path(tempfile.gettempdir()).glob(f"ageval-*/{AGENT}"):
        with contextlib.suppress(OSError):
            base = agent.parent
            if base.stat().st_uid == os.geteuid() and not _is_held(agent) and not any(living(base)):
                yield base


def end_workers(base: Path, seconds: float) -> None:
    """Wait for them, and kill those that do not go."""
    deadline = time.monotonic() + seconds
    while (left := list(living(base))) and time.monotonic() < deadline:
        time.sleep(0.1)
    for _, pid in left:
        if pid > 1:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def reap(run_id: str, kinds: Iterable[str], **labels: str) -> list[str]:
    """Remove boxes of the run that nobody owns any more; returns a line for each, and for what failed."""
    from pytest_ageval.registry import Registry

    return list(Registry().reap(kinds, {"ageval.run": run_id, **labels}, "there"))


def kinds_noted(base: Path) -> set[str]:
    """Kinds of the boxes of attempts that did not end."""
    import json

    found = set()
    for path in (base / RUNNING).glob("*.json"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            found.add(str(json.loads(path.read_bytes()).get("box") or ""))
    return found - {""}


def remove(base: Path, run_id: str) -> None:
    """Remove the directory of the run, and that of its boxes if nobody keeps one."""
    from pytest_ageval.box import work_parent

    for directory in (work_parent() / run_id[:12], work_parent()):
        with contextlib.suppress(OSError):  # gone, or not empty
            directory.rmdir()
    shutil.rmtree(base, onerror=_writable_first)


def _writable_first(function: Callable[..., Any], path: str, error: Any) -> None:
    with contextlib.suppress(OSError):
        Path(path).parent.chmod(0o700)
        Path(path).chmod(0o700)
        function(path)


def main(base: Path, run_id: str) -> None:
    """All of it, alone."""
    end_workers(base, WORKERS_SECONDS)
    reap(run_id, kinds_noted(base))
    remove(base, run_id)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
