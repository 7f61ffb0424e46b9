"""The quickstart in docker boxes, as a user runs it; what a run leaves; codex in a container."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.docker_engine import needs_docker, on_engine

from pytest_ageval.testing.scripted_model import ScriptedModel, Shell, Text, Write
from pytest_ageval.worker import view

pytestmark = [pytest.mark.docker, needs_docker]

QUICKSTART = Path(__file__).parents[2] / "datasets" / "quickstart"
SOLUTION = QUICKSTART / "tasks" / "fix-parser" / "solution" / "ini2json.py"
GATEWAY = ["docker", "network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}"]


def command(directory: Path, *arguments: str) -> list[str]:
    box = [] if "--box" in arguments else ["--box", "docker"]
    options = [*box, "--ageval-dir", str(directory / "evidence"), "-p", "no:cacheprovider", "-q"]
    return [sys.executable, "-m", "pytest", str(QUICKSTART), *options, *arguments]


def run(directory: Path, *arguments: str) -> tuple[int, str, dict[str, list[dict[str, object]]]]:
    """Exit code, output, and the results by task."""
    done = subprocess.run(
        command(directory, *arguments), cwd=directory, capture_output=True, text=True, timeout=500
    )
    found: dict[str, list[dict[str, object]]] = {}
    for path in (directory / "evidence").rglob("result.json"):
        result = json.loads(path.read_text())
        found.setdefault(result["task_id"], []).append(result)
    return done.returncode, done.stdout + done.stderr, found


def runs(directory: Path) -> set[str]:
    """The run ids in the evidence, from the headers of the attempts."""
    paths = (directory / "evidence").rglob("activity.jsonl")
    rows = (json.loads(line) for path in paths for line in path.read_text().splitlines()[:5])
    return {row["payload"]["run_id"] for row in rows if row["kind"] == "attempt"}


def test_every_solution_passes(tmp_path: Path) -> None:
    code, output, results = run(tmp_path, "--agent", "oracle", "-n", "2")
    assert code == 0, output
    assert len(results) == 7
    for (result,) in results.values():
        assert (result["status"], result["kind"], result["cleanup_warning"]) == ("PASS", "docker", None)
    assert "local" not in output
    # Scripts are contained although the workspaces belong to the user of the boxes.
    summaries = [path.read_text() for path in (tmp_path / "evidence" / "runs").rglob("summary.json")]
    assert len(summaries) == 7
    assert not any("task_script_not_contained" in text for text in summaries) or view.unusable()


def test_doing_nothing_fails(tmp_path: Path) -> None:
    code, output, results = run(tmp_path, "--agent", "nop", "-k", "fix-parser or log-triage")
    assert code == 1, output
    assert {result["status"] for rows in results.values() for result in rows} == {"FAIL"}


@pytest.mark.slow
def test_twenty_attempts_leave_nothing(tmp_path: Path) -> None:
    code, output, results = run(
        tmp_path, "--agent", "oracle", "-k", "log-triage", "--attempts", "20", "-n", "2"
    )
    assert code == 0, output
    assert len(results["log-triage"]) == 20
    (run_id,) = runs(tmp_path)
    assert on_engine(f"ageval.run={run_id}") == []


def test_interrupted_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path, "--agent", "oracle", "--attempts", "50", "-k", "log-triage"),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not ((tmp_path / "evidence").exists() and runs_with_containers(tmp_path)):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 2
    finally:
        process.kill()
        process.wait()
    for run_id in runs(tmp_path):
        assert on_engine(f"ageval.run={run_id}") == []


def runs_with_containers(directory: Path) -> list[str]:
    try:
        return [line for run_id in runs(directory) for line in on_engine(f"ageval.run={run_id}")]
    except (IndexError, ValueError):  # a header that is being written
        return []


@pytest.mark.real_agent
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="codex is installed with npm")
@pytest.mark.parametrize("box", ["docker", "copying"])
def test_codex_in_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, box: str) -> None:
    """The agent's install is the host's: shown read-only, or a layer of the image, which has no npm."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    gateway = subprocess.run(GATEWAY, capture_output=True, text=True, check=True).stdout.strip()
    script = [Shell("python3 -m unittest; id -u"), Write("ini2json.py", SOLUTION.read_text()), Text("Done.")]
    with ScriptedModel(script, host=gateway or "172.17.0.1") as model:
        arguments = ["--agent", "codex", "--model", "gpt-5.5", "--base-url", model.base_url]
        arguments += ["-p", "copying_box", "--box", box]
        code, output, results = run(tmp_path, *arguments, "-k", "fix-parser")
    assert code == 0, output
    (result,) = results["fix-parser"]
    assert (result["status"], result["agent"], result["agent_status"]) == ("PASS", "codex", "completed")
    assert result["kind"] == box
    (trajectory,) = (tmp_path / "evidence").rglob("trajectory.jsonl")
    if os.geteuid() == 0:
        assert "10001" in trajectory.read_text()
