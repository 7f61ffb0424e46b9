"""``--regrade``: recorded work is judged again, as new attempts, by the data set's evaluator of today."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ageval.suite import Settled, SuiteHeader, SuiteWriter, read_suite, suites
from pytest_ageval.testing.scripted_model import HttpError, ScriptedModel, Text

from .attempt_kit import ASK, JUDGE, ONE, PROFILES
from .conftest import DataSet

WRITES = """
from pathlib import Path

def run(ctx):
    if ctx.params.get("idle"):
        return
    Path(ctx.workspace_root, "answer.txt").write_text(str(ctx.params["answer"]))
"""
#: Looks at the artifact, and at the workspace for what was seeded and for what the agent left.
JUDGES = """
from pathlib import Path

def evaluate(inputs):
    given = Path(inputs["artifacts"]["answer"]).read_text()
    workspace = Path(inputs["workspace_dir"])
    assert (workspace / "question.txt").read_text() == "6 x 7"
    assert (workspace / "answer.txt").read_text() == given
    return {"status": "PASS" if given == "42" else "FAIL", "metrics": {"given": int(given)}}
"""
STRICT = (
    'def evaluate(inputs):\n    return {"status": "FAIL", "checks": [{"id": "style", "status": "fail"}]}\n'
)
ARTIFACT = "artifacts: {publishable: [{id: answer, path: workspace/answer.txt}]}\n"


def arithmetic(demo: DataSet, name: str = "sum", answer: int = 42, more: str = "") -> Path:
    task = demo.task(
        name, evaluator=JUDGES, run=WRITES, more=f"{ARTIFACT}parameters: {{answer: {answer}{more}}}\n"
    )
    (task / "data").mkdir()
    (task / "data" / "question.txt").write_text("6 x 7")
    return task


def content(directory: Path) -> dict[str, str]:
    """Every file below, with what is in it and when it was changed."""
    return {
        str(
            path.relative_to(directory)
        ): f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.stat().st_mtime_ns}"
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def record(demo: DataSet, name: str = "aa11") -> str:
    """A suite run of all attempts that there are, as a session would have recorded it."""
    evidence = demo.root / ".ageval"
    header = SuiteHeader(suite_run_id=name, created_at="2026-01-31T12:00:00Z", run_id="run_other")
    writer = SuiteWriter.create(evidence / "suite-runs" / name, header)
    for directory in demo.attempts():
        result = json.loads((directory / "result.json").read_text())
        if "regraded_of" in result:
            continue
        task = result["task_id"]
        writer.add(
            Settled(
                slot=f"datasets/demo/tasks/{task}/task.yaml::{task}[local]",
                task_id=task,
                attempt_dir=f"runs/{directory.name}",
                box="local",
                variant="local",
                **{n: result[n] for n in ("status", "dataset_id", "agent", "model", "attempt_id", "error")},
            )
        )
    writer.close()
    return name


def regraded(demo: DataSet) -> dict[str, dict[str, Any]]:
    return {str(row["task_id"]): row for row in demo.results() if "regraded_of" in row}


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_the_same_evaluator_gives_the_same_verdicts(demo: DataSet, workers: str) -> None:
    arithmetic(demo)
    arithmetic(demo, "wrong", 43)
    demo.pytest("--box", "local").assert_outcomes(passed=1, failed=1)
    before = {row["task_id"]: row for row in demo.results()}
    sources = {path: content(path) for path in demo.attempts()}
    demo.task("later")
    result = demo.pytest("--regrade", record(demo), workers, "-v", "--junitxml=out.xml")
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"]) == (1, 1)
    if workers == "-n0":
        assert outcomes["deselected"] == 1
        result.stdout.fnmatch_lines(["*collected 3 items / 1 deselected / 2 selected"])
    result.stdout.fnmatch_lines(["*regrade of aa11: 2 of 2 recorded attempts*", "*sum?local?*"])
    after = regraded(demo)
    for name in ("sum", "wrong"):
        for key in ("status", "score", "metrics", "not_produced", "agent", "model"):
            assert after[name][key] == before[name][key]
        assert after[name]["regraded_of"] == before[name]["attempt_id"]
        assert (
            f'name="ageval.regraded_of" value="{before[name]["attempt_id"]}"'
            in (demo.pytester.path / "out.xml").read_text()
        )
        assert "run" not in after[name]["timing"]
        assert after[name]["usage"].get("prompt_tokens") is None
    assert {path: content(path) for path in sources} == sources


def test_a_changed_evaluator_gives_its_own_verdict(demo: DataSet) -> None:
    task = arithmetic(demo)
    demo.pytest().assert_outcomes(passed=1)
    (attempt,) = demo.attempts()
    (task / "evaluator.py").write_text(STRICT)
    result = demo.pytest("--regrade", str(attempt))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*failed checks: style*"])
    # What was judged again can be judged again.
    (again,) = [path for path in demo.attempts() if path != attempt]
    (task / "evaluator.py").write_text(JUDGES)
    demo.pytest("--regrade", again.name).assert_outcomes(passed=1)
    lock = json.loads((again / "lock.json").read_text())
    assert lock["regrade"]["of"] == attempt.name


def test_the_command_line_of_the_run_still_holds(demo: DataSet) -> None:
    arithmetic(demo, answer=0)
    demo.pytest("--set", "/parameters/answer=42", "--set", "/parameters/extra=[1]").assert_outcomes(passed=1)
    demo.pytest("--regrade", demo.attempts()[0].name).assert_outcomes(passed=1)
    (lock,) = [
        json.loads((p / "lock.json").read_text())
        for p in demo.attempts()
        if "regrade" in (p / "lock.json").read_text()
    ]
    assert lock["locked"]["parameters"] == {"answer": 42, "extra": [1]}


def test_what_was_not_produced_is_absent_and_nothing_at_all_is_an_error(demo: DataSet) -> None:
    lenient = (
        'def evaluate(inputs):\n    return {"status": "PASS" if inputs["missing"] == ["b"] else "FAIL"}\n'
    )
    more = "artifacts: {publishable: [{id: answer, path: answer.txt}, {id: b, path: b.txt}]}\n"
    demo.task("half", evaluator=lenient, run=WRITES, more=f"{more}parameters: {{answer: 1}}\n")
    demo.task("none", evaluator=STRICT, run=WRITES, more=f"{ARTIFACT}parameters: {{idle: true}}\n")
    demo.pytest("--box", "local").assert_outcomes(passed=1, failed=1)
    result = demo.pytest("--regrade", record(demo))
    result.assert_outcomes(passed=1, errors=1)
    found = regraded(demo)
    assert found["half"]["not_produced"] == ["b"]
    error = found["none"]["error"]
    assert (error["title"], error["phase"]) == ("regrade_harvest_missing", "evaluate")


def test_evidence_that_is_gone_is_an_error(demo: DataSet) -> None:
    import shutil

    arithmetic(demo)
    demo.pytest()
    record(demo)
    shutil.rmtree(demo.attempts()[0])
    result = demo.pytest("--regrade", "last")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*regrade_harvest_missing*its evidence is gone*"])


def test_no_agent_starts_and_no_key_of_one_is_needed(
    demo: DataSet, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = demo.task("ask", evaluator=JUDGE, run=ASK, roles=("solver",), more=ONE)
    with ScriptedModel([Text("42")]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=1))
        demo.pytest().assert_outcomes(passed=1)
        assert len(model.requests) == 1
    monkeypatch.delenv("PROBE_KEY")
    demo.profiles(PROFILES.format(url="http://203.0.113.9:9", stall=1))
    (source,) = demo.results()
    demo.pytest("--regrade", demo.attempts()[0].name).assert_outcomes(passed=1)
    row = regraded(demo)["ask"]
    assert (row["agent"], row["model"]) == (source["agent"], source["model"]) == ("openai-http", "scripted")
    assert row["agent_invocations"] == 0
    assert task.is_dir()


JUDGED = """
async def evaluate(inputs):
    reply = await inputs["agent"].session("judge").invoke("Is it good?")
    return {"status": "PASS" if reply["text"] == "yes" else "FAIL"}
