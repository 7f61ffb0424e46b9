"""``--matrix`` and ``--attempts auto`` in a run: items, marks, the summary, usage errors, pytest-xdist."""

from __future__ import annotations

import re

import pytest

from .conftest import DataSet

WRITES_SEED = """
from pathlib import Path

def run(ctx):
    Path(ctx.workspace_root, "seed.txt").write_text(str(ctx.params["seed"]))
"""
ODD = """
def evaluate(inputs):
    return {"status": "PASS" if inputs["parameters"]["seed"] % 2 else "FAIL"}
"""


def seeds(demo: DataSet) -> None:
    demo.task("odd", evaluator=ODD, run=WRITES_SEED, more="parameters: {seed: 0}\n")


def test_each_cell_is_an_item_with_its_own_row(demo: DataSet) -> None:
    seeds(demo)
    result = demo.pytest("--matrix", "/parameters/seed=[1,2,3]", "-rA", "--junitxml=out.xml")
    result.assert_outcomes(passed=2, failed=1)
    for seed in (1, 2, 3):
        assert re.search(rf"local / seed={seed} +[01] ", result.stdout.str())
    result.stdout.fnmatch_lines(["*x 3 of seed x 1 attempt*"])
    found = {row["task_id"]: row for row in demo.results()}
    assert set(found) == {"odd"}
    assert 'name="ageval.parameters.seed" value="3"' in (demo.pytester.path / "out.xml").read_text()


def test_cells_are_selected_by_id_and_by_mark(demo: DataSet) -> None:
    seeds(demo)
    matrix = ("--matrix", "/parameters/seed=[1,2]", "--attempts", "2")
    assert [one.rpartition("::")[2] for one in demo.collect(*matrix)] == [
        "odd[seed_1-1]",
        "odd[seed_2-1]",
        "odd[seed_1-2]",
        "odd[seed_2-2]",
    ]
    assert len(demo.collect(*matrix, "-k", "seed_2")) == 2
    assert len(demo.collect(*matrix, "-m", "ageval(seed=2, attempt=1)")) == 1


def test_efforts_and_a_file(demo: DataSet, pytester: pytest.Pytester) -> None:
    demo.task("a", roles=("solver",))
    pytester.path.joinpath("matrix.yaml").write_text(
        "format: ageval.matrix/1\nagent: [codex, claude-code]\nmodel: [m]\neffort: [low, high]\n"
        "exclude: [{agent: claude-code, effort: low}]\ninclude: [{agent: oracle, box: local}]\n"
    )
    found = demo.collect("--matrix", "matrix.yaml")
    assert [one.partition("[")[2] for one in found] == [
        "codex-m-low]",
        "codex-m-high]",
        "claude-code-m-high]",
        "oracle-local]",
    ]
    assert len(demo.collect("--effort", "low", "--effort", "high", "--agent", "codex", "--model", "m")) == 2
    assert len(demo.collect("--matrix", "matrix.yaml", "-m", "ageval(effort='high')")) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--matrix", "/parameters/sed=[1]"], "no task declares a parameter 'sed'; declared: seed"),
        (["--matrix", '/agent=["orcale"]'], "in the cell 'orcale' of the matrix (agent orcale)"),
        (["--matrix", '/box=["lcoal"]'], "in the cell 'lcoal' of the matrix (box lcoal)"),
        (["--matrix", '/effort=["low"]', "--agent", "oracle"], "it has no reasoning effort"),
        (["--matrix", '/agent=["solvr=nop"]'], "--matrix: agent solvr=...: no task has a role 'solvr'"),
        (["--attempts", "auto:3"], "can conclude nothing at a confidence of 0.95"),
        (["--attempts", "auto:x"], "expected a whole number or auto[:MAX]"),
        (["--attempts", "3", "--confidence", "0.9"], "--confidence 0.9 is for --attempts auto"),
    ],
)
@pytest.mark.parametrize("more", [(), ("-n2",)])
def test_what_cannot_be_meant_is_a_usage_error(
    demo: DataSet, arguments: list[str], words: str, more: tuple[str, ...]
) -> None:
    if more and "sed" not in words:
        pytest.skip("one of them is enough")
    demo.task("odd", evaluator=ODD, run=WRITES_SEED, roles=("solver",), more="parameters: {seed: 0}\n")
    result = demo.pytest(*arguments, *more)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert words in result.stderr.str() + result.stdout.str()
    assert demo.results() == []


