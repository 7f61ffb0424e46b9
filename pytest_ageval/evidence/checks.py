"""The rows of evaluation/checks.json."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

SCHEMA = "ageval.evaluation.checks/1"

#: Characters of each stream of a check.
STREAM_LIMIT = 65_536
_MARK = "\n[... cut]"


def check_row(raw: Any) -> dict[str, Any] | None:
    """The known fields of one check, or None when it has no id."""
    if not isinstance(raw, Mapping):
        return None
    name = raw.get("id")
    if not isinstance(name, str) or not name.strip():
        return None
    row: dict[str, Any] = {"id": name.strip()}
    for key in ("title", "status", "script", "environment"):
        value = raw.get(key)
        if isinstance(value, str) and value.strip():
            row[key] = value.strip()
    score = raw.get("score")
    if isinstance(score, (int, float)) and not isinstance(score, bool) and math.isfinite(score):
        row["score"] = score
    code = raw.get("exit_code")
    if isinstance(code, int) and not isinstance(code, bool):
        row["exit_code"] = code
    for key in ("stdout", "stderr"):
        if raw.get(key) is not None:
            row[key] = _stream(raw[key])
    return row


def _stream(value: Any) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= STREAM_LIMIT else text[: STREAM_LIMIT - len(_MARK)] + _MARK


def check_rows(raw: Iterable[Any]) -> list[dict[str, Any]]:
    """The good rows of what an evaluator gave as ``checks``."""
    return [row for item in raw if (row := check_row(item)) is not None]
