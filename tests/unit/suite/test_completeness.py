"""What is missing of a suite run, and that neither a comparison nor a gate is silent about it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from suites import rows, write, write_foreign

from pytest_ageval.cli import main
from pytest_ageval.compare.sides import read_side
from pytest_ageval.evidence.writer import this_process
from pytest_ageval.gates.session import EXIT_GATES
from pytest_ageval.suite import Settled, SuiteHeader, SuiteLayout, SuiteWriter, read_suite
from pytest_ageval.suite.completeness import completeness
from pytest_ageval.suite.run import SuiteRun


def slot(task: str, number: int = 1) -> str:
    return f"tasks/{task}/task.yaml::{task}[codex-{number}]"


def run_of(evidence: Path, name: str, settled: list[Settled], slots: list[str], **how: bool) -> Path:
    """A suite run as a session writes it, that planned `slots` and came to `settled`."""
    header = SuiteHeader(suite_run_id=name, created_at=f"2026-01-01 {name}", dataset_id="demo")
    run = SuiteRun.begin(evidence / "suite-runs" / name, header, slots)
    for row in settled:
        run.settle(row)
    run.close(**how)
    return run.layout.root


@pytest.fixture
def evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``aa`` is complete, ``bb`` was cancelled with one slot missing and one interrupted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGEVAL_DIR", raising=False)
    slots = [slot(task) for task in "abcd"]
    where = tmp_path / ".ageval"
    run_of(where, "aa", rows(dict.fromkeys("abcd", "P"), agent="codex"), slots)
    found = rows({"a": "P", "b": "P"}, agent="codex")
    error = {"title": "interrupted", "phase": "run", "message": "Ctrl-C"}
    found += rows({"c": "E"}, agent="codex", error=error, attempt_id="attempt_c")
    run_of(where, "bb", found, slots, interrupted=True)
    return where


def test_slots_without_a_result_are_missing(evidence: Path) -> None:
    assert completeness(read_suite(evidence / "suite-runs" / "aa")).whole
    found = completeness(read_suite(evidence / "suite-runs" / "bb"))
    assert not found.whole
    assert (found.status, found.planned) == ("cancelled", 4)
    assert (found.missing, found.unsettled) == ((slot("d"),), (slot("c"),))
    assert found.words == (
        "suite bb is cancelled: 1 of 4 slots has no result (d[codex-1]); 1 of 4 was interrupted (c[codex-1])"
    )


def test_what_was_skipped_or_mended_is_not_missing(tmp_path: Path) -> None:
    """Also when a later session goes on: what is skipped stays known, until it is run."""
    slots = [slot("a"), slot("b"), "tasks/c/task.yaml::c"]
    header = SuiteHeader(suite_run_id="aa", created_at="2026")
    run = SuiteRun.begin(tmp_path / "suite-runs" / "aa", header, slots)
    run.settle(rows({"a": "P"}, agent="codex")[0])
    run.skipped(slot("b"))
    run.close()
    root = run.layout.root
    assert completeness(read_suite(root)).missing == ("tasks/c/task.yaml::c",)
    again = SuiteRun.resume(root, [slot("c")])
    (row,) = rows({"c": "P"}, agent="codex", attempt_id="attempt_c")
    again.settle(row)
    again.close()
    assert again.status == "complete"
    found = completeness(read_suite(root))
    assert (found.whole, found.planned) == (True, 2)
    third = SuiteRun.resume(root, [slot("b")])
    third.begun(slot("b"))
    third.close(interrupted=True)
    assert completeness(read_suite(root)).missing == (slot("b"),)


def test_a_suite_run_that_goes_on_is_not_complete(evidence: Path) -> None:
    root = evidence / "suite-runs" / "aa"
    progress = json.loads(SuiteLayout(root).progress.read_text())
    for owner, whole in ((this_process(), False), ({**this_process(), "pid": 2**22 + os.getpid()}, True)):
        document = {**progress, "status": "running", "owner": owner}
        SuiteLayout(root).progress.write_text(json.dumps(document))
        assert completeness(read_suite(root)).whole is whole


def test_judging_again_what_is_not_complete_is_not_complete(evidence: Path) -> None:
    found = rows({"a": "P", "b": "P"}, agent="codex", source="regraded")
    root = write(evidence, "cc", found, parents=("bb",))
    words = completeness(read_suite(root)).words
    assert words.startswith("suite cc is complete: it judges again what is not complete: suite bb is cancel")


def test_an_attempt_that_ageval_cancelled_is_missing(tmp_path: Path) -> None:
    root = write_foreign(tmp_path, "old", {"a": "PP"}, status="cancelled")
    document = json.loads((root / "summary.json").read_text())
    document["attempts"].append({"task_id": "b", "attempt_index": 0, "phase": "cancelled", "status": "ERROR"})
    (root / "summary.json").write_text(json.dumps(document))
    found = read_side(root, "A").completeness
    assert (found.status, found.missing, found.planned) == ("cancelled", ("b[0]",), 3)


# -- compare ---------------------------------------------------------------------------------------


def test_a_comparison_says_first_what_is_missing(evidence: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "aa", "bb"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("INCOMPLETE: B: suite bb is cancelled: 1 of 4 slots has no result (d[codex-1]")
    assert any("warning: B is not complete: suite bb" in line for line in lines)
    assert main(["compare", "aa", "bb", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [side["completeness"]["complete"] for side in report["sides"]] == [True, False]
    assert report["sides"][1]["completeness"]["missing"] == [slot("d")]
    assert main(["compare", "aa", "bb", "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("> [!WARNING]\n> **Incomplete**: B: suite bb is cancelled")
    assert main(["compare", "aa", "aa"]) == 0
    assert "INCOMPLETE" not in capsys.readouterr().out


def test_parts_of_one_suite_run_share_what_is_missing(
    evidence: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [*rows({"a": "P"}, agent="codex"), *rows({"a": "F"}, agent="pi")]
    run_of(evidence, "dd", found, [*(row.slot for row in found), slot("z")])
    assert main(["compare", "dd", "--by", "agent"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("INCOMPLETE")] == [
        "INCOMPLETE: codex, pi: suite dd is incomplete: 1 of 3 slots has no result (z[codex-1])"
    ]


# -- gate ------------------------------------------------------------------------------------------


def test_a_gate_does_not_pass_on_what_is_not_complete(
    evidence: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gate", "bb", "--fail-under", "0", "--max-errors", "100%"]) == EXIT_GATES
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("gate complete: FAILED: suite bb is cancelled: 1 of 4 slots has no result")
    assert [line.partition(":")[0] for line in lines[1:]] == ["gate fail-under", "gate max-errors"]
    assert all("not judged" in line and "--allow-incomplete" in line for line in lines[1:])
    assert main(["gate", "bb", "--fail-under", "1", "--max-errors", "1", "--allow-incomplete"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("gate complete: not judged: suite bb is cancelled")
    assert "2 of 2 attempts pass" in lines[1]
    assert main(["gate", "aa", "--fail-under", "1"]) == 0
    assert "complete" not in capsys.readouterr().out


def test_a_baseline_is_complete_unless_somebody_allows_it(
    evidence: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gate", "aa", "--baseline", "bb"]) == 2
    assert "suite_incomplete: a suite run that is not complete is no baseline" in capsys.readouterr().err
    assert main(["gate", "bb", "--write-baseline", "base.json"]) == 2
    assert not Path("base.json").exists()
    capsys.readouterr()
    assert main(["gate", "bb", "--write-baseline", "base.json", "--allow-incomplete"]) == 0
    assert json.loads(Path("base.json").read_text())["missing"] == 2
    assert main(["gate", "aa", "--baseline", "base.json"]) == 0
    assert "the baseline is base.json (incomplete, 2 without a result)" in capsys.readouterr().out
    assert main(["gate", "aa", "--write-baseline", "whole.json"]) == 0
    assert "missing" not in json.loads(Path("whole.json").read_text())


def test_a_suite_run_that_was_imported_is_complete(tmp_path: Path) -> None:
    """No session planned it: what is recorded is all there is."""
    root = tmp_path / "suite-runs" / "aa"
    SuiteWriter.create(root, SuiteHeader(suite_run_id="aa", created_at="2026")).close()
    assert completeness(read_suite(root)).whole
