"""The data sets in `datasets/`, as a user runs them: pytest in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

DATASETS = Path(__file__).parents[2] / "datasets"
QUICKSTART = DATASETS / "quickstart"
TASKS = [
    "first-bad-build",
    "fix-parser",
    "incident-timeline",
    "log-triage",
    "rebook-flight",
    "release-note",
    "sales-report",
]


@dataclass(frozen=True)
class Run:
    """What one run of pytest came to: exit code, outcome of each test, result.json of each task."""

    code: int
    outcomes: dict[str, str]
    results: dict[str, dict[str, Any]]
    output: str


def run(dataset: Path, directory: Path, *arguments: str) -> Run:
    """Run pytest on a data set. Evidence goes below `directory`."""
    evidence, junit = directory / "evidence", directory / "junit.xml"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("AGEVAL_", "PYTEST_"))
    }
    command = [sys.executable, "-m", "pytest", str(dataset), "-p", "no:cacheprovider"]
    options = ["-q", f"--ageval-dir={evidence}", f"--junitxml={junit}", *arguments]
    done = subprocess.run(
        [*command, *options],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    output = done.stdout + done.stderr
    assert junit.is_file(), output
    results = (json.loads(path.read_text()) for path in evidence.rglob("result.json"))
    return Run(
        done.returncode,
        {case.attrib["name"]: outcome(case) for case in ET.parse(junit).iter("testcase")},
        {result["task_id"]: result for result in results},
        output,
    )


def outcome(case: ET.Element) -> str:
    for tag in ("error", "failure", "skipped"):
        if case.find(tag) is not None:
            return tag
    return "passed"


def test_ids() -> None:
    command = [sys.executable, "-m", "pytest", str(QUICKSTART), "--collect-only", "-q"]
    done = subprocess.run(
        [*command, "--agent=oracle", "-p", "no:cacheprovider"], capture_output=True, text=True
    )
    found = [line for line in done.stdout.splitlines() if "::" in line]
    expected = [f"datasets/quickstart/tasks/{task}/task.yaml::{task}[oracle]" for task in TASKS]
    assert found == expected, done.stdout + done.stderr


def test_every_solution_passes(tmp_path: Path) -> None:
    done = run(QUICKSTART, tmp_path, "--agent=oracle")
    assert done.outcomes == {f"{task}[oracle]": "passed" for task in TASKS}, done.output
    assert done.code == 0
    assert {task: result["score"] for task, result in done.results.items()} == dict.fromkeys(TASKS, 1.0)


def test_doing_nothing_fails_and_is_not_an_error(tmp_path: Path) -> None:
    done = run(QUICKSTART, tmp_path, "--agent=nop")
    assert done.outcomes == {f"{task}[nop]": "failure" for task in TASKS}, done.output
    assert done.code == 1
    assert {task: result["score"] for task, result in done.results.items()} == dict.fromkeys(TASKS, 0.0)
    # The search ran into its limit on invocations, and was judged all the same.
    assert done.results["first-bad-build"]["limit"] == "agent_invocations"


def test_without_an_agent_tasks_are_skipped_with_a_hint(tmp_path: Path) -> None:
    done = run(QUICKSTART, tmp_path, "-rs")
    assert set(done.outcomes.values()) == {"skipped"}, done.output
    assert len(done.outcomes) == len(TASKS)
    assert "--agent" in done.output


def test_tags_select(tmp_path: Path) -> None:
    done = run(QUICKSTART, tmp_path, "--agent=oracle", "-m", "any_agent and not tools")
    assert sorted(done.outcomes) == [
        f"{task}[oracle]" for task in ("first-bad-build", "incident-timeline", "release-note")
    ]


# -- what evaluators make of other work than the solutions ----------------------------------------

#: A program that looks for gold where gold lies while it runs, and else claims success.
CHEAT = """\
import glob, os, sys
for path in glob.glob("/attempt/**/cases.json", recursive=True):
    sys.stdout.write(open(path).read())
    sys.stdout.flush()
    os._exit(0)
