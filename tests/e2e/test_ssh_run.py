"""The quickstart data set on a host that shares no files with us: a real sshd on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("paramiko")

from support.sshd import MISSING, Sshd, sshd

pytestmark = [pytest.mark.ssh, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]

QUICKSTART = Path(__file__).parents[2] / "datasets" / "quickstart"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def run(server: Sshd, dataset: Path, directory: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """Run a data set over ssh; result.json of each task."""
    evidence = directory / "evidence"
    options = [f"--box-option={name}={value}" for name, value in server.options.items()]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("AGEVAL_", "PYTEST_"))
    }
    command = [sys.executable, "-m", "pytest", str(dataset), "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--ageval-dir={evidence}", "--box=ssh", *options, *arguments],
        cwd=directory,
        env={**environment, "XDG_CACHE_HOME": str(directory / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    results = [json.loads(path.read_text()) for path in evidence.rglob("result.json")]
    assert results, done.stdout + done.stderr
    assert server.roots() == []
    assert list((directory / "cache" / "pytest-ageval" / "ssh").iterdir()) == []
    return {result["task_id"]: {**result, "output": done.stdout} for result in results}


def test_every_solution_passes(server: Sshd, tmp_path: Path) -> None:
    for task, result in run(server, QUICKSTART, tmp_path, "--agent=oracle").items():
        assert (task, result["status"], result["score"]) == (task, "PASS", 1.0), result["output"]


def test_doing_nothing_fails_and_is_not_an_error(server: Sshd, tmp_path: Path) -> None:
    for task, result in run(server, QUICKSTART, tmp_path, "--agent=nop").items():
        assert (task, result["status"], result["score"]) == (task, "FAIL", 0.0), result["output"]


# -- what run.py, the agent and the evaluator see of each other's files ----------------------------

TASK = """
format: ageval.task/1
task_id: exchange
agent_profiles: [{id: solver}]
limits: {agent_invocations: 2}
artifacts: {publishable: [{id: late, path: workspace/late.txt}, {id: made, path: workspace/made, kind: tree}]}
"""
TURNS = """
solver:
  - run: echo one > answer.txt
  - run: cat question.txt > echoed.txt; mkdir -p made; echo 1 > made/f; ln -s /etc/passwd leak
"""
RUN = """
async def run(ctx):
    session = ctx.agent.session("solver")
    await session.invoke("first")
    assert (ctx.workspace_root / "data.txt").read_text() == "seed\\n"
    ctx.publish_file("answer", "answer.txt")
    (ctx.workspace_root / "question.txt").write_text("from run.py")
    await session.invoke("second")
    ctx.publish_json("echoed", (ctx.workspace_root / "echoed.txt").read_text())
    (ctx.workspace_root / "late.txt").write_text("late")
"""
EVALUATOR = """
import json
from pathlib import Path

async def evaluate(inputs):
    workspace = Path(inputs["workspace_dir"])
    artifacts = {name: Path(path) for name, path in inputs["artifacts"].items()}
    (workspace / "checker.sh").write_text("cat gold.txt late.txt; echo seen > by-the-box.txt")
    (workspace / "gold.txt").write_text("gold,")
    done = await inputs["scoring"].exec("main", ["sh", "checker.sh"])
    checks = {
        "published": artifacts["answer"].read_text() == "one\\n",
        "echoed": json.loads(artifacts["echoed"].read_text()) == "from run.py",
        "late": artifacts["late"].read_text() == "late",
        "tree": (artifacts["made"] / "f").read_text() == "1\\n",
        "workspace": (workspace / "late.txt").read_text() == "late",
        "leak": not (workspace / "leak").exists(),
        "exec": done.stdout == "gold,late",
        "after": (workspace / "by-the-box.txt").read_text() == "seen\\n",
    }
    wrong = [name for name, right in checks.items() if not right]
    return {"status": "FAIL" if wrong else "PASS", "score": float(not wrong), "metrics": {"wrong": wrong}}
