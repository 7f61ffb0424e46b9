"""Whether a suite run is complete: which of its slots have no result that can be counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_ageval.evidence.files import read_document
from pytest_ageval.suite.control import state
from pytest_ageval.suite.places import SuiteLayout
from pytest_ageval.suite.record import Suite, read_suite

#: Slots that a sentence names before it says how many more there are.
NAMED = 5

#: Source suite runs of regrades are followed so far.
DEPTH = 8


class Completeness(NamedTuple):
    """What is missing of a suite run. `status` is that of ``pytest-ageval status``.

    `missing` slots have no row: not begun, under way, or left out because a budget was used up.
    `unsettled` ones have a row that says that the attempt was interrupted. `sources` are sentences about the
    suite runs that this one judges again and that are not complete themselves.
    """

    suite_run_id: str
    status: str = "complete"
    planned: int = 0
    missing: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Every slot that was planned has settled, and no session goes on with it."""
        return not (self.missing or self.unsettled or self.sources or self.goes_on)

    @property
    def goes_on(self) -> bool:
        """A session writes it."""
        return self.status in ("running", "cancelling")

    @property
    def words(self) -> str:
        """``suite 3f2a9c1d is cancelled: 2 of 5 slots have no result (a[codex], b[codex])``."""
        parts = []
        if self.missing:
            parts.append(f"{_of(self.missing, self.planned)} no result ({_some(self.missing)})")
        if self.unsettled:
            was = "was interrupted" if len(self.unsettled) == 1 else "were interrupted"
            parts.append(f"{len(self.unsettled)} of {self.planned} {was} ({_some(self.unsettled)})")
        parts += self.sources
        found = f"suite {self.suite_run_id} is {self.status}"
        return f"{found}: {'; '.join(parts)}" if parts else found

    def as_dict(self) -> dict[str, Any]:
        """In plain JSON types."""
        return {
            "complete": self.whole,
            "status": self.status,
            "planned": self.planned,
            "missing": list(self.missing),
            "unsettled": list(self.unsettled),
            "sources": list(self.sources),
        }


def _of(slots: Sequence[str], planned: int) -> str:
    return f"{len(slots)} of {planned} slots {'has' if len(slots) == 1 else 'have'}"


def _some(slots: Sequence[str]) -> str:
    names = [slot.rpartition("::")[2] for slot in slots[:NAMED]]
    return ", ".join(names) + (f" and {len(slots) - NAMED} more" if len(slots) > NAMED else "")


def completeness(suite: Suite, depth: int = DEPTH) -> Completeness:
    """What is missing of a suite run of ours. Raises AgevalError when a file of it cannot be read.

    A slot counts as planned when a session meant to fill it, and none skipped it for a reason of its own
    (a mark, ``--attempts auto`` that had concluded).
    """
    layout = SuiteLayout(suite.root)
    plan = read_document(layout.plan) or {}
    skipped = set(_texts(plan.get("skipped")))
    mended = {slot.partition("::")[0] for slot in suite.settled if slot.endswith("]")}
    planned = {
        slot: None
        for slot in (*_texts(plan.get("slots")), *suite.settled)
        if slot in suite.settled
        or (slot not in skipped and (slot.endswith("]") or slot.partition("::")[0] not in mended))
    }
    unsettled = [
        slot
        for slot, row in suite.settled.items()
        if row.status == "ERROR" and (row.error or {}).get("title") == "interrupted"
    ]
    return Completeness(
        suite.header.suite_run_id,
        state(suite.root).status,
        len(planned),
        tuple(slot for slot in planned if slot not in suite.settled),
        tuple(unsettled),
        tuple(_sources(suite, depth)),
    )


def _sources(suite: Suite, depth: int) -> list[str]:
    """What is said of the suite runs beside this one that it judges again and that are not complete."""
    found = []
    for name in suite.header.parents if depth else ():
        root = suite.root.parent / Path(name).name
        if SuiteLayout(root).header.is_file():
            source = completeness(read_suite(root), depth - 1)
            if not source.whole:
                found.append(f"it judges again what is not complete: {source.words}")
    return found


def of_foreign(summary: Mapping[str, Any], name: str) -> Completeness:
    """What is missing of a suite run of ageval, which lists an attempt that was cancelled too."""
    rows = [row for row in summary.get("attempts") or () if isinstance(row, dict)]
    missing = [row for row in rows if row.get("phase") == "cancelled" or not row.get("status")]
    status = str(summary.get("status") or ("cancelled" if summary.get("cancelled") else "complete"))
    return Completeness(
        name,
        # Its session is not known here: what it wrote last is all there is.
        "incomplete" if status in ("running", "cancelling") else status,
        len(rows),
        tuple(f"{row.get('task_id')}[{row.get('attempt_index')}]" for row in missing),
    )


def _texts(found: Any) -> list[str]:
    return [text for text in found or () if isinstance(text, str)]
