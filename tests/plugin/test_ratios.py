"""What CI guards of the benchmarks: ratios of two costs that are measured in one run, never a time.

What collecting a task costs beside a test module is in test_collection_as_one.py, an attempt beside the start
of an interpreter in test_own_cost.py, a script's worker in unit/worker/test_worker_cost.py.
"""

from __future__ import annotations

import importlib.metadata
import re
import time
from functools import partial
from pathlib import Path

from costs import PYTEST, check, cpu

from pytest_ageval.testing.scripted_model import Delay, ScriptedModel, Text

TASK = "format: ageval.task/1\ntask_id: {name}\n"
ROOT = 'format: ageval.dataset/1\ndataset_id: bench/ratios\nversion: "1"\n'
PUBLISHED = """\
artifacts:
  publishable:
    - {id: answer, path: artifacts/answer.json}
evaluation:
  inputs:
    - artifact: answer
"""
ASKING = """\
async def run(ctx):
    async with ctx.agent.session("solver", max_turns=1) as session:
        ctx.publish_json("answer", {"text": (await session.invoke("Say done."))["text"]})
"""
PASS = 'def evaluate(inputs): return {"status": "PASS", "score": 1.0, "metrics": {}}\n'
SOLVER = """\

  solver:
    executor: openai-http
    base_url: %s
    api_key: ${RATIOS_KEY}
    model: {id: scripted-model, api: chat}
"""


def data_set(root: Path, tasks: int, run: str = "", profiles: str = " {}\n") -> Path:
    """Trivial tasks; with `run` they can be run."""
    root.mkdir()
    (root / "ageval.yaml").write_text(ROOT)
    head = "format: ageval.profiles/1\nenvironment: local\nagent_profiles:"
    (root / "profiles.yaml").write_text(head + profiles)
    role = "agent_profiles:\n  - id: solver\n" if "session" in run else ""
    for number in range(tasks):
        task = root / "tasks" / f"t{number:05d}"
        task.mkdir(parents=True)
        text = TASK.format(name=task.name)
        (task / "task.yaml").write_text(text + (PUBLISHED + role if run else ""))
        (task / "run.py").write_text(run)
        (task / "evaluator.py").write_text(PASS)
    return root


def test_loading_the_plugin_is_a_small_part_of_starting_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_one(): pass\n")
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    check(
        lambda least: least[1] / least[0],
        1.15,
        lambda: cpu(PYTEST, tmp_path, **alone),
        lambda: cpu((*PYTEST, "-p", "pytest_ageval.plugin"), tmp_path, **alone),
        least=4,
        most=30,
    )


def test_no_dependency_brings_a_plugin_of_its_own() -> None:
    """It would be loaded in every project that has us: anyio's alone takes three times as long as ours."""
    waiting, seen = ["pytest-ageval"], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        # What has a condition is an extra's, or for other platforms.
        needed = [row for row in importlib.metadata.requires(name) or () if ";" not in row]
        waiting += [re.split(r"[^\w.-]", row, maxsplit=1)[0].lower() for row in needed]
    plugins = {name: importlib.metadata.distribution(name).entry_points for name in seen - {"pytest-ageval"}}
    assert "pytest" in plugins
    assert [name for name, points in plugins.items() if points.select(group="pytest11")] == []


def test_collecting_does_not_grow_faster_than_the_tasks(tmp_path: Path) -> None:
    """The second 600 tasks cost what the first do; with a quadratic part it would be up to three times."""
    roots = [data_set(tmp_path / str(size), size) for size in (1, 600, 1200)]

    def collect(root: Path) -> float:
        return cpu((*PYTEST, "--collect-only", "."), root)

    check(
        lambda least: (least[2] - least[1]) / (least[1] - least[0]),
        2.0,
        *(partial(collect, root) for root in roots),
    )


def test_attempts_in_flight_cost_no_more_than_one_after_another(tmp_path: Path) -> None:
    """Eight attempts that wait a second each for the model: less time, no more CPU, half of eight workers."""
    with ScriptedModel([Delay(1.0), Text("done")]) as model:
        root = data_set(tmp_path / "data", 8, ASKING, SOLVER % model.base_url)
        walls: dict[str, list[float]] = {}

        def run(*ways: str) -> float:
            started = time.monotonic()
            found = cpu((*PYTEST, *ways, "."), root, RATIOS_KEY="none")
            walls.setdefault(ways[-1], []).append(time.monotonic() - started)
            return found

        check(
            lambda least: max(least[0] / least[1] / 1.5, least[0] / least[2] / 0.6),
            1.0,
            lambda: run("-n0", "--in-flight=8"),
            lambda: run("-n0", "--in-flight=1"),
            lambda: run("--in-flight=1", "-n4"),
            least=1,
            most=4,
            warm=False,
        )
    assert min(walls["--in-flight=8"]) < 0.8 * min(walls["--in-flight=1"]), walls