"""


def make_set(directory: Path, files: dict[str, str]) -> None:
    task = directory / "tasks" / "exchange"
    for name, text in {
        "../../ageval.yaml": "format: ageval.dataset/1\ndataset_id: e/x\nversion: '1'\n",
        "task.yaml": TASK,
        "run.py": RUN,
        "evaluator.py": EVALUATOR,
        "solution/turns.yaml": TURNS,
        "data/data.txt": "seed\n",
        **files,
    }.items():
        path = task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_files_go_both_ways(server: Sshd, tmp_path: Path) -> None:
    """Files that the agent made can be published at once; what run.py wrote, the next turn finds."""
    make_set(tmp_path / "set", {})
    (result,) = run(server, tmp_path / "set", tmp_path, "--agent=oracle").values()
    assert (result["status"], result["score"]) == ("PASS", 1.0), result["output"]


def test_a_connection_that_breaks_is_an_error(server: Sshd, tmp_path: Path) -> None:
    """Neither a FAIL nor a PASS: what the agent did is not known."""
    files = {
        "solution/turns.yaml": "solver: [{run: touch here; sleep 1236.1}]\n",
        "run.py": 'async def run(ctx):\n    await ctx.agent.session("solver").invoke("first")\n',
        "evaluator.py": 'def evaluate(inputs):\n    return {"status": "FAIL", "score": 0.0}\n',
    }
    make_set(tmp_path / "set", files)
    stopping = threading.Event()

    def cut() -> None:
        while not stopping.wait(0.1):
            if any((server.directory / "boxes").glob("*/box/workspace/here")):
                server.cut()
                return

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        (result,) = run(server, tmp_path / "set", tmp_path, "--agent=oracle").values()
    finally:
        stopping.set()
        cutter.join()
    assert (result["status"], result["score"]) == ("ERROR", None), result["output"]
    assert result["error"]["title"] == "environment_connection_lost", result["error"]


# -- an agent over ACP, on the host and in a container of it ----------------------------------------

PROFILES = """
format: ageval.profiles/1
environment: ssh
agent_profiles:
  "*": {executor: acp, options: {usage: turn, command: [python3, -u, "{workspace}/agent.py"]}}
"""
#: Floods stderr, sends a line of a megabyte, and does what it is told with a file, twice.
AGENT = """
import os
os.write(2, b"e" * 3_000_000)
handshake()
for number in (1, 2):
    request = prompt()
    text = request["params"]["prompt"][0]["text"]
    before = open("answer.txt").read() if number == 2 else ""
    open("answer.txt", "w").write(before + text)
    long = {"long": "x" * 1_000_000}
    update("tool_call", toolCallId=f"t{number}", title="write", kind="edit", rawInput=long)
    update("tool_call_update", toolCallId=f"t{number}", status="completed", rawOutput=os.getcwd())
    say(f"turn {number}")
    end(request, usage={"inputTokens": 10, "outputTokens": 5, "totalTokens": 15})
idle()
"""
AGENT_RUN = """
async def run(ctx):
    session = ctx.agent.session("solver")
    first = await session.invoke("one,")
    second = await session.invoke("two")
    ctx.publish_json("said", [first["text"], second["text"]])
"""
AGENT_EVALUATOR = """
import json
from pathlib import Path

def evaluate(inputs):
    answer = Path(inputs["workspace_dir"], "answer.txt").read_text()
    said = json.loads(Path(inputs["artifacts"]["said"]).read_text())
    right = (answer, said) == ("one,two", ["turn 1", "turn 2"])
    return {"status": "PASS" if right else "FAIL", "score": float(right), "metrics": {"said": said}}
"""
IMAGE = "ageval-attempt:base"


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize(
    "image", [None, pytest.param(IMAGE, marks=pytest.mark.docker)], ids=["host", "container"]
)
def test_an_agent_over_acp(server: Sshd, tmp_path: Path, image: str | None) -> None:
    if image and not has_image(image):
        pytest.skip(f"needs a docker engine with the image {image}")
    kit = Path(__file__).parents[1] / "support" / "acp_agents" / "agentkit.py"
    files = {
        "../../profiles.yaml": PROFILES,
        "task.yaml": TASK.partition("artifacts:")[0]
        + "artifacts: {publishable: [{id: said, path: said.json}]}\n",
        "run.py": AGENT_RUN,
        "evaluator.py": AGENT_EVALUATOR,
        "data/agent.py": kit.read_text() + AGENT,
    }
    make_set(tmp_path / "set", files)
    more = [f"--box-option=image={image}"] if image else []
    (result,) = run(server, tmp_path / "set", tmp_path, *more).values()
    assert (result["status"], result["score"]) == ("PASS", 1.0), result["output"]
    (trajectory,) = (tmp_path / "evidence").rglob("trajectory.jsonl")
    rows = [json.loads(line) for line in trajectory.read_bytes().splitlines()]
    where = "/attempt/workspace" if image else f"{server.directory}/boxes/"
    assert sum(where in json.dumps(row) for row in rows if row["type"] == "observation") == 2
    if image:
        assert docker("ps", "-aq", "--filter", f"label=ageval.attempt={result['attempt_id']}") == ""


def has_image(image: str) -> bool:
    if shutil.which("docker") is None:
        return False
    command = ["docker", "image", "inspect", image]
    return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
