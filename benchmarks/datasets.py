"""Data sets of any size, made for measuring."""

from __future__ import annotations

from pathlib import Path

RUN = """\
from ageval_sdk import RunContext, RunTerminal


async def run(ctx: RunContext) -> RunTerminal:
    ctx.publish_json("answer", {"n": 1})
    return RunTerminal.completed("done")
"""

EVALUATOR = """\
def evaluate(inputs):
    return {"status": "PASS", "score": 1.0, "metrics": {}}
"""

TASK = """\
format: ageval.task/1
task_id: {task_id}
description: A task that does nothing, so that only the harness is measured.
parameters:
  seed: {number}
limits:
  wall_time_seconds: 60
artifacts:
  publishable:
    - id: answer
      path: artifacts/answer.json
evaluation:
  inputs:
    - artifact: answer
"""


def make(root: Path, tasks: int) -> Path:
    """A data set of `tasks` trivial tasks without a role, for the local box."""
    root.mkdir(parents=True)
    (root / "ageval.yaml").write_text('format: ageval.dataset/1\ndataset_id: bench/trivial\nversion: "1"\n')
    (root / "profiles.yaml").write_text("format: ageval.profiles/1\nenvironment: local\nagent_profiles: {}\n")
    for number in range(tasks):
        task_id = f"task-{number:05d}"
        task = root / "tasks" / task_id
        task.mkdir(parents=True)
        (task / "task.yaml").write_text(TASK.format(task_id=task_id, number=number))
        (task / "run.py").write_text(RUN)
        (task / "evaluator.py").write_text(EVALUATOR)
    return root
