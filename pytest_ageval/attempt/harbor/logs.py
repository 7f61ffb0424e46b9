"""What a verifier leaves in its directory: kept where nothing is exported, since it holds gold.

A grader's details quote its criteria and a judge's answer; a report of a test suite quotes what it expected.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING, Any

from pytest_ageval.attempt.harvest import accept
from pytest_ageval.config.harbor.document import MAIN, VERIFIER_LOGS
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.box import Box

#: What ``harbor-rewardkit`` writes beside reward.json.
DETAILS = "reward-details.json"
#: Bytes of it that are read.
LIMIT = 16 * 1024 * 1024
JUDGE_FIGURES = ("input_tokens", "output_tokens", "cost_usd")


async def keep(attempt: Attempt, box: Box, step: str) -> dict[str, Any]:
    """Fetch the directory into the private evidence; returns what judges used, if the details say so.

    The reward is not read from here, so that what cannot be fetched is a fact and no error.
    """
    dest = attempt.evidence.verifier_directory(step)
    try:
        await box.download(VERIFIER_LOGS, dest, service=MAIN)
        await asyncio.to_thread(accept, attempt, dest, ())
    except BoxError as error:
        attempt.fact("verifier_logs_not_kept", {"step": step, "reason": f"{error.title}: {error.message}"})
        return {}
    return await asyncio.to_thread(read_judges, dest / DETAILS)


def read_judges(path: Path) -> dict[str, Any]:
    """Tokens and cost of all judges of a details file, and their models; empty when there are none."""
    try:
        if path.is_symlink() or path.stat().st_size > LIMIT:
            return {}
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    found: dict[str, Any] = {}
    models: set[str] = set()
    for row in _judged(document):
        models.add(str((row.get("judge") or {}).get("model") or "unknown"))
        usage = row["usage"]
        for name in JUDGE_FIGURES:
            value = usage.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                found[name] = found.get(name, 0) + value
    return {**found, "models": sorted(models)} if models else {}


def _judged(node: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Every reward of a judge below `node` that has figures."""
    if depth > 20:
        return
    if isinstance(node, list):
        for row in node:
            yield from _judged(row, depth + 1)
    elif isinstance(node, dict):
        if isinstance(node.get("usage"), dict) and isinstance(node.get("judge"), dict):
            yield node
            return
        for row in node.values():
            yield from _judged(row, depth + 1)
