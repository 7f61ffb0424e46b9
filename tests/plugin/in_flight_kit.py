"""Tasks that note when they ran, and what a run of several in flight is asked about them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import DataSet

#: Writes when it began and ended, and takes some seconds.
SLEEPS = """
import json, time
from pathlib import Path

def run(ctx):
    begun = time.time()
    time.sleep({seconds})
    with open({log!r}, "a") as stream:
        stream.write(json.dumps([{name!r}, begun, time.time()]) + "\\n")
"""


def sleeping(demo: DataSet, **tasks: float) -> Path:
    """Tasks that take so many seconds; returns the file in which they note their times."""
    log = demo.root / "times.jsonl"
    demo.pytester.makeini("[pytest]\nageval_trust_tasks = true\n")  # so that they can write there
    for name, seconds in tasks.items():
        demo.task(name, run=SLEEPS.format(name=name, seconds=seconds, log=str(log)))
    return log


def most_at_once(log: Path) -> int:
    """How many attempts were at it at the same time."""
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    events = sorted([(begun, 1) for _, begun, _ in rows] + [(end, -1) for _, _, end in rows])
    now, most = 0, 0
    for _, change in events:
        now += change
        most = max(most, now)
    return most


def order(result: pytest.RunResult) -> list[str]:
    """The tasks in the order in which they were reported."""
    told = [line for line in result.outlines if re.search(r"\b(PASSED|FAILED|ERROR)\b", line)]
    return [found[1] for line in told if (found := re.search(r"::([\w-]+)\[", line))]
