"""The start of a worker on a host: in the copy of the files, with the installed packages of the host."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import CodeType
from typing import Any

import pytest_ageval
from pytest_ageval.across import install, sweep
from pytest_ageval.across.link import Link
from pytest_ageval.across.places import Places
from pytest_ageval.config import env

#: In the input of a worker: what it has to know to be at home.
INPUT = "ageval_across"


class Channel:
    """pytest-xdist's channel: the first message is replaced, and no path of the host leaves in another."""

    def __init__(self, channel: Any, first: Any, places: Places) -> None:
        self._channel = channel
        self._first = [first]
        self._places = places

    def receive(self, timeout: float | None = None) -> Any:
        """The next message."""
        return self._first.pop() if self._first else self._channel.receive(timeout)

    def send(self, item: Any) -> None:
        """Send a message."""
        self._channel.send(self._places.shown(item))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


def work(channel: Any) -> None:
    """Run pytest-xdist's own module, in the place where it should be."""
    workerinput, _, options, _ = channel.receive()
    given = workerinput.pop(INPUT)
    places, base = Places(given["base"]), Path(given["base"])
    held = sweep.hold(base, workerinput["workerid"])
    os.environ.update(given["environment"])
    os.chdir(given["cwd"])
    link = Link(given["channel"], places, base / sweep.RUNNING)
    install(link)
    link.relay.listen(workerinput)
    env.from_elsewhere(link.secret, {Path(path): text for path, text in given["env_files"].items()})
    options = {**options, "basetemp": str(base / "tmp" / workerinput["workerid"])}
    (base / "tmp").mkdir(exist_ok=True)
    # pytest would warn that it cannot rewrite the assertions of what is loaded already.
    pytest_ageval.__doc__ = f"{pytest_ageval.__doc__} PYTEST_DONT_REWRITE"
    first = (workerinput, given["args"], options, list(sys.path))
    shim = Channel(channel, first, places)
    try:
        exec(_xdist_code(), {"channel": shim, "__name__": "__channelexec__"})  # noqa: S102 - as execnet does
    finally:
        os.close(held)


def _xdist_code() -> CodeType:
    """The module that pytest-xdist would have sent, as it is installed here."""
    spec = importlib.util.find_spec(
        "xdist"
    )  # not imported yet: pytest rewrites the assertions of its plugins
    assert spec is not None
    assert spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0]) / "remote.py"
    return compile(path.read_bytes(), str(path), "exec")
