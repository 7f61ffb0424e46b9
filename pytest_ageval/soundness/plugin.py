"""The pytest plugin of ``pytest-ageval check``: its agents, and one line for each item's outcome."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_ageval.soundness.agents import TAMPERERS

if TYPE_CHECKING:
    from pytest_ageval.executor import Executor


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the outcomes go."""
    parser.addoption("--ageval-check-log", metavar="FILE", help="a line of JSON for each report")


def pytest_ageval_executors() -> dict[str, type[Executor]]:
    """The agents that try to be graded well without having worked."""
    return {cls.kind: cls for cls in TAMPERERS}


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what is known of an attempt. In one process only: that of the controller."""
    known = dict(report.user_properties)
    if _log is None or "ageval.status" not in known:
        return
    line = {
        "nodeid": report.nodeid,
        **{name: known.get(f"ageval.{name}") for name in ("task", "agent", "attempt", "status", "score")},
        "error": known.get("ageval.error.title"),
        "evidence": known.get("ageval.attempt_dir"),
    }
    with _log.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line, default=str) + "\n")


_log: Path | None = None


def pytest_configure(config: pytest.Config) -> None:
    """A worker has no log: its reports come to the controller."""
    global _log
    given = config.getoption("--ageval-check-log")
    _log = Path(given) if given and not hasattr(config, "workerinput") else None
