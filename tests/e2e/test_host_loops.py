"""Agents whose loop runs on the host, through the whole of it: pytest, lock, box, evidence, evaluator."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.docker_engine import needs_docker

from pytest_ageval.testing.scripted_model import HttpError, ScriptedModel, Shell, Text, Turn

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "datasets" / "quickstart"
SOLUTION = QUICKSTART / "tasks" / "fix-parser" / "solution" / "ini2json.py"
WRITE = f"cat > ini2json.py <<'PROGRAM'\n{SOLUTION.read_text(encoding='utf-8')}PROGRAM"

BOXES = ["local", pytest.param("docker", marks=[pytest.mark.docker, needs_docker])]

miniswe = pytest.mark.skipif(
    importlib.util.find_spec("minisweagent") is None, reason="pip install -e '.[miniswe]'"
)


def run(tmp_path: Path, agent: str, turns: list[Turn], *more: str) -> tuple[Any, Path, dict[str, Any]]:
    """Run the quickstart's fix-parser; the process, the attempt's directory, its result."""
    with ScriptedModel(turns) as model:
        command = [sys.executable, "-m", "pytest", str(QUICKSTART), "-k", "fix-parser"]
        command += ["--agent", agent, "--model", "scripted-model", "--base-url", model.base_url]
        command += ["--ageval-dir", str(tmp_path / "evidence"), "-p", "no:cacheprovider", *more]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    (attempt,) = (tmp_path / "evidence" / "runs").iterdir()
    return done, attempt, json.loads((attempt / "result.json").read_text())


def rows_of(attempt: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (attempt / "trajectory.jsonl").read_text().splitlines()]


@miniswe
@pytest.mark.parametrize("box", BOXES)
def test_miniswe_mends_the_program(tmp_path: Path, box: str) -> None:
    turns = [Shell("python3 -m unittest"), Shell(WRITE), Shell("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")]
    done, attempt, result = run(tmp_path, "miniswe", turns, "--box", box)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (result["status"], result["score"], result["agent"]) == ("PASS", 1.0, "miniswe")
    assert (result["agent_status"], result["stop_reason"]) == ("completed", "Submitted")
    rows = rows_of(attempt)
    calls = [row for row in rows if row["type"] == "tool_call"]
    assert next(row["args"]["command"] for row in calls) == "python3 -m unittest"
    assert len(calls) == 3
    assert any("FAILED" in json.dumps(row) for row in rows if row["type"] == "observation")
    (terminal,) = [row for row in rows if row["type"] == "terminal"]
    assert terminal["usage"]["prompt_tokens"] > 0


@miniswe
def test_provider_that_fails_for_good_is_an_error(tmp_path: Path) -> None:
    turns = [Shell("true"), HttpError(401, "no such key", times=None)]
    done, _, result = run(tmp_path, "miniswe", turns, "--ageval-exit", "verdict")
    assert done.returncode == 9, done.stdout + done.stderr
    assert (result["status"], result["error"]["phase"]) == ("ERROR", "run")
    assert "401" in json.dumps(result["error"])


def keys(*commands: str, done: bool = False) -> Text:
    rows = [{"keystrokes": text, "duration": 1.0} for text in commands]
    return Text(json.dumps({"analysis": "a", "plan": "p", "commands": rows, "task_complete": done}))


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
@pytest.mark.parametrize("box", BOXES)
def test_terminus_mends_the_program(tmp_path: Path, box: str) -> None:
    turns = [keys("python3 -m unittest\n"), keys(WRITE + "\n"), keys(done=True), keys(done=True)]
    done, attempt, result = run(tmp_path, "terminus-2", turns, "--box", box)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (result["status"], result["score"], result["agent"]) == ("PASS", 1.0, "terminus-2")
    assert (result["agent_status"], result["stop_reason"]) == ("completed", "task_complete")
    rows = rows_of(attempt)
    calls = [row for row in rows if row["type"] == "tool_call"]
    assert calls[0]["args"]["keystrokes"] == "python3 -m unittest\n"
    assert any("FAILED" in json.dumps(row) for row in rows if row["type"] == "observation")
