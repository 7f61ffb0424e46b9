"""The tasks of the soak: each has one fault, or none, and its outcome follows from it."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ageval.testing.scripted_model import HttpError, Text
from pytest_ageval.testing.scripted_model.script import Choice

if TYPE_CHECKING:
    from pytest_ageval.testing.scripted_model.request import Request

AGENT = Path(__file__).with_name("soak_agent.py")


@dataclass(frozen=True)
class Kind:
    """What goes wrong in a task, how often, and what must be reported. `role` plays in it."""

    fault: str
    share: int
    status: str
    title: str | None = None
    role: str = "coder"


KINDS = (
    Kind("none", 46, "PASS"),
    Kind("wrong-answer", 8, "FAIL"),
    Kind("agent-killed", 6, "ERROR", "acp_unexpected_eof"),
    Kind("agent-hangs", 4, "FAIL"),
    Kind("agent-loud", 6, "PASS"),
    Kind("agent-quota", 4, "ERROR", "acp_error:-32603"),
    Kind("model-down", 4, "ERROR", "HTTPError:500", role="writer"),
    Kind("model-shaky", 6, "PASS", role="writer"),
    Kind("run-raises", 2, "ERROR", "KeyError"),
    Kind("run-killed", 2, "ERROR", "task_worker_no_result"),
    Kind("evaluator-raises", 4, "ERROR", "RuntimeError"),
    Kind("evaluator-killed", 3, "ERROR", "task_worker_no_result"),
    Kind("evaluator-nonsense", 3, "ERROR", "evaluator_invalid_status"),
)
#: The attempts of this kind are in a data set whose disk is full.
DISK_FULL = Kind("disk-full", 2, "ERROR", "evidence_unwritable")

#: Seconds that an agent gets which hangs, and for which a provider that is down is waited for.
HANG_SECONDS = 5
DOWN_SECONDS = 4

RUN = """\
import os
import signal
from pathlib import Path


async def run(ctx):
    fault = ctx.params["fault"]
    if fault == "run-raises":
        raise KeyError("soak")
    if fault == "run-killed":
        os.kill(os.getpid(), signal.SIGKILL)
    role = ctx.params["role"]
    result = await ctx.agent.session(role).invoke(f"{fault} {ctx.params['number']}")
    answer = Path("answer.txt")
    text = result["text"] if role == "writer" else answer.read_text() if answer.exists() else None
    ctx.publish_json("answer", {"text": text})
"""

EVALUATOR = """\
import json
import os
import signal
from pathlib import Path


def evaluate(inputs):
    fault = inputs["parameters"]["fault"]
    if fault == "evaluator-raises":
        raise RuntimeError("soak")
    if fault == "evaluator-killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "evaluator-nonsense":
        return {"status": "perhaps"}
    gold = Path(inputs["evaluation_dir"], "answer").read_text()
    found = inputs["artifacts"].get("answer")
    said = None if found is None else json.loads(Path(found).read_text())["text"]
    return {"status": "PASS" if said == gold else "FAIL", "score": float(said == gold)}
"""

TASK = """\
format: ageval.task/1
task_id: {task_id}
description: "The soak: {fault}."
agent_profiles: [{{id: {role}}}]
parameters: {{fault: {fault}, number: {number}, role: {role}}}
limits: {{wall_time_seconds: {wall}, environment_seconds: 1800, evaluate_seconds: 1800}}
artifacts:
  publishable:
    - {{id: answer, path: artifacts/answer.json}}
evaluation:
  inputs:
    - {{artifact: answer}}
"""

PROFILES = """\
format: ageval.profiles/1
environment: local
agent_profiles:
  coder:
    executor: acp
    base_url: {url}
    model: {{id: scripted}}
    options: {{command: [python3, -IS, "{{workspace}}/soak_agent.py", "{{base_url}}"]}}
  writer:
    executor: openai-http
    base_url: {url}
    model: {{id: scripted, api: chat}}
    options: {{upstream_stall_seconds: {down}}}
"""


def draw(count: int, seed: int, *, disk_full: bool) -> list[Kind]:
    """What goes wrong in each of `count` tasks. Of each kind there is one at least, if there is room."""
    kinds = [*KINDS, *([DISK_FULL] if disk_full else [])]
    chance = random.Random(seed)
    found = [*kinds, *chance.choices(kinds, [kind.share for kind in kinds], k=max(0, count - len(kinds)))]
    chance.shuffle(found)
    return found[:count]


def make(root: Path, kinds: list[Kind], url: str) -> dict[str, Kind]:
    """Write the data sets ``main`` and ``full`` below `root`; the kind of each task by its id."""
    made = {}
    for number, kind in enumerate(kinds):
        dataset = root / ("full" if kind is DISK_FULL else "main")
        if not (dataset / "ageval.yaml").exists():
            dataset.mkdir(parents=True, exist_ok=True)
            (dataset / "ageval.yaml").write_text(
                f'format: ageval.dataset/1\ndataset_id: soak/{dataset.name}\nversion: "1"\n'
            )
            (dataset / "profiles.yaml").write_text(PROFILES.format(url=url, down=DOWN_SECONDS))
        task_id = f"t{number:05d}-{kind.fault}"
        made[task_id] = kind
        wall = HANG_SECONDS if kind.fault == "agent-hangs" else 3600
        text = TASK.format(task_id=task_id, fault=kind.fault, number=number, role=kind.role, wall=wall)
        files = {"task.yaml": text, "run.py": RUN, "evaluator.py": EVALUATOR}
        files |= {"evaluation/answer": str(number), "data/soak_agent.py": AGENT.read_text()}
        for name, content in files.items():
            path = dataset / "tasks" / task_id / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    return made


class Brain:
    """What the scripted model says to ``FAULT NUMBER``, after a while of at most `seconds`."""

    def __init__(self, seed: int, seconds: float) -> None:
        self._seed = seed
        self._seconds = seconds
        self._failed: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Choice:
        fault, number = request.prompt.split()[:2]
        delay = random.Random(f"{self._seed} {number}").uniform(0, self._seconds)
        if fault == "model-down":
            return Choice(HttpError(500, times=None))
        if fault == "model-shaky":
            with self._lock:
                first = number not in self._failed
                self._failed.add(number)
            if first:
                return Choice(HttpError(500))
        return Choice(Text(str(int(number) + (fault == "wrong-answer"))), delay)
