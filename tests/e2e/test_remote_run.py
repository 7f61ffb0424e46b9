"""Data sets on e2b and daytona, as a user runs them: on the servers that stand in for the vendors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jail
import pytest
from clouds import Cloud, opened

pytestmark = pytest.mark.skipif(jail.unusable() is not None, reason=str(jail.unusable()))

QUICKSTART = Path(__file__).parents[2] / "datasets" / "quickstart"


@pytest.fixture(scope="module", params=["e2b", "daytona"])
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    with opened(request.param, minute=60) as found:
        yield found


def environment(directory: Path) -> dict[str, str]:
    """Ours, without what this pytest set, and with directories of the test's own."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AGEVAL_", "PYTEST_"))}
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    # `clean` would remove what tests of docker boxes beside these have just killed.
    engine = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
    return {**own, **engine, "XDG_CACHE_HOME": str(directory / "cache"), "TMPDIR": str(temporary)}


def command(cloud: Cloud, dataset: Path, directory: Path, *arguments: str) -> list[str]:
    options = [f"--box={cloud.kind}", f"--ageval-dir={directory / 'evidence'}", "--agent=oracle"]
    return [
        sys.executable,
        "-m",
        "pytest",
        str(dataset),
        "-q",
        "-p",
        "no:cacheprovider",
        *options,
        *arguments,
    ]


def plain(cloud: Cloud) -> list[str]:
    """The options with which nothing is built."""
    return [f"--box-option={name}={value}" for name, value in cloud.options.items()]


def run(
    cloud: Cloud, dataset: Path, directory: Path, *arguments: str
) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, results and output."""
    words = command(cloud, dataset, directory, *arguments)
    done = subprocess.run(
        words, cwd=directory, env=environment(directory), capture_output=True, text=True, timeout=300
    )
    results = [json.loads(path.read_text()) for path in (directory / "evidence").rglob("result.json")]
    return done.returncode, results, done.stdout + done.stderr


def nothing_left(cloud: Cloud, directory: Path) -> None:
    """Neither at the vendor's nor here."""
    assert cloud.server.sandboxes == {}
    assert list((directory / "tmp").glob("pytest-ageval-*/*")) == []


def test_attempts_of_the_quickstart(cloud: Cloud, tmp_path: Path) -> None:
    """Two attempts in two workers pass, and each had a sandbox of its own."""
    before = Counter(cloud.server.requests)
    code, results, output = run(
        cloud, QUICKSTART, tmp_path, *plain(cloud), "-k", "log-triage", "--attempts=2", "-n2"
    )
    assert code == 0, output
    found = Counter((result["task_id"], result["status"], result["kind"]) for result in results)
    assert found == {("log-triage", "PASS", cloud.kind): 2}
    nothing_left(cloud, tmp_path)
    made = cloud.server.requests - before
    assert made["POST", CREATE[cloud.kind]] == 2


CREATE = {"e2b": "/v2/sandboxes", "daytona": "/api/sandbox"}

FILES = {
    "ageval.yaml": "format: ageval.dataset/1\ndataset_id: e/x\nversion: '1'\n",
    "tasks/baked/task.yaml": "format: ageval.task/1\ntask_id: baked\nagent_profiles: [{id: solver}]\n",
    "tasks/baked/run.py": 'async def run(ctx):\n    await ctx.agent.session("solver").invoke("go")\n',
    "tasks/baked/evaluator.py": (
        "from pathlib import Path\n\ndef evaluate(inputs):\n"
        '    found = Path(inputs["workspace_dir"], "answer.txt").read_text()\n'
        '    return {"status": "PASS" if found == "baked in\\n" else "FAIL", "score": 1.0}\n'
    ),
    "tasks/baked/solution/turns.yaml": "solver: [{run: cat /srv/baked > answer.txt}]\n",
}


def make_set(directory: Path, **more: str) -> Path:
    """A data set with a task whose solution is the file that its recipe makes."""
    for name, text in {**FILES, **more}.items():
        path = directory / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory / "set"


def test_recipe_of_a_task(cloud: Cloud, tmp_path: Path) -> None:
    """Attempts in two workers share one build."""
    recipe = f"FROM debian:12-slim\nRUN echo baked in > /srv/baked\n# {tmp_path}\n"
    dataset = make_set(tmp_path, **{"tasks/baked/environment/Dockerfile": recipe})
    before = len(cloud.builds.started)
    code, results, output = run(cloud, dataset, tmp_path, "--attempts=2", "-n2")
    assert code == 0, output
    assert [result["status"] for result in results] == ["PASS", "PASS"]
    assert len(cloud.builds.started) - before == 1
    nothing_left(cloud, tmp_path)


def hanging(directory: Path) -> Path:
    return make_set(
        directory, **{"tasks/baked/solution/turns.yaml": "solver: [{run: touch here; sleep 600}]\n"}
    )


def begun(cloud: Cloud, process: subprocess.Popen[bytes], count: int) -> None:
    """Wait until the agents work."""
    deadline = time.monotonic() + 120
    while sum(here(sandbox) for sandbox in list(cloud.server.sandboxes.values())) < count:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)


def here(sandbox: Any) -> bool:
    path: Path = sandbox.jail.path("/attempt/workspace/here")
    return path.exists()


