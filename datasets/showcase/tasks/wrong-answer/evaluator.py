"""Compare the stock product by product."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ageval_sdk import evaluation_check


def evaluate(inputs: dict[str, Any]) -> dict[str, Any]:
    """One check for each product; the score is the share that is right."""
    gold = json.loads(Path(inputs["evaluation_dir"], "stock.json").read_text(encoding="utf-8"))
    found = read(inputs["artifacts"].get("stock"))
    checks = [
        evaluation_check(
            product,
            title=f"stock of {product}",
            status="PASS" if found.get(product) == pieces else "FAIL",
            stderr=None if found.get(product) == pieces else wrong(pieces, found.get(product)),
        )
        for product, pieces in gold.items()
    ]
    right = sum(check["status"] == "PASS" for check in checks)
    return {
        "status": "PASS" if right == len(checks) else "FAIL",
        "score": right / len(checks),
        "metrics": {"products_right": right},
        "checks": checks,
    }


def wrong(expected: int, found: Any) -> str:
    """What a failed check says."""
    return f"expected {expected} pieces, found {found}\n"


def read(path: str | None) -> dict[str, Any]:
    """The agent's object; empty if there is none."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