"""


def test_judges_are_asked_again_and_need_their_key(
    demo: DataSet, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.task("ask", evaluator=JUDGED, run=ASK, roles=("solver", "judge"), more=ONE)
    for answer, arguments in (("yes", ()), ("no", ("--regrade",))):
        with ScriptedModel(by=lambda r, a=answer: Text(a if "good" in r.prompt else "42")) as model:
            demo.profiles(PROFILES.format(url=model.base_url, stall=1))
            named = [demo.attempts()[0].name] if arguments else []
            result = demo.pytest(*arguments, *named)
            result.assert_outcomes(**({"failed": 1} if arguments else {"passed": 1}))
            assert len(model.requests) == (1 if arguments else 2)
    monkeypatch.delenv("PROBE_KEY")
    demo.profiles(PROFILES.format(url="https://models.example", stall=1))
    result = demo.pytest("--regrade", demo.attempts()[0].name)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*unset_variable*PROBE_KEY*role 'judge'*"])


BREAKS = """
async def run(ctx):
    reply = await ctx.agent.session("solver").invoke("What is 6 times 7?")
    ctx.publish_json("reply", {"text": reply["text"] or ""})
"""


def test_a_fail_of_work_that_could_not_be_done_stays_an_error(demo: DataSet, key: str) -> None:
    demo.task("ask", evaluator=JUDGE, run=BREAKS, roles=("solver",), more=ONE)
    with ScriptedModel([HttpError(400)]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.pytest().assert_outcomes(errors=1)
    (before,) = demo.results()
    demo.pytest("--regrade", demo.attempts()[0].name).assert_outcomes(errors=1)
    after = regraded(demo)["ask"]
    assert after["error"]["title"] == before["error"]["title"]  # type: ignore[index]
    assert after["error"]["phase"] == "run"


def test_items_are_selected_as_in_the_run(demo: DataSet) -> None:
    arithmetic(demo)
    arithmetic(demo, "wrong", 43)
    demo.pytest("--box", "local", "--attempts", "1")
    name = record(demo)
    assert [one.rpartition("::")[2] for one in demo.collect("--regrade", name)] == [
        "sum[local]",
        "wrong[local]",
    ]
    assert len(demo.collect("--regrade", name, "-k", "wrong")) == 1
    assert len(demo.collect("--regrade", name, "-m", "ageval(box='local')")) == 2
    assert demo.collect("--regrade", name, "--agent", "codex") == []
    assert len(demo.collect("--regrade", name, "--box", "local")) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--regrade", "zz"], "regrade_not_found: --regrade zz: neither a suite run nor an attempt below"),
        (["--regrade", "attempt_zz"], "regrade_not_found"),
        (
            ["--regrade", "aa11", "--matrix", "/parameters/answer=[1]"],
            "--regrade and --matrix exclude each other",
        ),
        (["--regrade", "aa11", "--attempts", "auto"], "--regrade and --attempts auto exclude each other"),
        (["--regrade", "attempt_open"], "regrade_unsettled"),
    ],
)
def test_usage_errors(demo: DataSet, arguments: list[str], words: str) -> None:
    arithmetic(demo)
    demo.pytest()
    record(demo)
    unsettled = demo.root / ".ageval" / "runs" / "attempt_open"
    unsettled.mkdir()
    (unsettled / "lock.json").write_text("{}")
    result = demo.pytest(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert words in result.stderr.str() + result.stdout.str()


def test_a_session_records_what_it_judged_again(demo: DataSet) -> None:
    arithmetic(demo)
    demo.pytest("--attempts", "2").assert_outcomes(passed=2)
    demo.pytest("--regrade", "last").assert_outcomes(passed=2)
    first, second = suites(demo.root / ".ageval")
    runs, judged = read_suite(first), read_suite(second)
    assert list(judged.settled) == list(runs.settled)
    for slot, row in judged.settled.items():
        source = runs.settled[slot]
        assert (row.source, row.of) == ("regraded", source.attempt_id)
        assert (row.agent, row.attempt, row.variant) == (source.agent, source.attempt, source.variant)
        assert row.digest != source.digest
    # Neither takes the other's result for its own.
    result = demo.pytest("--reuse", "--attempts", "2")
    result.assert_outcomes(passed=2)
    reused = read_suite(suites(demo.root / ".ageval")[-1])
    assert {row.of for row in reused.rows} == {row.attempt_id for row in runs.rows}
