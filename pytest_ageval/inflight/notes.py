"""Which attempts of a run are under way, as the processes that run them have noted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pytest_ageval.evidence.files import now
from pytest_ageval.evidence.layout import Layout


class _Note(NamedTuple):
    nodeid: str
    result: Path
    since: str


class Notes:
    """Looks at the notes in the directory of a run. Each is read once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, _Note | None] = {}

    def under_way(self) -> Mapping[str, str]:
        """The ids of the items whose attempts have begun and have no result yet, and since when."""
        names = {path.name for path in self._directory.glob("*.json")}
        self._known = {name: note for name, note in self._known.items() if name in names}
        for name in sorted(names - self._known.keys()):
            self._known[name] = _read(self._directory / name)
        return {
            note.nodeid: note.since
            for note in self._known.values()
            if note is not None and not note.result.is_file()
        }


def _read(path: Path) -> _Note | None:
    try:
        found = json.loads(path.read_bytes())
        return _Note(str(found["nodeid"]), Layout(Path(found["attempt_dir"])).result, now())
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it is gone already, or it is no note of an attempt
