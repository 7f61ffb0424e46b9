"""Every template of `conftest_templates/`, copied as it is beside a data set and run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "conftest_templates"
QUICKSTART = ROOT / "datasets" / "quickstart"


class Dataset:
    """A data set with one template and some tasks of the quickstart."""

    def __init__(self, pytester: pytest.Pytester, template: str, *tasks: str) -> None:
        self.pytester = pytester
        self.path = pytester.path / "dataset"
        ignored = shutil.ignore_patterns("tasks", ".ageval", "__pycache__")
        shutil.copytree(QUICKSTART, self.path, ignore=ignored)
        shutil.copy(TEMPLATES / template / "conftest.py", self.path)
        for task in tasks:
            self.add(QUICKSTART / "tasks" / task)

    def add(self, task: Path) -> None:
        shutil.copytree(task, self.path / "tasks" / task.name)

    def run(self, *arguments: str) -> pytest.RunResult:
        return self.pytester.runpytest_subprocess(self.path, "-p", "no:cacheprovider", *arguments)

    def evidence(self, file: str) -> dict[str, dict[str, Any]]:
        """The documents of that name, by task; of the last run of each."""
        found = {}
        for path in sorted(self.path.glob(f".ageval/runs/*/{file}"), key=lambda p: p.stat().st_mtime):
            task = json.loads((path.parent / "result.json").read_text())["task_id"]
            found[task] = json.loads(path.read_text())
        return found


def test_every_template_has_a_test() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    shipped = {path.parent.name for path in TEMPLATES.glob("*/conftest.py")}
    assert {name for name in shipped if f'"{name}"' in text} == shipped
    assert len(shipped) >= 4


def test_custom_box(pytester: pytest.Pytester) -> None:
    dataset = Dataset(pytester, "custom_box", "sales-report")
    solve = dataset.path / "tasks" / "sales-report" / "solution" / "solve.sh"
    solve.write_text('test "$NOTE" = "in the box" || exit 0\n' + solve.read_text())
    boxes = ("--agent=oracle", "--box=logged")
    dataset.run(*boxes).assert_outcomes(failed=1)
    with_variable = dataset.run(*boxes, "--box-option", 'variables=["NOTE=in the box"]')
    with_variable.assert_outcomes(passed=1)
    extra = dataset.evidence("summary.json")["sales-report"]["extra"]
    assert extra["commands"] >= 1
    assert extra["command_seconds"] > 0


def test_custom_box_refuses_an_unknown_option(pytester: pytest.Pytester) -> None:
    dataset = Dataset(pytester, "custom_box", "sales-report")
    done = dataset.run("--agent=oracle", "--box=logged", "--box-option", "variable=1")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*variables*"])


def test_custom_executor(pytester: pytest.Pytester) -> None:
    dataset = Dataset(pytester, "custom_executor", "first-bad-build", "release-note")
    done = dataset.run("--agent=function", "-rpf")
    done.assert_outcomes(passed=1, failed=0, errors=1)
    done.stdout.fnmatch_lines(["PASSED *first-bad-build?function?*"])
    # It plays the judge as well, and a judge that gives no verdict is an ERROR.
    assert dataset.evidence("result.json")["release-note"]["error"]["title"] == "judge_answer_invalid"


def test_custom_executor_that_raises_is_an_error(pytester: pytest.Pytester) -> None:
    dataset = Dataset(pytester, "custom_executor", "first-bad-build")
    template = dataset.path / "conftest.py"
    text = template.read_text()
    assert 'return "I only know' in text
    template.write_text(
        text.replace("    last = re.search", "    raise OSError('no licence')\n    last = re.search")
    )
    dataset.run("--agent=function").assert_outcomes(errors=1)
    assert dataset.evidence("result.json")["first-bad-build"]["error"]["title"] == "OSError"


def test_extra_metric(pytester: pytest.Pytester) -> None:
    dataset = Dataset(pytester, "extra_metric", "fix-parser", "sales-report", "first-bad-build")
    dataset.run("--agent=oracle").assert_outcomes(passed=3)
    metrics = {task: row["metrics"] for task, row in dataset.evidence("result.json").items()}
    assert metrics["fix-parser"]["lines_changed"] > 20
    assert metrics["fix-parser"]["checks_passed"] == 10
    # It adds a file and changes none of the task's.
    assert metrics["sales-report"]["lines_changed"] == 0
    # No files were given to begin with.
    assert "lines_changed" not in metrics["first-bad-build"]


def test_known_failures(pytester: pytest.Pytester) -> None:
    dataset = Dataset(pytester, "known_failures", "fix-parser", "sales-report")
    dataset.add(ROOT / "datasets" / "showcase" / "tasks" / "broken-evaluator")
    known = dataset.path / "known_failures.txt"
    known.write_text("# what we know of\n\nfix-parser[nop]\tneeds an agent\nbroken-evaluator[nop]\n")
    done = dataset.run("--agent=nop", "-rx")
    done.assert_outcomes(xfailed=1, failed=1, errors=1)
    done.stdout.fnmatch_lines(["XFAIL *fix-parser?nop?*needs an agent*"])


def test_known_failure_that_passes_fails_the_run(pytester: pytest.Pytester) -> None:
    dataset = Dataset(pytester, "known_failures", "first-bad-build")
    (dataset.path / "known_failures.txt").write_text("first-bad-build[oracle]\n")
    dataset.run("--agent=oracle").assert_outcomes(failed=1)


def test_without_a_list_no_failure_is_known(pytester: pytest.Pytester) -> None:
    dataset = Dataset(pytester, "known_failures", "fix-parser")
    dataset.run("--agent=nop").assert_outcomes(failed=1)


SPENDER = """
from pytest_ageval.executor import AgentResult, Executor, Usage

class Spender(Executor):
    kind = "spender"

    async def invoke(self, prompt, *, tools=None, messages=None):
        return AgentResult(text="FOUND 1", usage=Usage(prompt_tokens=900, completion_tokens=100))

def pytest_ageval_executors():
    return {"spender": Spender}
"""


def test_token_budget(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset(pytester, "token_budget", "first-bad-build")
    pytester.makepyfile(spender=SPENDER)
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    monkeypatch.setenv("AGEVAL_TOKEN_BUDGET", "1500")
    done = dataset.run("-p", "spender", "--agent=spender", "--attempts=4", "-rs")
    done.assert_outcomes(failed=2, skipped=2)
    done.stdout.fnmatch_lines(["*the budget of 1500 tokens is used up (2000 used)*"])
    done.stdout.fnmatch_lines(["tokens used: 2000 of 1500"])
    distributed = dataset.run("-p", "spender", "--agent=spender", "-n2")
    distributed.stdout.fnmatch_lines(["tokens used: 1000 of 1500"])


def test_token_budget_that_is_no_number(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset(pytester, "token_budget", "first-bad-build")
    monkeypatch.setenv("AGEVAL_TOKEN_BUDGET", "2M")
    done = dataset.run("--agent=nop")
    assert done.ret == 4
    done.stderr.fnmatch_lines(["ERROR: AGEVAL_TOKEN_BUDGET: expected a whole number of tokens, found '2M'"])
