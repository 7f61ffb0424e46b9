"""What goes wrong in a container is told apart by the attempt: an ERROR with its title, a limit, a score."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.docker_engine import needs_docker, on_engine

pytestmark = [pytest.mark.docker, needs_docker]

RUN = """
async def run(ctx):
    await ctx.agent.session("solver").invoke("work")
"""
EVALUATOR = """
async def evaluate(inputs):
    done = await inputs["scoring"].exec("main", ["cat", "answer"])
    return {"status": "PASS" if done.stdout == "42\\n" else "FAIL"}
"""
IGNORING = """
async def evaluate(inputs):
    try:
        done = await inputs["scoring"].exec("main", ["cat", "answer"])
    except RuntimeError:
        return {"status": "FAIL"}
    return {"status": "PASS"}
"""
CONFTEST = """
import subprocess

def remove(attempt):
    container = attempt.raw_box.handle()["container"]
    subprocess.run(["docker", "rm", "-f", container], check=True, capture_output=True)

def pytest_ageval_after_agent_open(attempt, value):
    if attempt.task_id == "gone-in-run":
        remove(attempt)

def pytest_ageval_after_run(attempt):
    if attempt.task_id in ("gone-before-judge", "gone-and-ignored"):
        remove(attempt)
"""
ALLOCATE = "python3 -c \"x = b'1' * (200 << 20)\""
TASKS = {
    "good": ("echo 42 > answer", ""),
    "gone-in-run": ("echo 42 > answer", ""),
    "gone-before-judge": ("echo 42 > answer", ""),
    "gone-and-ignored": ("echo 42 > answer", ""),
    "out-of-memory": (f"exec {ALLOCATE}", "parameters: {memory_mb: 64}\n"),
    "late-and-right": ("echo 42 > answer; sleep 60 & sleep 60", "limits: {wall_time_seconds: 3}\n"),
    "late-and-wrong": ("sleep 60", "limits: {wall_time_seconds: 3}\n"),
    "no-image": ("true", ""),
}


def dataset(root: Path, tasks: dict[str, tuple[str, str]]) -> Path:
    texts = {
        "ageval.yaml": 'format: ageval.dataset/1\ndataset_id: x/y\nversion: "1"\ntasks: {root: tasks}\n',
        "profiles.yaml": "format: ageval.profiles/1\nenvironment: docker\nagent_profiles: {}\n",
        "conftest.py": CONFTEST,
    }
    for name, (script, more) in tasks.items():
        texts |= {
            f"tasks/{name}/task.yaml": f"format: ageval.task/1\ntask_id: {name}\ndescription: d\n"
            f"agent_profiles: [{{id: solver}}]\n{more}",
            f"tasks/{name}/run.py": RUN,
            f"tasks/{name}/evaluator.py": EVALUATOR,
            f"tasks/{name}/solution/solve.sh": f"{script}\n",
        }
    if "gone-and-ignored" in tasks:
        texts["tasks/gone-and-ignored/evaluator.py"] = IGNORING
    if "no-image" in tasks:
        texts["tasks/no-image/environment/Dockerfile"] = "FROM localhost:9/none\n"
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def command(root: Path, *arguments: str) -> list[str]:
    words = [sys.executable, "-m", "pytest", str(root), "--agent", "oracle", "-p", "no:cacheprovider", "-q"]
    return [*words, "--ageval-dir", str(root.parent / "evidence"), *arguments]


def results(root: Path) -> dict[str, dict[str, Any]]:
    paths = (root.parent / "evidence").rglob("result.json")
    rows = [json.loads(path.read_text()) for path in paths]
    return {row["task_id"]: row for row in rows}


def test_each_trouble_has_its_own_end(tmp_path: Path) -> None:
    root = dataset(tmp_path / "d", TASKS)
    done = subprocess.run(command(root), cwd=tmp_path, capture_output=True, text=True, timeout=300)
    found = results(root)
    assert done.returncode == 1, done.stdout
    errors = {name: row["error"] for name, row in found.items() if row["status"] == "ERROR"}
    ends = {name: (row["status"], row["limit"]) for name, row in found.items() if row["status"] != "ERROR"}
    assert "No such container" in errors["gone-before-judge"]["message"]
    assert "the agent had failed: environment_gone" in errors["gone-in-run"]["message"]
    assert ends == {
        "good": ("PASS", None),
        "late-and-right": ("PASS", "wall_time_seconds"),
        "late-and-wrong": ("FAIL", "wall_time_seconds"),
    }
    assert {name: (row["phase"], row["title"]) for name, row in errors.items()} == {
        "gone-in-run": ("evaluate", "environment_gone"),
        "gone-and-ignored": ("evaluate", "environment_gone"),
        "gone-before-judge": ("evaluate", "environment_gone"),
        "out-of-memory": ("run", "environment_oom_killed"),
        "no-image": ("environment", "environment_image_unresolved"),
    }
    assert "localhost:9/none" in errors["no-image"]["message"]
    for row in found.values():
        assert on_engine(f"ageval.attempt={row['attempt_id']}") == []
    assert "1 failed, 2 passed, 5 errors" in done.stdout


# -- what ends a run -------------------------------------------------------------------------------


@pytest.fixture
def sleeping(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Starts a run whose agent sleeps in its container; gives the process and the run's id."""
    root = dataset(tmp_path / "d", {"sleeps": ("sleep 600", "")})
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            command(root, *arguments), cwd=tmp_path, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        started.append(process)
        deadline = time.monotonic() + 90
        while True:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            for path in (tmp_path / "evidence").rglob("activity.jsonl"):
                rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
                # The agent's turn has begun.
                if any(row["kind"] == "invoke" for row in rows):
                    (run,) = {row["payload"]["run_id"] for row in rows if row["kind"] == "attempt"}
                    if on_engine(f"ageval.run={run}"):
                        return process, run
            time.sleep(0.1)

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM,)],
    ids=["twice", "term"],
)
def test_however_a_run_is_ended_its_containers_are_gone(sleeping: Any, signals: tuple[int, ...]) -> None:
    process, run = sleeping()
    for number in signals:
        process.send_signal(number)
        time.sleep(0.2)
    process.communicate(timeout=40)
    assert process.returncode != 0
    assert on_engine(f"ageval.run={run}") == []


def owner_of(run: str) -> int:
    """The process that holds the container of the run."""
    words = ["docker", "ps", "-q", "--filter", f"label=ageval.run={run}"]
    (name,) = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    label = '{{index .Config.Labels "ageval.owner.pid"}}'
    done = subprocess.run(
        ["docker", "inspect", "-f", label, name], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_the_container_of_a_killed_worker_is_gone_when_the_run_ends(sleeping: Any) -> None:
    process, run = sleeping("-n", "1", "--max-worker-restart", "0")
    worker = owner_of(run)
    assert worker != process.pid
    os.kill(worker, signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert "1 error" in output
    assert "removed a leftover: docker box of" in output
    assert on_engine(f"ageval.run={run}") == []


def test_what_a_killed_run_left_is_found_and_removed_by_clean(sleeping: Any) -> None:
    process, run = sleeping()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert len(on_engine(f"ageval.run={run}")) == 1
    clean = [sys.executable, "-m", "pytest_ageval.cli", "clean", "--run", run]
    done = subprocess.run(clean, capture_output=True, text=True, check=True)
    assert "1 left-over box removed" in done.stdout
    assert on_engine(f"ageval.run={run}") == []
