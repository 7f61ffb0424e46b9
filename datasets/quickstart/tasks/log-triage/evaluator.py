"""Compare the answers one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shared.grading import Grade, Unreadable, read_object, same, shorten

TITLES = {
    "requests": "all requests are counted",
    "attacker": "the client with the most failed logins",
    "failed_logins": "how often that client failed",
    "broken_in": "the account page that the attacker got",
    "worst_path": "the path with the most server errors",
    "slowest_ms": "the three slowest searches",
}


def evaluate(inputs: dict[str, Any]) -> dict[str, Any]:
    """One check for each answer."""
    grade = Grade()
    gold = json.loads(Path(inputs["evaluation_dir"], "expected.json").read_text(encoding="utf-8"))
    try:
        answer = read_object(inputs["artifacts"], "answer")
    except Unreadable as problem:
        grade.check("answer", False, "answer.json holds one JSON object", str(problem))
        return grade.verdict()
    for key, title in TITLES.items():
        found = answer.get(key)
        passed = same(found, gold[key])
        grade.check(key, passed, f"{title}: {shorten(gold[key])}", shorten(found))
    return grade.verdict()
