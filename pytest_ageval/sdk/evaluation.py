"""What an evaluator may add to its verdict."""

from __future__ import annotations

import math
from typing import Any


def evaluation_check(
    check_id: str,
    *,
    title: str | None = None,
    status: str | None = None,
    score: float | None = None,
    script: str | None = None,
    environment: str | None = None,
    exit_code: int | None = None,
    stdout: str | bytes | None = None,
    stderr: str | bytes | None = None,
    exec_result: Any = None,
) -> dict[str, Any]:
    """One row for the verdict's ``checks`` list: a part that was looked at, and how it went.

    `exec_result` (what ``scoring.exec`` returned) gives `exit_code`, `stdout` and `stderr` where they
    are not given. Blank texts and scores that are not finite numbers are left out. The rows are shown
    and kept; they do not decide. Raises ValueError for a blank `check_id`.
    """
    if not isinstance(check_id, str) or not check_id.strip():
        raise ValueError("the id of a check must be text and not blank")
    row: dict[str, Any] = {"id": check_id.strip()}
    words = {"title": title, "status": status, "script": script, "environment": environment}
    for name, word in words.items():
        if isinstance(word, str) and word.strip():
            row[name] = word.strip()
    if isinstance(score, int | float) and not isinstance(score, bool) and math.isfinite(score):
        row["score"] = float(score)
    if exit_code is None:
        exit_code = getattr(exec_result, "exit_code", None)
    if isinstance(exit_code, int) and not isinstance(exit_code, bool):
        row["exit_code"] = exit_code
    for name, stream in (("stdout", stdout), ("stderr", stderr)):
        found = getattr(exec_result, name, None) if stream is None else stream
        if found is not None:
            row[name] = _text(found)
    return row


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
