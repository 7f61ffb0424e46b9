"""The reports of the analyzers: one row for each attempt, in JSON types (``ageval.analysis.report/1``)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pytest_ageval.analyze.evidence import findings_of
from pytest_ageval.evidence.files import now, read_jsonl
from pytest_ageval.evidence.layout import Layout
from pytest_ageval.evidence.redact import Redactor
from pytest_ageval.evidence.trajectory import tail_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_ageval.export.source import Recorded

Row = dict[str, Any]

SCHEMA = "ageval.analysis.report/1"
ANALYZERS = ("stats", "hack", "review")

#: Characters of the end of a trajectory in a review.
TAIL = 2000


def report(attempts: Sequence[Recorded], analyzer: str, unfinished: int = 0) -> Row:
    """What `analyzer` says of each attempt. `unfinished` ones had no trajectory."""
    mask = Redactor()  # the evidence is redacted; shapes of keys are masked once more
    rows = [mask.value(_of(attempt, analyzer)) for attempt in attempts]
    return {
        "schema": SCHEMA,
        "analyzer": analyzer,
        "created_at": now(),
        "unfinished": unfinished,
        "attempts": rows,
    }


def _of(attempt: Recorded, analyzer: str) -> Row:
    trajectory = Layout(attempt.root).trajectory
    rows = read_jsonl(trajectory) if trajectory.is_file() else []
    result = attempt.result
    found: Row = {
        "attempt_id": attempt.attempt_id,
        "task_id": result.get("task_id") or attempt.lock.get("task_id"),
        "status": result.get("status"),
        "score": result.get("score"),
    }
    if analyzer == "hack":
        return {**found, "findings": [each._asdict() for each in findings_of(attempt.root, rows)]}
    counted = _counts(rows)
    usage = result.get("usage") or {}
    found |= {**counted, "usage": usage, "timing": result.get("timing") or {}}
    if analyzer == "review":
        found |= {
            "limit": result.get("limit"),
            "agent_status": result.get("agent_status"),
            "error": result.get("error"),
            "findings": [each._asdict() for each in findings_of(attempt.root, rows)],
            "end": tail_text(rows, TAIL),
        }
    return found


def _counts(rows: Sequence[Row]) -> Row:
    """Turns, calls of each tool, how they ended, and the time that the tools took."""
    calls = [row for row in rows if row.get("type") == "tool_call"]
    tools = Counter(str(row.get("function_name")) for row in calls)
    statuses = Counter(str(row.get("status") or "unknown") for row in calls)
    times = [row["elapsed_ms"] for row in calls if isinstance(row.get("elapsed_ms"), int | float)]
    return {
        "invocations": sum(row.get("type") == "terminal" for row in rows),
        "turns": sum(row.get("type") == "turn" and row.get("role") == "assistant" for row in rows),
        "tool_calls": len(calls),
        "tools": dict(tools.most_common()),
        "tool_status": dict(statuses.most_common()),
        "tool_ms": sum(times) if times else None,
    }


def text(document: Row) -> list[str]:
    """The report as lines for people."""
    lines = []
    for row in document["attempts"]:
        lines.append(f"{row['attempt_id']} {row['task_id']} {row['status'] or 'unsettled'}")
        if "tools" in row:
            tools = ", ".join(f"{name} {count}" for name, count in row["tools"].items()) or "none"
            lines.append(f"  {row['invocations']} invocations, {row['turns']} answers; tools: {tools}")
        lines += [
            f"  {f['severity']}: {f['rule']}: {f['about']} ({f['file']} line {f['row']}): {f['excerpt']}"
            for f in row.get("findings", ())
        ]
        lines += [f"  {line}" for line in _second(row.get("second_look") or {})]
        if row.get("end"):
            lines += [f"  | {line}" for line in row["end"].splitlines()]
    if document["analyzer"] == "hack":
        found = sum(bool(row["findings"]) for row in document["attempts"])
        lines.append(f"findings in {found} of {len(document['attempts'])} attempts")
    if "second_look" in document:
        look = document["second_look"]
        more = f", {look['not_asked']} not asked about" if look["not_asked"] else ""
        lines.append(f"second look by {look['model']}: {look['asked']} attempts{more}; {look['used']}")
    return lines


def _second(look: Row) -> list[str]:
    """What a model said of an attempt."""
    if "error" in look:
        return [f"second look: {look['error']}"]
    said = [f"second look: finding {r['finding']}: {r['real']}: {r['why']}" for r in look.get("findings", ())]
    return [*said, *(f"review: {line}" for line in str(look.get("review") or "").splitlines())]
