"""What the evaluators of this data set have in common: named checks, and careful reading of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ageval_sdk import evaluation_check

#: An artifact above this many bytes is refused unread.
MAX_ARTIFACT_BYTES = 1_000_000


class Unreadable(Exception):
    """An artifact is missing or is not what the task asked for; the text says how."""


class Grade:
    """Checks of one attempt. The score is the share of the checks that passed; PASS needs all of them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def check(self, check_id: str, passed: bool, title: str, found: str = "") -> bool:
        """Add one check. `title` says what is expected; `found` what was there instead."""
        self.rows.append(
            evaluation_check(
                check_id,
                title=title,
                status="PASS" if passed else "FAIL",
                score=1.0 if passed else 0.0,
                stderr=None if passed else f"found: {found or 'nothing'}\n",
            )
        )
        return passed

    def verdict(self, *, score: float | None = None, **metrics: Any) -> dict[str, Any]:
        """The evaluator's return value; `score` replaces the share of passed checks."""
        passed = sum(row["status"] == "PASS" for row in self.rows)
        total = len(self.rows)
        share = passed / total if total else 0.0
        return {
            "status": "PASS" if total and passed == total else "FAIL",
            "score": round(share if score is None else score, 4),
            "metrics": {"checks_passed": passed, "checks_total": total, **metrics},
            "checks": self.rows,
        }


def read_text(artifacts: dict[str, str], artifact_id: str) -> str:
    """The text of an artifact. Raises `Unreadable`."""
    if artifact_id not in artifacts:
        raise Unreadable(f"no artifact {artifact_id!r}")
    path = Path(artifacts[artifact_id])
    if path.is_symlink() or not path.is_file():
        raise Unreadable(f"artifact {artifact_id!r} is not a regular file")
    if path.stat().st_size > MAX_ARTIFACT_BYTES:
        raise Unreadable(f"artifact {artifact_id!r} has more than {MAX_ARTIFACT_BYTES} bytes")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Unreadable(f"artifact {artifact_id!r} is not UTF-8 text") from None


def read_object(artifacts: dict[str, str], artifact_id: str) -> dict[str, Any]:
    """The JSON object in an artifact. Raises `Unreadable`."""
    return parse_object(read_text(artifacts, artifact_id))


def parse_object(text: str) -> dict[str, Any]:
    """The JSON object that `text` is, and nothing else. Raises `Unreadable`."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON ({error}): {shorten(text)}") from None
    if not isinstance(value, dict):
        raise Unreadable(f"JSON, but not an object: {shorten(text)}")
    return value


def unfence(text: str) -> str:
    """`text` without the one Markdown code fence around it, if there is one."""
    lines = text.strip().splitlines()
    if len(lines) >= 2 and lines[0].startswith("```") and lines[-1].strip() == "```":
        return "\n".join(lines[1:-1])
    return text.strip()


def same(found: Any, expected: Any, tolerance: float = 0.005) -> bool:
    """Equality in which true is not 1, and numbers may differ by `tolerance`."""
    if isinstance(expected, bool) or isinstance(found, bool):
        return found is expected
    if isinstance(expected, int | float):
        return isinstance(found, int | float) and abs(found - expected) <= tolerance
    return type(found) is type(expected) and bool(found == expected)


def shorten(value: Any, limit: int = 300) -> str:
    """`value` on one line, at most `limit` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[:limit]}..."


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
