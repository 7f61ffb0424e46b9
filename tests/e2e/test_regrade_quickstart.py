"""The work of real data sets, judged again: the same verdicts, and the sources stay as they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from test_quickstart import QUICKSTART, TASKS, run


def results(evidence: Path) -> dict[str, dict[str, Any]]:
    """result.json of each attempt, by the attempt."""
    return {path.parent.name: json.loads(path.read_text()) for path in evidence.glob("runs/*/result.json")}


def content(evidence: Path, names: list[str]) -> dict[Path, bytes]:
    files = (path for name in names for path in (evidence / "runs" / name).rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files}


def test_oracle_and_nop_are_judged_as_they_were(tmp_path: Path) -> None:
    copy = tmp_path / "quickstart"
    shutil.copytree(QUICKSTART, copy, ignore=shutil.ignore_patterns(".ageval"))
    evidence = tmp_path / "evidence"
    run(copy, tmp_path, "--agent", "oracle", "--agent", "nop", "-n", "2")
    before = results(evidence)
    assert len(before) == 2 * len(TASKS)
    sources = content(evidence, list(before))
    run(copy, tmp_path, *(f"--regrade={name}" for name in before), "-n", "2")
    after = {row["regraded_of"]: row for row in results(evidence).values() if "regraded_of" in row}
    assert set(after) == set(before)
    for name, row in after.items():
        harvested = any((evidence / "runs" / name / "task-artifacts").iterdir())
        if harvested:
            assert (row["status"], row["score"]) == (before[name]["status"], before[name]["score"]), row
        else:
            assert row["error"]["title"] == "regrade_harvest_missing"
        assert row["agent"] == before[name]["agent"]
    assert sum(row["status"] == "PASS" for row in after.values()) == len(TASKS)
    assert content(evidence, list(before)) == sources