def by_number(failing: str) -> str:
    """An evaluator whose verdict depends on the number of the attempt, which the parameter cannot tell."""
    return f"""
import json, re
from pathlib import Path

def evaluate(inputs):
    number = int(re.search(r"number (\\d+)", Path(inputs["workspace_dir"], "n.txt").read_text())[1])
    return {{"status": "FAIL" if number in ({failing}) else "PASS"}}
"""


NUMBERED = """
import os
from pathlib import Path

def run(ctx):
    Path(ctx.workspace_root, "n.txt").write_text(f"number {ctx.params['n']}")
"""

#: Gives run.py the number of its attempt.
CONFTEST = """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_ageval_before_run(attempt, value):
    number = attempt.identity.index
    attempt.locked.parameters["n"] = number
    return (yield)
"""


@pytest.fixture
def numbered(demo: DataSet) -> DataSet:
    (demo.root / "conftest.py").write_text(CONFTEST)
    demo.task("passes", evaluator=by_number("0,"), run=NUMBERED)
    demo.task("fails", evaluator=by_number("1, 2, 3, 4, 5, 6, 7, 8, 9, 10"), run=NUMBERED)
    demo.task("wavers", evaluator=by_number("1, 3, 5, 7, 9"), run=NUMBERED)
    return demo


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_attempts_stop_when_the_conclusion_is_known(numbered: DataSet, workers: str) -> None:
    result = numbered.pytest("--attempts", "auto:10", workers, "-rs")
    # Five that agree are enough; at 3 to 3 none of the last four attempts can lead to a conclusion.
    outcomes = result.parseoutcomes()
    made = outcomes["passed"] + outcomes["failed"]
    assert outcomes["skipped"] + made == 30
    out = result.stdout.str()
    assert "attempts auto: pass probability above 0.5: 1, below: 1, undecided: 1" in out
    assert f"{made} attempts made, {30 - made} not needed" in out
    assert f": complete, {made} of 30 settled, {30 - made} not needed (" in out
    assert "go on with it" not in out
    assert "undecided within 10 attempts: wavers[default]" in out
    assert "decided after 5 attempts (5 passed): pass probability above 0.5" in out
    assert "decided after 5 attempts (0 passed): pass probability below 0.5" in out
    if workers == "-n0":
        assert made == 5 + 5 + len([r for r in numbered.results() if r["task_id"] == "wavers"])
    else:
        assert made <= 22  # each worker may have an attempt in flight when the conclusion comes
    # What was not run is in no table: the rates are of the attempts that were made.
    assert re.search(rf" {made}/{made} ", out)
    assert len(numbered.results()) == made


def test_an_error_says_nothing(demo: DataSet) -> None:
    demo.task("broken", evaluator='def evaluate(inputs):\n    raise RuntimeError("x")\n')
    result = demo.pytest("--attempts", "auto:6", "--confidence", "0.9")
    result.assert_outcomes(errors=6)
    result.stdout.fnmatch_lines(["not decided yet, of 6 attempts: broken?default?"])


def test_the_bound_and_the_confidence(demo: DataSet) -> None:
    demo.task("fails", evaluator='def evaluate(inputs):\n    return {"status": "FAIL"}\n')
    result = demo.pytest("--attempts", "auto", "--pass-bound", "0.9", "--confidence", "0.9", "-rs")
    result.assert_outcomes(failed=2, skipped=18)
    result.stdout.fnmatch_lines(["*decided after 2 attempts (0 passed): pass probability below 0.9*"])


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_what_was_decided_stays_decided_when_the_run_goes_on(numbered: DataSet, workers: str) -> None:
    first = [f"datasets/demo/tasks/passes/task.yaml::passes[default-{number}]" for number in (1, 2, 3)]
    numbered.pytest("--attempts", "auto:10", *first)
    made = len(numbered.results())
    assert made == 3
    result = numbered.pytest("--attempts", "auto:10", "--resume", workers, "-k", "passes")
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] + outcomes["skipped"] == 10
    new = len(numbered.results()) - made
    assert new == 2 if workers == "-n0" else 2 <= new <= 4
    assert "pass probability above 0.5: 1, below: 0" in result.stdout.str()
