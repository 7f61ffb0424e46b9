"""From what a test report says of an attempt to a row of the record, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pytest_ageval.suite.places import relative
from pytest_ageval.suite.record import Settled

#: Fields of a row whose name in a report is another one.
_NAMES = {"task_id": "task", "dataset_id": "dataset"}

#: Fields that a report has under the same name.
_SAME = (
    *("status", "agent", "model", "effort", "box", "parameters", "variant", "attempt", "attempt_id"),
    *("score", "metrics", "failed_checks", "error", "limit", "flags", "digest", "timing", "usage"),
    *("source", "of", "message"),
)

#: What a report holds besides, but the row does not need.
_LEFT_OUT = frozenset(("task", "dataset", "attempt_dir", "slot", "suite_run_id", "recorded"))


def to_row(slot: str, data: Mapping[str, Any], evidence: Path | None) -> Settled:
    """The row of an attempt whose report carried `data`.

    Its path is relative to the root `evidence`, and whole where there is none.
    """
    fields = {name: data[name] for name in _SAME if data.get(name) is not None}
    for field, name in _NAMES.items():
        if data.get(name) is not None:
            fields[field] = data[name]
    where = data.get("attempt_dir")
    known = {*_SAME, *_LEFT_OUT}
    return msgspec.convert(
        {
            "task_id": slot.rpartition("::")[2].partition("[")[0],
            **fields,
            "slot": slot,
            "attempt_dir": relative(Path(where), evidence) if where and evidence else where,
            "details": {name: value for name, value in data.items() if name not in known},
        },
        Settled,
    )


def to_data(row: Settled, evidence: Path) -> dict[str, Any]:
    """What the report of an attempt carries that settled before."""
    found = {**row.details, **{name: getattr(row, name) for name in _SAME}}
    found |= {name: getattr(row, field) for field, name in _NAMES.items()}
    found["attempt_dir"] = None if row.attempt_dir is None else str(directory(row, evidence))
    found["slot"] = row.slot
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return {name: value for name, value in plain.items() if value is not None or name == "score"}


def directory(row: Settled, evidence: Path) -> Path | None:
    """Where the evidence of a row is, or was."""
    return None if row.attempt_dir is None else evidence / row.attempt_dir
