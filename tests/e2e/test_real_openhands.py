"""The real OpenHands SDK through the whole of it: install, box, events, evaluator; and what ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.docker_engine import needs_docker

from pytest_ageval.testing.scripted_model import HttpError, ScriptedModel, Shell, Text, Turn

pytestmark = [
    pytest.mark.real_agent,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("AGEVAL_TEST_OPENHANDS") != "1",
        reason="installs 520 MB from PyPI: run with AGEVAL_TEST_OPENHANDS=1",
    ),
]

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "datasets" / "quickstart"
SOLUTION = QUICKSTART / "tasks" / "fix-parser" / "solution" / "ini2json.py"
WRITE = f"cat > ini2json.py <<'PROGRAM'\n{SOLUTION.read_text(encoding='utf-8')}PROGRAM"
BRIDGE = ["docker", "network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}"]


def run(tmp_path: Path, turns: list[Turn], box: str, *more: str) -> tuple[Any, Path, dict[str, Any]]:
    """Run the quickstart's fix-parser; the process, the attempt's directory, its result."""
    host = "127.0.0.1"
    if box == "docker":  # the model listens where a container reaches it
        host = subprocess.run(BRIDGE, capture_output=True, text=True, check=True).stdout.strip()
    with ScriptedModel(turns, host=host) as model:
        command = [sys.executable, "-m", "pytest", str(QUICKSTART), "-k", "fix-parser", "--box", box]
        command += ["--agent", "openhands-sdk", "--model", "scripted-model", "--base-url", model.base_url]
        command += ["--ageval-dir", str(tmp_path / "evidence"), "-p", "no:cacheprovider", *more]
        env = {**os.environ, "OPENAI_API_KEY": "sk-dummy-1234567890"}
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, env=env)
    (attempt,) = (tmp_path / "evidence" / "runs").iterdir()
    return done, attempt, json.loads((attempt / "result.json").read_text())


@pytest.mark.parametrize("box", ["local", pytest.param("docker", marks=[pytest.mark.docker, needs_docker])])
def test_it_mends_the_program(tmp_path: Path, box: str) -> None:
    turns = [Shell("python3 -m unittest"), Shell(WRITE), Text("ini2json.py does what it should.")]
    done, attempt, result = run(tmp_path, turns, box)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (result["status"], result["score"], result["agent"]) == ("PASS", 1.0, "openhands-sdk")
    assert (result["agent_status"], result["stop_reason"]) == ("completed", "finished")
    rows = [json.loads(line) for line in (attempt / "trajectory.jsonl").read_text().splitlines()]
    calls = [row for row in rows if row["type"] == "tool_call"]
    assert [row["args"]["command"] for row in calls][:1] == ["python3 -m unittest"]
    assert any("FAILED" in json.dumps(row) for row in rows if row["type"] == "observation")
    (terminal,) = [row for row in rows if row["type"] == "terminal"]
    assert terminal["usage"]["prompt_tokens"] == 3000
    assert "sk-dummy" not in "".join(path.read_text(errors="replace") for path in attempt.rglob("*.json*"))


def test_provider_that_refuses_the_key_is_an_error_of_the_run(tmp_path: Path) -> None:
    turns: list[Turn] = [HttpError(401, "no such key", times=None)]
    done, _, result = run(tmp_path, turns, "local", "--ageval-exit", "verdict")
    assert done.returncode == 9, done.stdout + done.stderr
    assert (result["status"], result["score"], result["error"]["phase"]) == ("ERROR", None, "run")
    assert "AuthenticationError" in json.dumps(result["error"])
