"""Compare the editor's timeline with the gold one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shared.grading import Grade, Unreadable, parse_object, read_object, shorten, unfence

ANSWERS = {
    "cause": "the entry that caused the incident",
    "first_sign": "the earliest entry that shows its effect",
    "ended_by": "the action that ended it",
}


def evaluate(inputs: dict[str, Any]) -> dict[str, Any]:
    """One check for each entry and its time, and for order, extras and the three answers."""
    grade = Grade()
    gold = json.loads(Path(inputs["evaluation_dir"], "expected.json").read_text(encoding="utf-8"))
    try:
        answer = parse_object(unfence(str(read_object(inputs["artifacts"], "timeline")["text"])))
        found = entries(answer)
    except Unreadable as problem:
        grade.check("timeline", False, "the editor's answer is the JSON asked for", str(problem))
        return grade.verdict()
    times = dict(found)
    for name, utc in gold["timeline"].items():
        grade.check(
            f"event.{name}",
            times.get(name) == utc,
            f"{name} at {utc} UTC",
            str(times.get(name, "not in the timeline")),
        )
    names = [name for name, _ in found]
    extra = sorted(set(names) - set(gold["timeline"]))
    grade.check("extra", not extra, "nothing that is not part of the incident", shorten(extra))
    once = len(names) == len(set(names))
    ordered = [name for name in names if name in gold["timeline"]]
    expected = [name for name in gold["timeline"] if name in names]
    grade.check(
        "order",
        bool(names) and once and ordered == expected,
        "sorted by time, each entry once",
        shorten(names),
    )
    for key, title in ANSWERS.items():
        value = answer.get(key)
        grade.check(key, value == gold[key], f"{title}: {gold[key]}", shorten(value))
    return grade.verdict()


def entries(answer: dict[str, Any]) -> list[tuple[str, str]]:
    """Id and time of each row of the timeline. Raises `Unreadable`."""
    rows = answer.get("timeline")
    if not isinstance(rows, list):
        raise Unreadable(f"no list `timeline`: {shorten(answer)}")
    found = []
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("id"), str):
            raise Unreadable(f"a row without an id: {shorten(row)}")
        found.append((row["id"], str(row.get("utc"))))
    return found
