"""Never reached: task.yaml is not acceptable."""

from __future__ import annotations

from typing import Any


def evaluate(inputs: dict[str, Any]) -> dict[str, Any]:
    """Pass everything."""
    return {"status": "PASS", "score": 1.0, "metrics": {}}
