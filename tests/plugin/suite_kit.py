"""Data sets whose attempts are counted, and the record of their suite runs."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from pytest_ageval.suite import Suite, SuiteLayout, read_suite, suites

if TYPE_CHECKING:
    from .conftest import DataSet

#: Counts the attempts that are run, and fails those of the task "shaky" until the file "mended" is there.
COUNTING = """
import os
from pathlib import Path

HERE = Path(__file__).parent

def pytest_ageval_after_environment(attempt):
    with open(HERE / "starts", "a") as file:
        file.write(attempt.task_id + "\\n")
    if attempt.task_id == "shaky" and not (HERE / "mended").exists():
        raise RuntimeError("the weather is bad")
"""


def counting(demo: DataSet) -> None:
    (demo.root / "conftest.py").write_text(dedent(COUNTING))


def starts(demo: DataSet) -> list[str]:
    """The tasks whose attempts were run since the last call."""
    file = demo.root / "starts"
    found = file.read_text().split() if file.exists() else []
    file.unlink(missing_ok=True)
    return sorted(found)


def suite_roots(demo: DataSet) -> list[Path]:
    return suites(demo.root / ".ageval")


def the_suite(demo: DataSet) -> Suite:
    (root,) = suite_roots(demo)
    return read_suite(root)


def document(demo: DataSet, name: str) -> dict[str, Any]:
    (root,) = suite_roots(demo)
    found: dict[str, Any] = json.loads(getattr(SuiteLayout(root), name).read_text())
    return found


def statuses(demo: DataSet) -> dict[str, str]:
    return {row.task_id: row.status for row in the_suite(demo).rows}
