"""Which points of an attempt's writes a run of the kill-anywhere tests tries, and what is known of them.

``AGEVAL_KILL_ANYWHERE`` is ``all`` for every point, ``2/5`` for the second of five parts of them. With
``AGEVAL_KILL_STATE`` the answers are kept in a file as they come: a run that was ended goes on where it was,
several parts may write into one file, and points that were lost are tried again. The file is about one state
of the code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_ageval.evidence.files import write_all

Points = tuple[int, ...]


def name_of(points: Points) -> str:
    """``40+12``: killed at the first, and when it had gone on at the second."""
    return "+".join(map(str, points))


class Sweep(NamedTuple):
    """`part` of `parts`, from 1; `everything` is False for the sample of an ordinary run."""

    everything: bool = False
    part: int = 1
    parts: int = 1
    state: Path | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Sweep:
        """What the environment asks for. Raises ValueError for what cannot be meant."""
        text = environment.get("AGEVAL_KILL_ANYWHERE", "")
        state = environment.get("AGEVAL_KILL_STATE")
        where = Path(state) if state else None
        if text in ("", "all"):
            return cls(bool(text), state=where)
        part, _, parts = text.partition("/")
        found = cls(True, int(part), int(parts), where)
        if not 1 <= found.part <= found.parts:
            raise ValueError(f"AGEVAL_KILL_ANYWHERE: expected all or PART/PARTS, found {text!r}")
        return found

    def share(self, points: Sequence[Points]) -> list[Points]:
        """The points of this part, spread over all of them."""
        return list(points[self.part - 1 :: self.parts])

    def known(self) -> dict[str, str]:
        """What came of points before, those that were lost left out."""
        try:
            lines = [] if self.state is None else self.state.read_bytes().split(b"\n")
        except FileNotFoundError:
            return {}
        found: dict[str, str] = {}
        for line in lines:
            try:
                found.update(json.loads(line))
            except ValueError:  # torn when the run was ended
                continue
        return {name: answer for name, answer in found.items() if not answer.startswith("lost")}

    def note(self, name: str, answer: str) -> None:
        """Keep what came of a point. Several processes may do so."""
        if self.state is None:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self.state, flags, 0o644)
        try:
            write_all(descriptor, b"\n" + json.dumps({name: answer}).encode() + b"\n")
        finally:
            os.close(descriptor)
