"""Attempts as trials of Harbor: while they run and afterwards, without gold and without secrets."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import atif
import harbor_shape
import pytest

from pytest_ageval import cli
from pytest_ageval.suite import Settled, SuiteHeader, SuiteWriter
from pytest_ageval.testing.scripted_model import HttpError, ScriptedModel, Text

from .attempt_kit import ASK, JUDGE, KEY, ONE, PROFILES, ROLES
from .conftest import DataSet

pytestmark = pytest.mark.usefixtures("key")

GOLD = "GOLD-ANSWER-42"
JUDGED = f"""
def evaluate(inputs):
    print("{GOLD}")
    return {{
        "status": "PASS", "score": 0.75,
        "metrics": {{"expected": "{GOLD}"}}, "checks": [{{"id": "{GOLD}", "status": "pass"}}],
    }}
"""
CRASH = f"""
def evaluate(inputs):
    raise RuntimeError("{GOLD}")
"""
LEAK = f"""
async def run(ctx):
    await ctx.agent.session("solver").invoke("say it")
    ctx.publish_json("reply", {{"key": "{KEY}"}})
"""


def job(demo: DataSet) -> Path:
    (found,) = (demo.root / ".ageval" / "harbor-jobs").iterdir()
    return found


def trials(demo: DataSet) -> dict[str, Path]:
    return {path.name.partition("__")[0]: path for path in job(demo).iterdir() if path.is_dir()}


def texts(root: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in root.rglob("*") if path.is_file())


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_run_with_workers_leaves_a_job(demo: DataSet) -> None:
    with ScriptedModel(by=lambda _: Text("42")) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("answer", run=ASK, evaluator=JUDGED, roles=(ROLES,), more=ONE)
        demo.task("wrong", run=ASK, evaluator=JUDGE.replace('"42"', '"43"'), roles=(ROLES,), more=ONE)
        demo.task("crash", run=ASK, evaluator=CRASH, roles=(ROLES,), more=ONE)
        demo.task("leak", run=LEAK, evaluator=JUDGED, roles=(ROLES,), more=ONE)
        result = demo.pytest("datasets", "--ageval-export=harbor", "--attempts=2", "-n", "2")
    result.assert_outcomes(passed=4, failed=2, errors=2)
    assert "ageval: 8 Harbor trials in " in result.stdout.str()
    directory = job(demo)
    assert harbor_shape.check_job(directory) == 8
    whole = document(directory / "result.json")
    stats = whole["stats"]
    assert (whole["n_total_trials"], stats["n_completed_trials"], stats["n_errored_trials"]) == (8, 8, 2)
    (figures,) = stats["evals"].values()
    assert (figures["n_trials"], figures["n_errors"]) == (6, 2)
    assert figures["metrics"] == [{"mean": pytest.approx(0.5)}]
    assert {value: len(names) for value, names in figures["reward_stats"]["reward"].items()} == {
        "0.75": 4,
        "0.0": 2,
    }
    assert stats["n_input_tokens"] == 8000
    assert document(directory / "config.json")["n_attempts"] == 2

    found = trials(demo)
    answer = document(found["answer"] / "result.json")
    assert answer["verifier_result"] == {"rewards": {"reward": 0.75}}
    assert answer["agent_info"]["model_info"] == {"name": "scripted", "provider": None}
    assert answer["agent_result"]["n_output_tokens"] == 50
    assert answer["agent_result"]["metadata"]["pytest_ageval"]["status"] == "PASS"
    assert answer["config"]["environment"] == {"import_path": "pytest_ageval.box:local"}
    assert Path(answer["config"]["task"]["path"]) == demo.root / "tasks" / "answer"
    assert answer["started_at"] < answer["agent_execution"]["finished_at"] < answer["finished_at"]
    trajectory = atif.read((found["answer"] / "agent" / "trajectory.json").read_text())
    assert [step.source for step in trajectory.steps] == ["user", "agent"]
    assert (found["answer"] / "verifier" / "reward.txt").read_text() == "0.75\n"
    assert document(found["answer"] / "artifacts" / "reply.json")["text"] == "42"
    (row,) = json.loads((found["answer"] / "artifacts" / "manifest.json").read_text())
    assert (row["source"], row["destination"]) == ("/attempt/workspace/reply.json", "artifacts/reply.json")
    crash = document(found["crash"] / "result.json")
    assert crash["verifier_result"] is None
    assert crash["exception_info"]["exception_message"].startswith("the evaluator gave no verdict; see")
    assert document(found["leak"] / "artifacts" / "reply.json")["key"] == "[REDACTED:PROBE_KEY]"
    assert GOLD not in texts(directory)
    assert KEY not in texts(directory)


def test_ini_and_environment(demo: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    demo.task("t")
    monkeypatch.setenv("AGEVAL_EXPORT", "harbor")
    demo.pytest("datasets").assert_outcomes(passed=1)
    assert harbor_shape.check_job(job(demo)) == 1
    monkeypatch.setenv("AGEVAL_EXPORT", "hrbor")
    result = demo.pytest("datasets")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "AGEVAL_EXPORT: expected one of harbor, found 'hrbor'" in result.stdout.str() + result.stderr.str()


def test_an_export_that_fails_is_told_and_changes_nothing(demo: DataSet) -> None:
    demo.task("t")
    (demo.root / ".ageval").mkdir()
    (demo.root / ".ageval" / "harbor-jobs").write_text("in the way")
    result = demo.pytest("datasets", "--ageval-export=harbor")
    result.assert_outcomes(passed=1)
    assert "not exported: NotADirectoryError" in result.stdout.str()
    assert [row["status"] for row in demo.results()] == ["PASS"]
    assert "Harbor trials in" not in result.stdout.str()


def export(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main(["export", *map(str, arguments), "--format", "harbor"])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_afterwards_it_is_the_same(demo: DataSet, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    demo.task("t")
    demo.task("u", evaluator=CRASH)
    demo.pytest("datasets", "--ageval-export=harbor")
    before = {path: path.read_bytes() for path in job(demo).rglob("*") if path.is_file()}
    code, out, err = export(capsys, demo.root)
    assert (code, out.split(" in ")[0], err) == (0, "2 trials", "")
    assert {path: path.read_bytes() for path in job(demo).rglob("*") if path.is_file()} == before
    attempt = demo.attempts()[0]
    code, out, _ = export(capsys, attempt, "--out", tmp_path / "jobs")
    assert (code, out.split(" in ")[0]) == (0, "1 trial")
    (directory,) = (tmp_path / "jobs").iterdir()
    assert directory.name == job(demo).name
    assert harbor_shape.check_job(directory) == 1
    # What is not ours is not overwritten.
    (trial,) = (path for path in directory.iterdir() if path.is_dir())
    (trial / "result.json").write_text('{"id": "another"}')
    code, _, err = export(capsys, attempt, "--out", tmp_path / "jobs")
    assert (code, err.startswith("export_failed: ")) == (2, True)
    assert document(trial / "result.json") == {"id": "another"}
    # What did not end has no trial.
    (attempt / "result.json").unlink()
    shutil.rmtree(tmp_path / "jobs")
    code, _, err = export(capsys, demo.root, "--out", tmp_path / "jobs")
    assert (code, f"{attempt.name} has no result; it is left out" in err) == (0, True)
    # A suite run is its attempts.
    other = demo.attempts()[1]
    root = demo.root / ".ageval" / "suite-runs" / "aabbccdd"
    writer = SuiteWriter.create(root, SuiteHeader(suite_run_id="aabbccdd", created_at="2026-01-01T00:00:00Z"))
    name = f"runs/{other.name}"
    writer.add(Settled(slot="s", status="PASS", task_id="t", attempt_id=other.name, attempt_dir=name))
    writer.close()
    code, out, err = export(capsys, root, "--out", tmp_path / "jobs")
    assert (code, out.split(" in ")[0], err) == (0, "1 trial", "")


def test_an_agent_that_could_not_be_used_is_an_exception(demo: DataSet) -> None:
    with ScriptedModel([HttpError(400)]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        demo.pytest("datasets", "--ageval-export=harbor").assert_outcomes(errors=1)
    (status,) = demo.results()
    (trial,) = trials(demo).values()
    found = document(trial / "result.json")
    assert found["exception_info"]["exception_type"] == status["error"]["title"]
    assert found["verifier_result"] is None
    assert (trial / "exception.txt").read_text().startswith(status["error"]["title"])


@pytest.mark.skipif("AGEVAL_HARBOR_PYTHON" not in os.environ, reason="needs a Python that has harbor")
def test_harbor_takes_what_was_written(demo: DataSet) -> None:
    with ScriptedModel(by=lambda _: Text("42")) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("answer", run=ASK, evaluator=JUDGED, roles=(ROLES,), more=ONE)
        demo.task("crash", run=ASK, evaluator=CRASH, roles=(ROLES,), more=ONE)
        demo.pytest("datasets", "--ageval-export=harbor")
    jobs = demo.root / ".ageval" / "harbor-jobs"
    harbor_shape.validate_with_harbor(jobs)
    with harbor_shape.viewer(jobs) as ask:
        (shown,) = ask("/api/jobs")["items"]
        assert (shown["name"], shown["n_total_trials"]) == (job(demo).name, 2)
        rows = {row["task_name"]: row for row in ask(f"/api/jobs/{shown['name']}/trials")["items"]}
        assert rows["answer"]["reward"] == 0.75
        assert rows["crash"]["error_type"]
        base = f"/api/jobs/{shown['name']}/trials/{trials(demo)['answer'].name}"
        assert ask(f"{base}/trajectory")["steps"][0]["source"] == "user"
        assert [row["path"] for row in ask(f"{base}/artifacts")["files"]] == ["reply.json"]
