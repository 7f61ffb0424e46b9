"""Known failures: attempts that may FAIL without failing the run.

Copy this file beside your data set's ageval.yaml, and write known_failures.txt beside it: one
`task[agent]` a line as pytest shows it, then a reason if you like (no such file: nothing is known):

    fix-parser[codex]          loses the last line of long files
    sales-report[openai-http]  has no files

Only a FAIL is excused: `raises` names the exception of a FAIL, so an ERROR (an outage, a broken
evaluator) still is one. A task on the list that passes fails the run, so that the list stays true;
set STRICT to False to let it pass.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ageval.errors import TaskFailed

STRICT = True
FILE = Path(__file__).with_name("known_failures.txt")


def known_failures() -> dict[str, str]:
    """Name of the attempt to reason."""
    if not FILE.is_file():
        return {}
    rows = (line.split(maxsplit=1) for line in FILE.read_text(encoding="utf-8").splitlines())
    return {
        row[0]: row[1].strip() if len(row) > 1 else "known failure"
        for row in rows
        if row and not row[0].startswith("#")
    }


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is on the list. A name that no task has is not an error: the run may be a part."""
    known = known_failures()
    for item in items:
        # A conftest.py gets the items of the whole run; ours are those below it.
        if item.name in known and FILE.parent in item.path.parents:
            reason = known[item.name]
            item.add_marker(pytest.mark.xfail(raises=TaskFailed, reason=reason, strict=STRICT))
