"""A metric of your own: how many lines of the task's files the agent changed.

Copy this file beside your data set's ageval.yaml. The number appears as `lines_changed` among the
metrics of result.json and of the reports. It cannot change a verdict: status, score and checks were
bound before this hook is called.
"""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_ageval.box import WORKSPACE

#: Larger files, and files that are not text, do not count.
MAX_BYTES = 200_000


@pytest.hookimpl(wrapper=True)
def pytest_ageval_after_evaluate(
    attempt: Any, value: dict[str, Any]
) -> Generator[None, dict[str, Any], dict[str, Any]]:
    """Add the metric to what the evaluator reported."""
    verdict = yield
    seed = attempt.locked.directory("data")
    if seed is None:
        return verdict
    with tempfile.TemporaryDirectory() as directory:
        # Also where the box is on another machine.
        workspace = Path(directory) / "workspace"
        attempt.box.download(WORKSPACE, workspace)
        metric = sum(lines_changed(seed, workspace))
    return {**verdict, "metrics": {**verdict["metrics"], "lines_changed": metric}}


def lines_changed(before: Path, after: Path) -> Iterator[int]:
    """Added plus removed lines of each file that was there at the start."""
    for path in sorted(before.rglob("*")):
        old, new = text(path), text(after / path.relative_to(before))
        if old is not None:
            diff = difflib.unified_diff(old, new or [], n=0, lineterm="")
            yield sum(line[0] in "+-" for line in list(diff)[2:])


def text(path: Path) -> list[str] | None:
    """The lines of a text file; None if `path` is not one."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_BYTES:
        return None
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return None
