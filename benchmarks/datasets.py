"""Data sets of any size, made for measuring."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

#: Who does the work of a task, see `make`.
Shape = Literal["scripts", "shell"]

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

#: The shape "shell": an agent session works in the box, and commands in the box judge what it did.
SHELL_RUN = """\
from ageval_sdk import RunContext, RunTerminal


async def run(ctx: RunContext) -> RunTerminal:
    async with ctx.agent.session("solver") as session:
        await session.invoke("Write the answer.")
    return RunTerminal.completed("done")
"""

SHELL_EVALUATOR = """\
async def evaluate(inputs):
    done = await inputs["scoring"].exec("main", ["sh", "-c", "grep -q 1 answer.json"])
    return {"status": "PASS" if done.exit_code == 0 else "FAIL", "score": 1.0, "metrics": {}}
"""

SOLUTION = "echo '{\"n\": 1}' > answer.json\n"

ROLE = """\
agent_profiles:
  - id: solver
"""


def make(root: Path, tasks: int, shape: Shape = "scripts") -> Path:
    """A data set of `tasks` trivial tasks for the local box.

    "scripts": run.py and evaluator.py do all, without a role. "shell": the role `solver` works in the box
    (bind it to `oracle`), and the evaluator asks the box.
    """
    root.mkdir(parents=True)
    (root / "ageval.yaml").write_text('format: ageval.dataset/1\ndataset_id: bench/trivial\nversion: "1"\n')
    (root / "profiles.yaml").write_text("format: ageval.profiles/1\nenvironment: local\nagent_profiles: {}\n")
    for number in range(tasks):
        task_id = f"task-{number:05d}"
        task = root / "tasks" / task_id
        task.mkdir(parents=True)
        role = ROLE if shape == "shell" else ""
        (task / "task.yaml").write_text(TASK.format(task_id=task_id, number=number) + role)
        (task / "run.py").write_text(SHELL_RUN if shape == "shell" else RUN)
        (task / "evaluator.py").write_text(SHELL_EVALUATOR if shape == "shell" else EVALUATOR)
        if shape == "shell":
            (task / "solution").mkdir()
            (task / "solution" / "solve.sh").write_text(SOLUTION)
    return root
