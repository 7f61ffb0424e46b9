"""The tasks of a data set are collected together, and nothing about them shows it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from costs import PYTEST, check, cpu

if TYPE_CHECKING:
    from .conftest import DataSet

#: Shows what an item is, and how its task was collected.
SHOW = """
    def pytest_collection_modifyitems(items):
        for item in items:
            marks = sorted((mark.name, sorted(mark.kwargs.items())) for mark in item.iter_markers())
            words = sorted(item.extra_keyword_matches | item.parent.extra_keyword_matches)
            print("ITEM", item.nodeid, marks, getattr(item, "fixturenames", ()), words, item.function.__name__
                  if hasattr(item, "function") else "")
            if hasattr(item, "variant"):
                print("PARENT", type(item.parent.parent).__name__)
"""

#: A hook that could say something about a single task, and does not.
LISTEN = """
    def pytest_ignore_collect(collection_path): return None
"""


def messy(demo: DataSet) -> None:
    """One of everything that a tasks directory can hold."""
    for name in ("Zeta", "alpha", "build", "9lives", "task.with-dots", "twice", "größe"):
        demo.task(name)
    demo.task("tagged", roles=("solver",), more="tags: [web, needs-gpu]")
    demo.task("broken", more="limits: {wall_time_seconds: soon}")
    demo.task("without").joinpath("task.yaml").unlink()
    demo.task("silent").joinpath("evaluator.py").unlink()
    root = demo.root / "tasks"
    (root / ".hidden").mkdir()
    (root / "empty").mkdir()
    (root / "__pycache__").mkdir()
    (root / "test_beside.py").write_text("def test_beside(): pass\n")
    (root / "README.md").write_text("Tasks.\n")


def items(demo: DataSet, *arguments: str) -> tuple[list[str], set[str]]:
    result = demo.pytest("--collect-only", "-q", "--agent", "nop", "--attempts", "2", *arguments)
    shown = [line for line in result.outlines if line.startswith("ITEM")]
    return shown, {line.split()[1] for line in result.outlines if line.startswith("PARENT")}


def test_the_items_are_those_of_single_collectors(demo: DataSet) -> None:
    messy(demo)
    demo.pytester.makeconftest(SHOW)
    together, parents = items(demo, "-s")
    assert parents == {"TasksRoot", "TaskDirectory"}, "a name that needs care is collected by itself"
    demo.pytester.makeconftest(SHOW + LISTEN)
    apart, parents = items(demo, "-s")
    assert parents == {"TaskDirectory"}
    assert together == apart
    assert sum("größe" in line for line in together) == 2


@pytest.mark.parametrize(
    "selection",
    [
        ("-k", "alpha or task.with-dots"),
        ("-k", "twice and not Zeta"),
        ("-m", "web"),
        ("-m", "ageval(attempt=2)"),
        ("--deselect", "datasets/demo/tasks/alpha/task.yaml"),
        ("--ignore", "datasets/demo/tasks/alpha"),
        ("--ignore-glob", "*/tasks/t*"),
        ("datasets/demo/tasks/alpha", "datasets/demo/tasks/twice/task.yaml::twice[nop-2]"),
        ("datasets/demo/tasks/twice", "datasets/demo/tasks"),
    ],
)
def test_the_selection_is_that_of_single_collectors(demo: DataSet, selection: tuple[str, ...]) -> None:
    messy(demo)
    found = []
    for conftest in ("", LISTEN):
        demo.pytester.makeconftest(conftest)
        result = demo.pytest("--collect-only", "-q", "--agent", "nop", "--attempts", "2", *selection)
        found.append([line for line in result.outlines if "::" in line or line.startswith("ERROR")])
    assert found[0] == found[1]
    assert found[0]


def test_what_is_named_is_all_that_is_read(demo: DataSet) -> None:
    demo.task("alpha")
    demo.task("broken", more="limits: {wall_time_seconds: soon}")
    result = demo.pytest("--collect-only", "datasets/demo/tasks/alpha")
    result.stdout.fnmatch_lines(["*alpha*"])
    result.stdout.no_fnmatch_line("*broken*")


def test_a_conftest_that_parametrizes_single_tasks_has_its_way(demo: DataSet) -> None:
    demo.task("alpha")
    demo.task("beta")
    (demo.root / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture(autouse=True)\n"
        "def size(request): return getattr(request, 'param', None)\n"
        "def pytest_generate_tests(metafunc):\n"
        "    if metafunc.definition.name == 'beta': metafunc.parametrize('size', ['s', 'm'], indirect=True)\n"
    )
    assert [name.rpartition("::")[2] for name in demo.collect()] == [
        "alpha[default]",
        "beta[s-default]",
        "beta[m-default]",
    ]


def test_last_failed_runs_what_failed(demo: DataSet) -> None:
    demo.task("alpha")
    demo.task("beta", evaluator="def evaluate(inputs): return {'status': 'FAIL'}\n")
    run = demo.pytester.runpytest_subprocess
    run("-q").assert_outcomes(passed=1, failed=1)
    result = run("-q", "--lf")
    result.assert_outcomes(failed=1, deselected=1)


def test_workers_read_a_task_once(demo: DataSet) -> None:
    """60 tasks and 3 workers: who reads a task says so."""
    for number in range(60):
        demo.task(f"task-{number:02}")
    demo.pytester.makeconftest(
        """
        import os
        from pytest_ageval.config import tasks

        def pytest_configure(config):
            read = tasks._read
            def noting(path):
                with open("reads", "a") as stream:
                    stream.write(f"{path}\\n")
                return read(path)
            tasks._read = noting
        """
    )
    result = demo.pytest("-n", "3", "-k", "task-07 or task-51", "-q")
    result.assert_outcomes(passed=2)
    assert len(Path("reads").read_text().splitlines()) == 60


def test_a_task_costs_less_than_a_test_module(tmp_path: Path) -> None:
    """CPU seconds of 600 tasks and of 600 modules with a test each, in one run: a ratio, for any machine."""
    modules, tasks = tmp_path / "modules", tmp_path / "data"
    modules.mkdir()
    (tasks / "tasks").mkdir(parents=True)
    (tasks / "ageval.yaml").write_text("format: ageval.dataset/1\ndataset_id: a/b\nversion: '1'\n")
    (tasks / "profiles.yaml").write_text(
        "format: ageval.profiles/1\nenvironment: local\nagent_profiles: {}\n"
    )
    for number in range(600):
        (modules / f"test_{number}.py").write_text("def test_one(): pass\n")
        task = tasks / "tasks" / f"t{number}"
        task.mkdir()
        (task / "task.yaml").write_text(f"format: ageval.task/1\ntask_id: t{number}\n")
        for name in ("run.py", "evaluator.py"):
            (task / name).write_text("")
    check(
        lambda least: least[0] / least[1], 1.0, partial(_collect, tasks), partial(_collect, modules), least=1
    )


def _collect(place: Path) -> float:
    """CPU seconds of collecting all that is below `place`."""
    return cpu((*PYTEST, "--collect-only", "."), place)