print('{"status": "PASS", "score": 1.0}')
"""


@dataclass(frozen=True)
class Variant:
    """A task with another solution: turns or files of solution/, and what is expected of it."""

    task: str
    status: str
    turns: dict[str, list[dict[str, Any]]] | None = None
    files: dict[str, str] | None = None
    failed: tuple[str, ...] = ()
    error: str | None = None
    score: float | None = None


def solution(task: str) -> dict[str, list[dict[str, Any]]]:
    text = (QUICKSTART / "tasks" / task / "solution" / "turns.yaml").read_text(encoding="utf-8")
    found: dict[str, list[dict[str, Any]]] = yaml.safe_load(text)
    return found


def in_words(turn: dict[str, Any]) -> dict[str, Any]:
    """The same turn of an agent that has no tool interface: it asks for the call in text."""
    if "tool_calls" not in turn:
        return turn
    [call] = turn["tool_calls"]
    return {"text": json.dumps({"tool": call["name"], "arguments": call["arguments"]})}


def swapped(timeline: str) -> str:
    """The editor's answer with its first two entries in each other's place."""
    answer = json.loads(timeline)
    first, second, *rest = answer["timeline"]
    return json.dumps({**answer, "timeline": [second, first, *rest]})


SERVICE = solution("rebook-flight")["service"]
WRITER = solution("release-note")["writer"]
EDITOR = solution("incident-timeline")["editor"][0]["text"]

VARIANTS = {
    "calls-in-words": Variant("rebook-flight", "PASS", {"service": [in_words(turn) for turn in SERVICE]}),
    "changed-without-asking": Variant(
        "rebook-flight",
        "FAIL",
        # As the solution does it, but without the question before the change.
        {"service": [*SERVICE[:3], *SERVICE[4:]]},
        failed=("consent",),
        score=0.8333,
    ),
    "cancels-a-basic-ticket": Variant(
        "rebook-flight",
        "FAIL",
        {
            "service": [
                *SERVICE[:6],
                {"tool_calls": [{"name": "cancel", "arguments": {"code": "mn34op"}}]},
                {"text": "Done."},
            ]
        },
        failed=("MN34OP.cancelled",),
    ),
    "judge-says-prose": Variant(
        "release-note",
        "ERROR",
        {"writer": WRITER, "judge": [{"text": "Looks good to me: 8 of 8."}]},
        error="judge_answer_invalid",
    ),
    "judge-invents-points": Variant(
        "release-note",
        "ERROR",
        {
            "writer": WRITER,
            "judge": [
                {
                    "text": '{"points": {"gains": 9, "action": 2, "faithful": 2, "audience": 2},'
                    ' "reason": "So good."}'
                }
            ],
        },
        error="judge_answer_invalid",
    ),
    "judge-is-strict": Variant(
        "release-note",
        "FAIL",
        {
            "writer": WRITER,
            "judge": [
                {
                    "text": '```json\n{"points": {"gains": 2, "action": 0, "faithful": 2,'
                    ' "audience": 2}, "reason": "Says nothing of v2."}\n```'
                }
            ],
        },
        failed=("rubric",),
        score=0.75,
    ),
    # Blank text never reaches the judge: there is no turn for it.
    "nothing-to-judge": Variant(
        "release-note", "FAIL", {"writer": [{"text": " \n"}]}, failed=("written",), score=0.0
    ),
    "wrong-order": Variant(
        "incident-timeline",
        "FAIL",
        {**solution("incident-timeline"), "editor": [{"text": swapped(EDITOR)}]},
        failed=("order",),
    ),
    "gives-up-half-way": Variant(
        "first-bad-build",
        "FAIL",
        {"solver": [{"text": f"TEST {500 + place}"} for place in range(14)]},
        failed=("named", "right"),
    ),
    "names-a-wrong-build": Variant(
        "first-bad-build",
        "FAIL",
        {"solver": [{"text": "TEST 500"}, {"text": "FOUND 500"}]},
        failed=("right",),
        score=0.0,
    ),
    "program-reads-gold": Variant(
        "fix-parser", "FAIL", files={"ini2json.py": CHEAT, "solve.sh": "cp $(dirname $0)/*.py ."}
    ),
    "program-hangs-once": Variant(
        "fix-parser",
        "FAIL",
        files={
            "solve.sh": "sed '/^def parse/a\\    while \"twelve\" in text: pass' "
            '"$(dirname "$0")/ini2json.py" > ini2json.py'
        },
        failed=("quoted",),
        score=0.9,
    ),
    "report-is-a-link": Variant(
        "sales-report", "FAIL", files={"solve.sh": "ln -s /etc/passwd report.json"}, score=0.0
    ),
    "report-with-nan": Variant(
        "sales-report",
        "FAIL",
        files={"solve.sh": """echo '{"orders": NaN}' > report.json"""},
        failed=("report",),
        score=0.0,
    ),
    "half-a-report": Variant(
        "sales-report",
        "FAIL",
        files={"solve.sh": """echo '{"orders": 90, "best_product": "DESK-9"}' > report.json"""},
        score=0.3,
    ),
    "forged-state": Variant(
        "rebook-flight",
        "FAIL",
        {"*": [{"run": "echo '{}' > final-state.json", "text": "Done."}] * 8},
        score=0.0,
    ),
}


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run over all variants: copies of the tasks with another solution each."""
    directory = tmp_path_factory.mktemp("variants")
    dataset = directory / "dataset"
    shutil.copytree(QUICKSTART, dataset, ignore=shutil.ignore_patterns("tasks", ".ageval"))
    for name, variant in VARIANTS.items():
        task = dataset / "tasks" / name
        shutil.copytree(QUICKSTART / "tasks" / variant.task, task)
        text = (task / "task.yaml").read_text(encoding="utf-8")
        text = re.sub("^task_id: .*$", f"task_id: {name}", text, flags=re.MULTILINE)
        (task / "task.yaml").write_text(text, encoding="utf-8")
        if variant.turns is not None:
            turns = yaml.safe_dump(variant.turns)
            (task / "solution" / "turns.yaml").write_text(turns, encoding="utf-8")
        for file, content in (variant.files or {}).items():
            (task / "solution" / file).write_text(content, encoding="utf-8")
    return run(dataset, directory, "--agent=oracle")


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_other_work(variants: Run, name: str) -> None:
    expected, result = VARIANTS[name], variants.results[name]
    kind = {"PASS": "passed", "FAIL": "failure", "ERROR": "error"}[expected.status]
    assert result["status"] == expected.status, (result, variants.output)
    assert variants.outcomes[f"{name}[oracle]"] == kind
    if expected.error is not None:
        assert result["error"]["title"] == expected.error
    if expected.score is not None:
        assert result["score"] == expected.score
    if expected.failed:
        assert failed_checks(result) == expected.failed


def failed_checks(result: dict[str, Any]) -> tuple[str, ...]:
    path = Path(result["evidence_path"]) / "evaluation" / "checks.json"
    checks = json.loads(path.read_text(encoding="utf-8"))["checks"]
    return tuple(check["id"] for check in checks if check["status"] != "PASS")


# -- the showcase ---------------------------------------------------------------------------------


def test_showcase(tmp_path: Path) -> None:
    done = run(DATASETS / "showcase", tmp_path, "--agent=oracle")
    assert done.outcomes == {
        "broken-evaluator[oracle]": "error",
        "typo": "error",
        "wrong-answer[oracle]": "failure",
    }, done.output
    wrong = done.results["wrong-answer"]
    assert (wrong["status"], wrong["score"]) == ("FAIL", 0.75)
    assert failed_checks(wrong) == ("lamp",)
    assert "KeyError: 'accepted_words'" in done.output
    assert re.search(r"broken-evaluator/evaluator\.py\D+14", done.output)
    assert "wall_time_second" in done.output
    assert "wall_time_seconds" in done.output
