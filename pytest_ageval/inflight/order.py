"""Longest expected first: by what attempts took in earlier suite runs, so that the last ones are short.

Only within what pytest treats alike: one round of attempts (first ones, second ones, ...) at one data set.
Nothing is read unless several attempts are in flight, and then the records of the last suite runs only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pytest_ageval import sequencer
from pytest_ageval.discovery import TASK_FILES
from pytest_ageval.inflight.number import roots
from pytest_ageval.suite.places import DIRECTORY, SuiteLayout

if TYPE_CHECKING:
    from pytest_ageval.job import Job

#: Suite runs whose records are read for each root of evidence, the newest ones.
LAST = 2

#: Bytes that are read of a record, its last ones.
MOST = 32 * 1024 * 1024


class _Row(msgspec.Struct):
    """What is of interest in a line of a record."""

    slot: str
    status: str = ""
    variant: str = ""
    timing: dict[str, float] = {}


class _Place(NamedTuple):
    """Where an item belongs: the directory of its data set's tasks, the task, the variant, the round."""

    home: Path
    task: str
    variant: str
    round: int


def longest_first(job: Job, nodeids: Sequence[str]) -> list[int]:
    """The places of `nodeids` in the order in which they are to begin; their own order without history."""
    order = list(range(len(nodeids)))
    if job.regrading is not None or sequencer.stopping(job.config) is not None:
        return order  # what comes first matters there
    seconds = expected(job, nodeids)
    if not seconds:
        return order
    usual = fmean(seconds.values())
    variants = {variant.id: (variant.name, variant.attempt) for variant in job.variants}
    places = [_place(nodeid, variants) for nodeid in nodeids]

    def guess(index: int) -> float:
        place = places[index]
        if place is None:
            return 0.0
        whole = seconds.get((place.task, ""), usual)
        return seconds.get((place.task, place.variant), whole)

    def alike(index: int) -> object:
        place = places[index]
        return index if place is None else (place.home, place.round)

    found: list[int] = []
    for _, group in groupby(order, alike):
        found += sorted(group, key=guess, reverse=True)
    return found


def _place(nodeid: str, variants: Mapping[str, tuple[str, int]]) -> _Place | None:
    file, _, name = nodeid.partition("::")
    path = Path(file)
    if path.name not in TASK_FILES:
        return None
    variant, number = variants.get(name.partition("[")[2].removesuffix("]"), ("", 1))
    return _Place(path.parent.parent, path.parent.name, variant, number)


def expected(job: Job, nodeids: Iterable[str]) -> dict[tuple[str, str], float]:
    """Seconds by task and variant, and by task alone (variant ``""``), as far as they are known."""
    found: dict[tuple[str, str], list[float]] = {}
    for evidence in dict.fromkeys(job.evidence_root(root) for root in roots(job, nodeids)):
        for record in _records(evidence):
            for row in _rows(record):
                took = sum(row.timing.values()) / 1000
                task = Path(row.slot.partition("::")[0]).parent.name
                if row.status != "ERROR" and took > 0 and task:
                    found.setdefault((task, row.variant), []).append(took)
                    found.setdefault((task, ""), []).append(took)
    return {key: fmean(rows) for key, rows in found.items()}


def _records(evidence: Path) -> list[Path]:
    """The records that were written last. One look at each suite run's file, none into it."""
    found = []
    for path in (evidence / DIRECTORY).glob("*"):
        record = SuiteLayout(path).attempts
        try:
            status = record.stat()
        except OSError:
            continue
        if status.st_size > 0:
            found.append((status.st_mtime_ns, record))
    return [record for _, record in sorted(found)[-LAST:]]


def _rows(record: Path) -> Iterable[_Row]:
    """The lines of a record; one that cannot be understood says nothing of how long anything takes."""
    decoder = msgspec.json.Decoder(_Row)
    try:
        with record.open("rb") as stream:
            stream.seek(max(0, record.stat().st_size - MOST))
            for line in stream:
                try:
                    yield decoder.decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    continue
    except OSError:
        return
