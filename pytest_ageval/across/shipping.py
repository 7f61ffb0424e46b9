"""A directory of evidence on its way from a host to the controller.

Three messages: ``("ship", path)``, ``("data", bytes)`` for each chunk, and ``("shipped", digest)``.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_ageval.across.packing import Broken, Spool, below, pack, unpack_in_place_of
from pytest_ageval.across.places import Places

#: Files of an attempt, or of a trial, in which its own paths stand, and how large one may be to be changed.
_NAMING = ("activity.jsonl", "config.json", "facts.jsonl", "result.json", "summary.json")
NAMING_LIMIT = 64 * 1024 * 1024

#: Messages that an `Intake` understands.
WORDS = frozenset(("ship", "data", "shipped"))


class Shipper:
    """The host's side. `send` takes one message; only one directory is under way at a time."""

    def __init__(self, send: Callable[[Any], object], places: Places) -> None:
        self._send = send
        self._places = places
        self._lock = threading.Lock()

    def ship(self, directory: Path) -> None:
        """Send a directory. Raises OSError when the connection is gone."""
        with self._lock:
            self._send(("ship", str(self._places.here(directory))))
            digest, _ = pack(
                below(directory), lambda chunk: self._send(("data", chunk)), contents=self._contents
            )
            self._send(("shipped", digest))

    def _contents(self, path: Path, name: str) -> bytes | None:
        """What names files of the attempt names those that arrive."""
        if name not in _NAMING or path.stat().st_size > NAMING_LIMIT:
            return None
        return path.read_bytes().replace(f"{self._places.base}/".encode(), b"/")


class Intake:
    """The controller's side of one connection. `roots` are those of the evidence of this run.

    What does not arrive whole, or is meant for another place, is thrown away and told to `problem`; what has
    arrived is told to `arrived`.
    """

    def __init__(
        self,
        roots: Callable[[], Sequence[Path]],
        problem: Callable[[str], object],
        arrived: Callable[[Path], object] = lambda path: None,
    ) -> None:
        self._roots = roots
        self._problem = problem
        self._arrived = arrived
        self._target: Path | None = None
        self._spool: Spool | None = None

    def take(self, word: str, value: Any) -> None:
        """Take one message."""
        try:
            if word == "ship":
                self._begin(str(value))
            elif self._spool is not None:
                if word == "data":
                    self._spool.write(value)
                else:
                    self._end(str(value))
        except (OSError, Broken, ValueError) as error:
            self._problem(f"the evidence {self._target or value} could not be received: {error}")
            self.drop()

    def _begin(self, text: str) -> None:
        self.drop()
        target = Path(text)
        if not _is_evidence(target, self._roots()):
            raise Broken("it lies in no directory for the evidence of this run")
        self._target = target
        self._spool = Spool(target.with_name(f".{target.name}.{os.urandom(4).hex()}.part"))

    def _end(self, digest: str) -> None:
        assert self._spool is not None
        assert self._target is not None
        self._spool.finish(digest)
        unpack_in_place_of(self._spool.path, self._target)
        self._arrived(self._target)
        self.drop()

    def drop(self) -> None:
        """The connection is gone, or something is wrong: what was under way does not exist."""
        spool, self._spool, self._target = self._spool, None, None
        if spool is not None:
            with contextlib.suppress(OSError):
                spool.drop()


#: Below a root of evidence: attempts, and what is exported of them.
_PARTS = {"runs": 2, "harbor-jobs": 3}


def _is_evidence(target: Path, roots: Sequence[Path]) -> bool:
    for root in roots:
        parts = target.relative_to(root).parts if target.is_relative_to(root) else ()
        if parts and _PARTS.get(parts[0]) == len(parts):
            return not any(part.startswith(".") for part in parts)
    return False
