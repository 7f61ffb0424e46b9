"""A pytest plugin that writes down what its process holds, as items end and when all is over.

Into the directory ``SOAK_PROBE``, one file of JSON lines for each process.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest


def _memory() -> dict[str, int]:
    """Kilobytes that are resident now, and the most that ever were."""
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    found = {row[0]: int(row[1]) for row in rows if row[0] in ("VmRSS:", "VmHWM:")}
    return {"rss": found["VmRSS:"], "peak": found["VmHWM:"]}


def _descriptors() -> dict[str, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except OSError:  # the one that lists them
            continue
    return found


class Probe:
    """Registered before all other plugins, so that it is the last one to be told of the end."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / f"{os.getpid()}.jsonl"
        self._known = _descriptors()
        self._ended = 0

    def _write(self, **row: object) -> None:
        with self._file.open("a") as stream:
            stream.write(json.dumps(row) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """In a worker and in the controller."""
        self._ended += 1
        self._write(ended=self._ended, **_memory(), descriptors=len(list(Path("/proc/self/fd").iterdir())))

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """What is still open, and which threads run. Those that have been told to end get a moment."""
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and thread.name.startswith("ageval"):
                thread.join(1)
        left = {k: v for k, v in _descriptors().items() if self._known.get(k) != v}
        threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("ageval")]
        self._write(ended=self._ended, **_memory(), left=sorted(left.values()), threads=sorted(threads))


def pytest_configure(config: pytest.Config) -> None:
    """Begin."""
    where = os.environ.get("SOAK_PROBE")
    if where:
        config.pluginmanager.register(Probe(Path(where)), "soak-probe")
