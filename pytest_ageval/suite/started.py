"""Which attempts of a suite run were begun: one line each, written by the process that runs the attempt.

Several processes append, each line with one call, which a local file system does not interleave. By these
lines an attempt is found that settled and was not recorded, or that did not settle, without a look at
every attempt directory there is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence.checks import check_rows
from pytest_ageval.evidence.files import line_bytes, now, read_document
from pytest_ageval.evidence.layout import Layout
from pytest_ageval.suite.places import SuiteLayout
from pytest_ageval.suite.record import Settled
from pytest_ageval.suite.rows import to_row


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that was begun. `known` is what a report says of it from the start."""

    slot: str
    attempt_id: str
    attempt_dir: str
    started_at: str = ""
    known: Mapping[str, Any] = {}


def note(suite: Path, started: Started) -> None:
    """Append a line. Raises OSError."""
    row = msgspec.to_builtins(msgspec.structs.replace(started, started_at=now()))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(SuiteLayout(suite).started, flags, 0o644)
    try:
        # The newline in front ends a line that another process could not finish.
        os.write(descriptor, b"\n" + line_bytes(row))
    finally:
        os.close(descriptor)


def read(suite: Path) -> list[Started]:
    """The lines, in order. One that is torn belongs to an attempt that had not begun to work."""
    try:
        data = SuiteLayout(suite).started.read_bytes()
    except FileNotFoundError:
        return []
    found = []
    for line in data.split(b"\n"):
        try:
            found.append(msgspec.convert(json.loads(line), Started))
        except (ValueError, msgspec.ValidationError):
            continue
    return found


def settled(started: Started, evidence: Path) -> Settled | None:
    """The row of an attempt that has a result; None when it has none, or one that cannot be read."""
    layout = Layout(evidence / started.attempt_dir)
    try:
        result = read_document(layout.result)
        checks = read_document(layout.checks) if result is not None else None
    except (AgevalError, OSError):
        return None
    if result is None or result.get("attempt_id") != started.attempt_id:
        return None
    rows = check_rows((checks or {}).get("checks") or ())
    data = {
        **{name: value for name, value in result.items() if name not in _REDUNDANT},
        **{name: value for name, value in started.known.items() if value is not None},
        "checks": [{name: row[name] for name in _CHECK if name in row} for row in rows[:50]],
        "attempt_dir": str(layout.root),
    }
    try:
        return to_row(started.slot, data, evidence)
    except msgspec.ValidationError:
        return None


_REDUNDANT = ("schema", "evidence_path", "logs", "gold_materialized_at", "task_id", "dataset_id")
_CHECK = ("id", "title", "status", "score")
