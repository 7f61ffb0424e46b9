"""Harbor attempts judged again on a real Docker engine: what was kept goes to the verifier of today."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from docker_engine import needs_docker
from test_harbor_run import GRADE, Tasks, tasks, title

pytestmark = [pytest.mark.docker, needs_docker]

__all__ = ["tasks"]

SEPARATE = """
artifacts = ["/app/answer"]
[verifier]
environment_mode = "separate"
"""
WHOLE = 'artifacts = ["/app"]\n'
STEPS = """
multi_step_reward_strategy = "mean"
artifacts = ["/app/answer"]
[verifier]
environment_mode = "separate"
[[steps]]
name = "one"
[[steps]]
name = "two"
"""


def regraded(root: Path) -> dict[str, dict[str, Any]]:
    results = (json.loads(path.read_text()) for path in root.glob(".ageval/runs/*/result.json"))
    return {result["task_id"]: result for result in results if "regraded_of" in result}


def test_kept_work_is_judged_by_the_verifier_of_today(tasks: Tasks) -> None:
    solve = "echo 42 > /app/answer"
    tasks.write("separate", solve, SEPARATE)
    tasks.write("whole", solve, WHOLE)
    tasks.write("shared", solve)
    steps = tasks.write("steps", "", STEPS)
    for name in ("one", "two"):
        step = steps / "steps" / name
        (step / "tests").mkdir(parents=True)
        (step / "tests" / "test.sh").write_text(GRADE)
        (step / "instruction.md").write_text(solve if name == "one" else "echo 43 > /app/answer")
    before = tasks.run()
    assert {name: title(row) for name, row in before.items()} == {
        "separate": "PASS",
        "whole": "PASS",
        "shared": "PASS",
        "steps": "FAIL",
    }
    (tasks.root / "separate" / "tests" / "test.sh").write_text(
        "echo 0 > /logs/verifier/reward.txt; [ ! -e /app/answer ] || cat /app/answer > /logs/verifier/x\n"
    )
    names = [f"--regrade={path.name}" for path in (tasks.root / ".ageval" / "runs").iterdir()]
    tasks.run(*names)
    after = regraded(tasks.root)
    assert {name: title(row) for name, row in after.items()} == {
        "separate": "FAIL",
        "whole": "PASS",
        "shared": "regrade_impossible",
        "steps": "FAIL",
    }, tasks.output
    assert after["steps"]["metrics"] == before["steps"]["metrics"]
    assert "was not kept" in after["shared"]["error"]["message"]
    assert all(row["agent"] == "lab" for row in after.values())


def test_an_imported_trial_is_judged_by_its_task(tasks: Tasks, tmp_path: Path) -> None:
    tasks.write("separate", "echo 42 > /app/answer", SEPARATE)
    assert title(tasks.run()["separate"]) == "PASS"
    command = [sys.executable, "-m", "pytest_ageval.cli"]
    jobs, imported = tmp_path / "jobs", tmp_path / "imported"
    export = [*command, "export", str(tasks.root), "--format", "harbor", "--out", str(jobs)]
    subprocess.run(export, check=True, capture_output=True)
    for job in sorted(jobs.iterdir()):
        read = [*command, "import", str(job), "--into", str(imported), "--dataset-id", tasks.root.name]
        subprocess.run(read, check=True, capture_output=True)
    (source,) = json_results(imported)
    tasks.run("--regrade", "last", f"--ageval-dir={imported}")
    (row,) = [row for row in json_results(imported) if "regraded_of" in row]
    assert (title(row), row["agent"]) == ("PASS", source["agent"]), tasks.output
    assert row["regraded_of"] == source["attempt_id"]


def json_results(evidence: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in evidence.glob("runs/*/result.json")]
