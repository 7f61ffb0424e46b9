"""Compare the report figure by figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shared.grading import Grade, Unreadable, read_object, same, shorten

TITLES = {
    "orders": "the number of paid orders, each id once",
    "gross_eur": "the gross of the paid orders in euro",
    "refunds_eur": "the refunds of orders that count, in euro",
    "net_eur": "gross less refunds",
    "best_product": "the product with the highest gross in euro",
    "unknown_refunds": "the refunded orders that do not count, sorted",
}


def evaluate(inputs: dict[str, Any]) -> dict[str, Any]:
    """One check for each figure; euro may be off by one cent."""
    grade = Grade()
    gold = json.loads(Path(inputs["evaluation_dir"], "expected.json").read_text(encoding="utf-8"))
    try:
        report = read_object(inputs["artifacts"], "report")
    except Unreadable as problem:
        grade.check("report", False, "report.json holds one JSON object", str(problem))
        return grade.verdict()
    for key, title in TITLES.items():
        compare(grade, key, title, report.get(key), gold[key])
    months = report.get("gross_by_month")
    found = months if isinstance(months, dict) else {}
    for month, amount in gold["gross_by_month"].items():
        compare(grade, f"gross_by_month.{month}", f"the gross of {month}", found.get(month), amount)
    extra = sorted(set(report) - set(gold))
    grade.check("keys", not extra, "no keys that were not asked for", shorten(extra))
    return grade.verdict()


def compare(grade: Grade, check_id: str, title: str, found: Any, expected: Any) -> None:
    """Add the check of one figure."""
    passed = same(found, expected, tolerance=0.0101)
    grade.check(check_id, passed, f"{title}: {shorten(expected)}", shorten(found))
