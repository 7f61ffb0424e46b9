"""``evaluate_host.isolated``: the work is judged in containers that the agent has never seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.docker_engine import BASE, needs_docker, on_engine

pytestmark = [pytest.mark.docker, needs_docker]

RUN = """
from ageval_sdk import RunContext, RunTerminal

async def run(ctx: RunContext) -> RunTerminal:
    async with ctx.agent.session("solver", max_turns=1) as session:
        await session.invoke("work")
    return RunTerminal.completed("done")
"""

EVALUATOR = """
async def evaluate(inputs):
    scoring = inputs["scoring"]
    said = {}
    for name in NAMES:
        done = await scoring.exec(name, ["sh", "-c",
            "cat /judge; cat work.txt; cat /attempt/evaluation/gold; test -e /tmp/left"])
        said[name] = [done.exit_code, done.stdout]
    return {"status": "PASS", "score": 1.0, "checks": [
        {"id": name, "passed": True, "evidence": str(found)} for name, found in said.items()]}
"""


def recipe(name: str) -> str:
    return f"FROM {BASE}\nRUN echo judged-by-{name} > /judge\n"


def dataset(root: Path, evaluation: str, names: list[str], files: dict[str, str]) -> Path:
    task = root / "tasks" / "t"
    texts = {
        "ageval.yaml": 'format: ageval.dataset/1\ndataset_id: x/y\nversion: "1.0.0"\ntasks: {root: tasks}\n',
        "profiles.yaml": "format: ageval.profiles/1\nenvironment: docker\nagent_profiles: {}\n"
        "evaluate_host:\n  isolated: true\n  environment_options: {network: none}\n",
        "tasks/t/task.yaml": "format: ageval.task/1\ntask_id: t\ndescription: d\n"
        f"agent_profiles: [{{id: solver}}]\n{evaluation}",
        "tasks/t/run.py": RUN,
        "tasks/t/evaluator.py": f"NAMES = {names!r}\n{EVALUATOR}",
        "tasks/t/evaluation/gold": "the-gold\n",
        "tasks/t/solution/solve.sh": "echo the-work > work.txt; echo x > /tmp/left\n",
        **{f"tasks/t/{name}": text for name, text in files.items()},
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    assert task.is_dir()
    return root


def judge(root: Path, directory: Path) -> tuple[Path, dict[str, str]]:
    """Run the data set; the attempt's directory, and what each check found."""
    command = [sys.executable, "-m", "pytest", str(root), "--agent", "oracle", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--ageval-dir", str(directory)], cwd=directory, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (attempt,) = (directory / "runs").iterdir()
    verdict = json.loads((attempt / "evaluation" / "private" / "verdict.json").read_text())
    return attempt, {row["id"]: row["evidence"] for row in verdict["checks"]}


def facts(attempt: Path, name: str) -> list[dict[str, Any]]:
    found = json.loads((attempt / "summary.json").read_text())["facts"]
    return [row for row in found if row["name"] == name]


def test_one_box_from_the_recipe_of_the_task(tmp_path: Path) -> None:
    root = dataset(tmp_path / "d", "", ["main", "main"], {"environment/evaluate.Dockerfile": recipe("main")})
    attempt, found = judge(root, tmp_path)
    assert "[1, " in found["main"]  # /tmp/left of the agent's box is not there
    for word in ("judged-by-main", "the-work", "the-gold"):
        assert word in found["main"]
    assert len(facts(attempt, "scoring_environment_started")) == 1
    # Gold never was in the box of the agent.
    assert not facts(attempt, "gold_materialized")
    labels = json.loads((attempt / "result.json").read_text())["attempt_id"]
    assert on_engine(f"ageval.attempt={labels}") == []


def test_named_boxes_are_opened_when_they_are_used(tmp_path: Path) -> None:
    evaluation = (
        "evaluation:\n  environments:\n"
        "    first: {dockerfile: environment/first/Dockerfile, context: environment/first}\n"
        f"    second: {{docker_image: {BASE}}}\n"
        "    unused: {docker_image: localhost:9/none}\n"
    )
    files = {
        "environment/first/Dockerfile": f"FROM {BASE}\nCOPY judge /judge\n",
        "environment/first/judge": "judged-by-first\n",
    }
    root = dataset(tmp_path / "d", evaluation, ["first", "second"], files)
    attempt, found = judge(root, tmp_path)
    assert "judged-by-first" in found["first"]
    assert "judged-by" not in found["second"]
    assert "the-work" in found["second"]
    started = [row["detail"]["name"] for row in facts(attempt, "scoring_environment_started")]
    assert started == ["first", "second"]


JUDGING = """
async def evaluate(inputs):
    said = {}
    for name in NAMES:
        async with inputs["agent"].session("judge", environment=name) as judge:
            reply = await judge.invoke("is it well done?")
            said[str(name)] = [reply["ok"], reply["text"]]
    return {"status": "PASS", "score": 1.0, "checks": [
        {"id": name, "passed": True, "evidence": str(found)} for name, found in said.items()]}
"""
#: The judge is an agent in a box, here one that runs a command.
TURNS = """
judge:
  - run: "cat /judge; cat work.txt /attempt/evaluation/gold; test ! -e /tmp/left && echo nothing-left"
"""


def judged(root: Path, evaluation: str, names: list[str | None], files: dict[str, str]) -> Path:
    """A data set whose evaluator asks an agent for its opinion in each of the boxes `names`."""
    found = dataset(root, evaluation, [], files)
    task = found / "tasks" / "t"
    roles = "agent_profiles: [{id: solver}, {id: judge}]"
    text = (task / "task.yaml").read_text()
    (task / "task.yaml").write_text(text.replace("agent_profiles: [{id: solver}]", roles))
    (task / "evaluator.py").write_text(f"NAMES = {names!r}\n{JUDGING}")
    solve = "solver:\n  - run: solve.sh\n"
    (task / "solution" / "turns.yaml").write_text(solve + TURNS)
    return found


def test_a_judge_works_in_the_box_that_the_evaluator_names(tmp_path: Path) -> None:
    """Not in the agent's, and it is opened when the judge is first asked."""
    evaluation = (
        "evaluation:\n  environments:\n"
        "    first: {dockerfile: environment/first/Dockerfile, context: environment/first}\n"
        "    second: {docker_image: localhost:9/none}\n"
    )
    files = {"environment/first/Dockerfile": recipe("first")}
    root = judged(tmp_path / "d", evaluation, ["first", "first"], files)
    attempt, found = judge(root, tmp_path)
    for word in ("[True, ", "judged-by-first", "the-work", "the-gold", "nothing-left"):
        assert word in found["first"]
    started = [row["detail"]["name"] for row in facts(attempt, "scoring_environment_started")]
    assert started == ["first"]
    assert not facts(attempt, "gold_materialized")


def test_the_one_scoring_box_needs_no_name(tmp_path: Path) -> None:
    root = judged(tmp_path / "d", "", [None], {"environment/evaluate.Dockerfile": recipe("main")})
    attempt, found = judge(root, tmp_path)
    assert "judged-by-main" in found["None"]
    assert len(facts(attempt, "scoring_environment_started")) == 1


@pytest.mark.parametrize(
    ("name", "words"), [("thrid", "unknown_evaluate_environment: 'thrid'; known: third"), (None, "in which")]
)
def test_a_judge_in_no_box_is_an_error(tmp_path: Path, name: str | None, words: str) -> None:
    """A slip of the evaluator's author must not become a score."""
    evaluation = f"evaluation:\n  environments:\n    third: {{docker_image: {BASE}}}\n"
    root = judged(tmp_path / "d", evaluation, [name], {})
    with pytest.raises(AssertionError) as refused:
        judge(root, tmp_path)
    assert words in str(refused.value)
    assert "1 error" in str(refused.value)
