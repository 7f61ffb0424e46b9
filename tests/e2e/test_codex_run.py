"""The real codex through the whole of it: pytest, lock, box, ACP, trajectory, evaluator, reports."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_ageval.testing.scripted_model import HttpError, ScriptedModel

pytestmark = [
    pytest.mark.real_agent,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("npm") is None, reason="codex is installed with npm"),
]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "codex_offline.py"


def result_of(evidence: Path) -> tuple[Path, dict[str, Any]]:
    (attempt,) = (evidence / "runs").iterdir()
    return attempt, json.loads((attempt / "result.json").read_text())


def test_codex_mends_the_program_of_the_quickstart(tmp_path: Path) -> None:
    arguments = ["--ageval-dir", str(tmp_path / "evidence"), "--junitxml", str(tmp_path / "junit.xml")]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments, "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    attempt, result = result_of(tmp_path / "evidence")
    assert (result["status"], result["score"], result["agent"]) == ("PASS", 1.0, "codex")
    assert (result["agent_status"], result["stop_reason"]) == ("completed", "end_turn")
    rows = [json.loads(line) for line in (attempt / "trajectory.jsonl").read_text().splitlines()]
    assert {"turn", "tool_call", "observation", "terminal"} <= {row["type"] for row in rows}
    assert any("python3 -m unittest" in json.dumps(row) for row in rows if row["type"] == "tool_call")
    (case,) = ElementTree.parse(tmp_path / "junit.xml").iter("testcase")
    properties = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert properties["ageval.agent"] == "codex"
    assert properties["ageval.status"] == "PASS"


def test_a_provider_that_refuses_the_key_is_an_error_of_the_run(tmp_path: Path) -> None:
    with ScriptedModel([HttpError(401, "no such key", times=None)]) as model:
        command = [sys.executable, "-m", "pytest", str(ROOT / "datasets" / "quickstart"), "-k", "log-triage"]
        command += ["--agent", "codex", "--model", "gpt-5.5", "--base-url", model.base_url]
        command += ["--ageval-dir", str(tmp_path), "-p", "no:cacheprovider", "--ageval-exit", "verdict"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 9, done.stdout + done.stderr
    _, result = result_of(tmp_path)
    assert (result["status"], result["score"], result["error"]["phase"]) == ("ERROR", None, "run")
    assert "401" in json.dumps(result["error"])
