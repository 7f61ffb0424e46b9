"""What an agent may plant for those who look at its work afterwards. `solve.sh` plays the agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .attempt_kit import facts, only
from .conftest import DataSet

EVALUATOR = """
import pathlib
def evaluate(inputs):
    gold = pathlib.Path(inputs["evaluation_dir"], "expected.json").read_text()
    answer = pathlib.Path(inputs["workspace_dir"], "answer.json")
    same = answer.is_file() and answer.read_text() == gold
    return {"status": "PASS" if same else "FAIL", "score": float(same)}
"""
RUN = """
async def run(ctx):
    session = ctx.agent.session("solver")
    await session.invoke("go")
    answer = ctx.workspace_root / "answer.json"
    ctx.publish_json("seen", {"text": answer.read_text() if answer.is_file() else None})
"""
MODES = pytest.mark.parametrize("isolation", ["bwrap", "none"])


def play(demo: DataSet, solve: str, isolation: str, run: str = RUN, more: str = "") -> None:
    """One attempt of an agent that does what `solve` says."""
    task = demo.task("t", EVALUATOR, run, roles=("solver",), more=more)
    (task / "evaluation").mkdir()
    (task / "evaluation" / "expected.json").write_text('{"secret": 42}')
    (task / "solution").mkdir()
    (task / "solution" / "solve.sh").write_text(solve)
    demo.pytest("datasets", "--agent", "oracle", "--box", "local", "--box-option", f"isolation={isolation}")


def links_to(demo: DataSet) -> dict[str, str]:
    """Where a link may lead, as a process in the workspace spells it."""
    return {
        "the data set": str(demo.root / "tasks" / "t" / "evaluation" / "expected.json"),
        "the evaluator's copy": "../../gold/expected.json",
        "the box's evaluation": "../evaluation/expected.json",
        "the box's evaluation, spelled in full": "/attempt/evaluation/expected.json",
    }


@MODES
@pytest.mark.parametrize("which", ["the data set", "the evaluator's copy", "the box's evaluation"])
def test_a_link_to_gold_is_worth_nothing(demo: DataSet, isolation: str, which: str) -> None:
    play(demo, f"ln -s {links_to(demo)[which]} answer.json\n", isolation)
    assert only(demo)["status"] == "FAIL"
    (attempt,) = demo.attempts()
    seen = json.loads((attempt / "task-artifacts" / "seen.json").read_text())
    assert seen["text"] is None, "run.py must not read it either"


@MODES
def test_a_link_by_way_of_home_is_worth_nothing(demo: DataSet, isolation: str) -> None:
    play(demo, 'ln -s ../evaluation/expected.json "$HOME/hop"; ln -s ../home/hop answer.json\n', isolation)
    assert only(demo)["status"] == "FAIL"


def test_the_workspace_cannot_be_replaced_from_inside(demo: DataSet) -> None:
    solve = "cd /attempt; mv workspace w2 && ln -s ../gold workspace; mv home h2; rmdir artifacts; true\n"
    play(demo, solve, "bwrap")
    assert only(demo)["status"] == "FAIL"
    assert only(demo)["error"] is None


def test_a_workspace_that_was_replaced_is_an_error(demo: DataSet, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "ds.yaml").symlink_to(demo.root / "ageval.yaml")
    play(demo, f"cd ..; mv workspace w2; ln -s {victim} workspace\n", "none")
    assert only(demo)["error"]["title"] == "workspace_replaced"
    assert (victim / "ds.yaml").is_symlink(), "nothing outside of the box was touched"


@MODES
def test_pruning_an_artifact_never_leaves_it(demo: DataSet, tmp_path: Path, isolation: str) -> None:
    victim = tmp_path / "victim"
    (victim / "node_modules").mkdir(parents=True)
    (victim / "x.pyc").write_text("mine")
    more = """
        artifacts:
          publishable:
            - {id: tree, path: workspace/out, kind: tree, exclude: ["*.pyc", "node_modules"]}
            - {id: deep, path: workspace/in, kind: tree, exclude: ["*.pyc", "node_modules"]}
    """
    solve = f"ln -s {victim} out; mkdir in; ln -s {victim} in/side; touch in/a.pyc in/b.txt\n"
    play(demo, solve, isolation, more=more)
    assert sorted(path.name for path in victim.iterdir()) == ["node_modules", "x.pyc"]
    (attempt,) = demo.attempts()
    found = attempt / "task-artifacts"
    assert not (found / "tree").exists()
    assert [path.name for path in (found / "deep").iterdir()] == ["b.txt"]
    assert facts(demo)["artifacts_harvested"][0]["missing"] == ["tree"]


def test_a_process_that_was_left_running_does_not_see_gold(demo: DataSet) -> None:
    solve = """
        setsid sh -c 'for i in $(seq 100); do
            cp /attempt/evaluation/expected.json answer.json 2>/dev/null && break; sleep 0.05
        done' >/dev/null 2>&1 &
    """
    task = demo.task(
        "t",
        "import time\n" + EVALUATOR.replace("    gold =", "    time.sleep(2)\n    gold ="),
        RUN,
        roles=("solver",),
    )
    (task / "evaluation").mkdir()
    (task / "evaluation" / "expected.json").write_text('{"secret": 42}')
    (task / "solution").mkdir()
    (task / "solution" / "solve.sh").write_text(solve)
    options = ["--box", "local", "--box-option", "isolation=bwrap", "--box-option", "background=keep"]
    demo.pytest("datasets", "--agent", "oracle", *options)
    assert only(demo)["status"] == "FAIL"


def test_what_is_kept_holds_no_gold(demo: DataSet, scratch: Path) -> None:
    task = demo.task("t", EVALUATOR, RUN, roles=("solver",))
    (task / "evaluation").mkdir()
    (task / "evaluation" / "expected.json").write_text('{"secret": 42}')
    (task / "solution").mkdir()
    (task / "solution" / "solve.sh").write_text("touch kept.txt\n")
    demo.pytest("datasets", "--agent", "oracle", "--keep-workspace")
    assert [path.name for path in scratch.rglob("kept.txt")] == ["kept.txt"]
    assert not list(scratch.rglob("expected.json"))
    assert not list(scratch.rglob("solve.sh"))
