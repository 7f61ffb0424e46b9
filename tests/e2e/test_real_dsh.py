"""The real DeepSeek Harness through the whole of it, against the scripted model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ageval.testing.scripted_model import ScriptedModel, Shell, Text

pytestmark = [
    pytest.mark.real_agent,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("AGEVAL_TEST_DSH") != "1",
        reason="installs 320 MB from PyPI: run with AGEVAL_TEST_DSH=1",
    ),
]

QUICKSTART = Path(__file__).parents[2] / "datasets" / "quickstart"
SOLUTION = QUICKSTART / "tasks" / "fix-parser" / "solution" / "ini2json.py"
WRITE = f"cat > ini2json.py <<'PROGRAM'\n{SOLUTION.read_text(encoding='utf-8')}PROGRAM"


def test_it_mends_the_program(tmp_path: Path) -> None:
    turns = [Shell("python3 -m unittest"), Shell(WRITE), Text("ini2json.py does what it should.")]
    with ScriptedModel(turns) as model:
        command = [sys.executable, "-m", "pytest", str(QUICKSTART), "-k", "fix-parser", "--agent", "dsh"]
        command += ["--model", "scripted-model", "--base-url", model.base_url]
        command += ["--ageval-dir", str(tmp_path / "evidence"), "-p", "no:cacheprovider"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    (attempt,) = (tmp_path / "evidence" / "runs").iterdir()
    result = json.loads((attempt / "result.json").read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert (result["status"], result["score"], result["agent"]) == ("PASS", 1.0, "dsh")
    assert (result["agent_status"], result["stop_reason"]) == ("completed", "end_turn")
    assert model.requests[0].model == "scripted-model"
    rows = [json.loads(line) for line in (attempt / "trajectory.jsonl").read_text().splitlines()]
    assert any("FAILED" in json.dumps(row) for row in rows if row["type"] == "observation")