def test_killed_run_is_cleaned_up(cloud: Cloud, tmp_path: Path) -> None:
    """Controller and workers are killed at once: `clean` finds what they left, and removes it."""
    words = command(cloud, hanging(tmp_path), tmp_path, *plain(cloud), "--attempts=2", "-n2")
    process = subprocess.Popen(
        words, cwd=tmp_path, env=environment(tmp_path), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        begun(cloud, process, 2)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    ids = sorted(cloud.server.sandboxes)
    assert len(ids) == 2

    def clean(*arguments: str) -> str:
        words = [sys.executable, "-m", "pytest_ageval.cli", "clean", *arguments]
        done = subprocess.run(
            words, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = clean("--dry-run")
    assert sorted(re.findall(rf"would remove {cloud.kind} box of \S+ .*sandbox ([\w-]+)", said)) == ids
    said = clean()
    assert sorted(re.findall(rf"removed {cloud.kind} box of \S+: sandbox ([\w-]+)", said)) == ids
    nothing_left(cloud, tmp_path)


def test_killed_worker(cloud: Cloud, tmp_path: Path) -> None:
    """The controller removes the sandbox of a worker that was killed, and the run ends."""
    words = command(cloud, hanging(tmp_path), tmp_path, *plain(cloud), "-n1", "--max-worker-restart=0")
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE)
    try:
        begun(cloud, process, 1)
        (sandbox,) = cloud.server.sandboxes.values()
        labels = sandbox.metadata if cloud.kind == "e2b" else sandbox.body["labels"]
        worker = int(labels["ageval.owner"].split("/")[2])
        assert worker != process.pid
        os.kill(worker, signal.SIGKILL)
        out, _ = process.communicate(timeout=60)
        assert b"removed a leftover" in out
        assert process.returncode != 0
    finally:
        process.kill()
        process.wait()
    nothing_left(cloud, tmp_path)


def test_interrupted(cloud: Cloud, tmp_path: Path) -> None:
    """Ctrl-C in the middle of an agent's turn: the sandbox is deleted."""
    words = command(cloud, hanging(tmp_path), tmp_path, *plain(cloud))
    process = subprocess.Popen(
        words, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        begun(cloud, process, 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 2
    finally:
        process.kill()
        process.wait()
    nothing_left(cloud, tmp_path)


def test_sandbox_vanishes(cloud: Cloud, tmp_path: Path) -> None:
    """While the agent works, and between agent and evaluator: an ERROR that says so, never a score."""
    after = {
        "task.yaml": FILES["tasks/baked/task.yaml"].replace("baked", "after"),
        "run.py": f"import time\n{FILES['tasks/baked/run.py']}    time.sleep(3)\n",
        "evaluator.py": 'def evaluate(inputs):\n    return {"status": "FAIL", "score": 0.0}\n',
        "solution/turns.yaml": "solver: [{run: touch made here}]\n",
    }
    dataset = hanging(tmp_path)
    for name, text in after.items():
        path = dataset / "tasks" / "after" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    stopping = threading.Event()

    def vanish() -> None:
        while not stopping.wait(0.05):
            for sandbox in filter(here, list(cloud.server.sandboxes.values())):
                if sandbox.jail.path("/attempt/workspace/made").exists():
                    time.sleep(1)  # the turn ends, and run.py goes on
                cloud.server.kill(sandbox.id)

    thread = threading.Thread(target=vanish)
    thread.start()
    try:
        code, results, output = run(cloud, dataset, tmp_path, *plain(cloud))
    finally:
        stopping.set()
        thread.join()
    assert code != 0
    for result in results:
        assert (result["status"], result["score"]) == ("ERROR", None), output
        assert result["error"]["title"] == "environment_sandbox_gone", result["error"]
    assert len(results) == 2
    nothing_left(cloud, tmp_path)


PAUSES = """
import time
from pathlib import Path
import pytest

HERE = Path(__file__).parent
turns = []

@pytest.hookimpl(wrapper=True)
def pytest_ageval_before_agent_invoke(attempt, value):
    turns.append(value)
    if len(turns) == 2 and not (HERE / "goes_on").exists():
        (HERE / "paused").touch()
        time.sleep(120)
    return (yield)
"""
TWO_TURNS = {
    "conftest.py": PAUSES,
    "tasks/baked/task.yaml": FILES["tasks/baked/task.yaml"] + "limits: {agent_invocations: 2}\n",
    "tasks/baked/run.py": (
        "async def run(ctx):\n"
        '    solver = ctx.agent.session("solver")\n'
        '    await solver.invoke("one")\n'
        '    await solver.invoke("two")\n'
    ),
    "tasks/baked/evaluator.py": FILES["tasks/baked/evaluator.py"].replace("baked in", "one\\ntwo"),
    "tasks/baked/solution/turns.yaml": (
        "solver: [{run: 'echo one >> answer.txt; touch /tmp/elsewhere'}, "
        "{run: 'test -e /tmp/elsewhere && echo two >> answer.txt'}]\n"
    ),
}


def test_a_killed_attempt_goes_on_in_its_sandbox(cloud: Cloud, tmp_path: Path) -> None:
    """The sandbox of the killed process is taken over, with what lies outside of the workspace."""
    dataset = make_set(tmp_path, **TWO_TURNS)
    before = Counter(cloud.server.requests)
    words = command(cloud, dataset, tmp_path, *plain(cloud))
    process = subprocess.Popen(
        words, cwd=tmp_path, env=environment(tmp_path), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while not (dataset / "paused").exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    (sandbox,) = cloud.server.sandboxes
    (dataset / "goes_on").touch()
    code, (result,), output = run(cloud, dataset, tmp_path, *plain(cloud), "--resume")
    assert code == 0, output
    assert (result["status"], result["resumed"]) == ("PASS", 1)
    (summary,) = (tmp_path / "evidence" / "runs").glob("*/summary.json")
    facts = [row for row in json.loads(summary.read_text())["facts"] if row["name"] == "attempt_resumed"]
    assert [row["detail"]["box_taken_over"] for row in facts] == [True]
    made = cloud.server.requests - before
    assert made["POST", CREATE[cloud.kind]] == 1, f"{sandbox} is the only one"
    nothing_left(cloud, tmp_path)
