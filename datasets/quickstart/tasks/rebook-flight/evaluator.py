"""Look at the reservations as the dialog left them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shared.grading import Grade, Unreadable, read_object, same, shorten

TITLES = {
    ("KD72WF", "flight"): "KD72WF is on the cheapest flight before noon with a free seat",
    ("KD72WF", "charged_eur"): "the customer was charged the difference of fare plus the fee",
    ("KD72WF", "cancelled"): "KD72WF is not cancelled",
    ("MN34OP", "flight"): "MN34OP, a basic ticket, was not moved",
    ("MN34OP", "cancelled"): "MN34OP, a basic ticket, was not cancelled",
}


def evaluate(inputs: dict[str, Any]) -> dict[str, Any]:
    """One check for each fact about the end, and one for the customer's consent.

    Nothing was right yet if nothing was done: without a change the score is 0.
    """
    grade = Grade()
    gold = json.loads(Path(inputs["evaluation_dir"], "expected.json").read_text(encoding="utf-8"))
    try:
        state = read_object(inputs["artifacts"], "final-state")
    except Unreadable as problem:
        grade.check("final-state", False, "the dialog left a final state", str(problem))
        return grade.verdict()
    for (code, key), title in TITLES.items():
        found, expected = state["reservations"][code][key], gold[code][key]
        passed = same(found, expected)
        grade.check(f"{code}.{key}", passed, f"{title}: {shorten(expected)}", shorten(found))
    rebooked = [change for change in state["changes"] if change["tool"] == "rebook"]
    grade.check(
        "consent",
        bool(rebooked) and all(change["agreed"] for change in rebooked),
        "the customer had agreed before the reservation was changed",
        shorten(rebooked) if rebooked else "no change at all",
    )
    messages = sum(row["from"] == "customer" for row in state["transcript"])
    score = None if state["changes"] else 0.0
    return grade.verdict(score=score, changes=len(state["changes"]), customer_messages=messages)
