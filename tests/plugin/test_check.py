"""``pytest-ageval check``: what it says of sound and of unsound tasks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from .conftest import DataSet

ASK = """
async def run(ctx):
    await ctx.agent.session("solver").invoke("write 42 into answer.txt")
"""
READ = """
import pathlib
def evaluate(inputs):
    path = pathlib.Path(inputs["workspace_dir"], "answer.txt")
    passed = path.is_file() and path.read_text().strip() == "42"
    return {"status": "PASS" if passed else "FAIL", "score": float(passed)}
"""
#: Believes what stands in the workspace.
BELIEVES = """
import json, pathlib
def evaluate(inputs):
    path = pathlib.Path(inputs["workspace_dir"])
    if (path / "verdict.json").is_file():
        return json.loads((path / "verdict.json").read_text())
    return {"status": "PASS" if (path / "answer.txt").is_file() else "FAIL"}
"""
ANYTHING = 'def evaluate(inputs):\n    return {"status": "PASS"}\n'
RANDOM = """
import os, pathlib
def evaluate(inputs):
    passed = pathlib.Path(inputs["workspace_dir"], "answer.txt").is_file()
    return {"status": "PASS" if passed else "FAIL", "score": int.from_bytes(os.urandom(6), "big") / 2**48}
"""


@pytest.fixture
def tasks(demo: DataSet) -> DataSet:
    for name, evaluator in (
        ("sound", READ),
        ("believes", BELIEVES),
        ("anything", ANYTHING),
        ("random", RANDOM),
        ("unsolved", READ),
    ):
        task = demo.task(name, run=ASK, evaluator=evaluator, roles=("solver",))
        (task / "solution").mkdir()
        answer = "41" if name == "unsolved" else "42"
        (task / "solution" / "solve.sh").write_text(f"echo {answer} > answer.txt\n")
    return demo


def check(demo: DataSet, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_ageval.cli", "check", "datasets/demo", *arguments]
    return subprocess.run(command, cwd=demo.pytester.path, capture_output=True, text=True, timeout=300)


def test_what_is_found(tasks: DataSet) -> None:
    done = check(tasks, "--json", "-n", "2")
    assert done.returncode == 1, done.stderr
    found = {row["task"]: row for row in map(json.loads, done.stdout.splitlines())}
    names = ("oracle_accepted", "nop_rejected", "stable", "tamper_proof", "sound")
    assert {task: [row[name] for name in names] for task, row in found.items()} == {
        "sound": [True, True, True, True, True],
        "believes": [True, True, True, False, False],
        "anything": [True, False, True, False, False],
        "random": [True, True, False, True, False],
        "unsolved": [False, True, True, True, False],
    }
    assert found["believes"]["fooled_by"] == ["tamper-reward"]


def test_a_table_for_people(tasks: DataSet) -> None:
    evidence = tasks.pytester.path / "kept"
    done = check(tasks, "-k", "sound or believes", "--attempts=1", f"--evidence={evidence}")
    lines = done.stdout.splitlines()
    assert lines[0].split("  ")[0] == "task"
    assert any(line.split() == ["sound", "yes", "(1/1)", "yes", "(1/1)", "yes", "yes"] for line in lines)
    assert "believes: tamper-reward passed: reward and verdict files are planted" in lines
    assert any(line.startswith("believes: evidence of tamper-reward:") for line in lines)
    assert lines[-1] == "1 of 2 tasks sound"
    assert list(evidence.rglob("result.json"))


def test_what_cannot_be_found_out(demo: DataSet) -> None:
    done = check(demo)
    assert done.returncode == 2
    assert "no attempt was made" in done.stderr or "no tests ran" in done.stderr
