"""A suite run while it is written: rows, figures, what settled unrecorded, what it costs to keep."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_ageval.attempt.outcome import Outcome
from pytest_ageval.evidence.layout import Layout
from pytest_ageval.suite import Settled, SuiteHeader, SuiteLayout, SuiteWriter, read_suite
from pytest_ageval.suite import started as starts
from pytest_ageval.suite.control import state
from pytest_ageval.suite.crashed import write_result
from pytest_ageval.suite.rows import to_data, to_row
from pytest_ageval.suite.run import SuiteRun

HEADER = SuiteHeader(suite_run_id="3f2a9c1d", created_at="2026-01-31T12:00:00.000Z", dataset_id="demo")


def begin(evidence: Path, *slots: str) -> SuiteRun:
    return SuiteRun.begin(evidence / "suite-runs" / "3f2a9c1d", HEADER, slots)


def row(slot: str, status: Any = "PASS", **more: Any) -> Settled:
    known = {"task_id": slot, "attempt_id": f"attempt_{slot}", "digest": "sha256:1", **more}
    return Settled(slot=slot, status=status, **known)


def summary(run: SuiteRun) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.layout.summary.read_text())
    return found


def begun_attempt(run: SuiteRun, slot: str, *, result: dict[str, Any] | None) -> str:
    """An attempt directory as a process leaves it, and its line."""
    name = f"attempt_{slot}"
    directory = run.evidence / "runs" / name
    directory.mkdir(parents=True)
    if result is not None:
        document = {**Outcome(attempt_id=name).as_dict(), **result}
        (directory / "result.json").write_text(json.dumps(document))
    known = {"task": slot, "dataset": "demo", "agent": "codex", "attempt": 1, "digest": "sha256:1"}
    line = starts.Started(slot=slot, attempt_id=name, attempt_dir=f"runs/{name}", known=known)
    starts.note(run.layout.root, line)
    return name


def test_what_settled_and_was_not_recorded_is_recorded_once(tmp_path: Path) -> None:
    run = begin(tmp_path, "a", "b", "c")
    begun_attempt(run, "a", result={"status": "PASS", "score": 1.0, "timing": {"run": 5.0}})
    begun_attempt(run, "b", result=None)
    run.settle(row("c", "FAIL"))
    begun_attempt(run, "c", result={"status": "FAIL"})
    run._writer.close()  # killed
    again = SuiteRun.resume(run.layout.root, ["a", "b", "c"])
    assert {slot: found.status for slot, found in again.rows.items()} == {"c": "FAIL", "a": "PASS"}
    assert (again.rows["a"].agent, again.rows["a"].score, again.rows["a"].seconds) == ("codex", 1.0, 0.005)
    assert again.adopt() == 0
    again.close()
    assert (again.status, again.done, again.total) == ("incomplete", 2, 3)


def test_a_line_that_another_process_could_not_finish_spoils_no_other(tmp_path: Path) -> None:
    run = begin(tmp_path, "a")
    with run.layout.started.open("ab") as stream:
        stream.write(b'{"slot": "x", "attempt')
    begun_attempt(run, "a", result=None)
    assert [line.slot for line in starts.read(run.layout.root)] == ["a"]
    run.close()


def test_an_attempt_that_was_continued_settles_after_its_crash(tmp_path: Path) -> None:
    run = begin(tmp_path, "a")
    assert run.settle(row("a", "ERROR", error={"title": "worker_crashed"}))
    assert run.done == 0
    assert run.settle(row("a", "PASS", source="resumed"))
    assert not run.settle(row("a", "PASS"))
    run.close()
    found = read_suite(run.layout.root)
    assert [old.status for old in found.history["a"]] == ["ERROR"]
    assert run.status == "complete"


def test_an_attempt_that_was_never_made_takes_no_place(tmp_path: Path) -> None:
    run = begin(tmp_path, "a")
    run.settle(row("a"))
    assert not run.settle(row("a", "ERROR", attempt_id=None, digest=None))
    assert run.rows["a"].status == "PASS"
    run.close()


def test_errors_are_no_zeros_in_the_figures(tmp_path: Path) -> None:
    run = begin(tmp_path)
    for number, status in enumerate(("PASS", "FAIL", "ERROR", "PASS")):
        scored = None if status == "ERROR" else float(status == "PASS")
        usage = {"cost_usd": 0.5} if number else {}
        run.settle(row(f"t-{number}", status, task_id="t", attempt=number + 1, score=scored, usage=usage))
    run.close()
    found = summary(run)
    assert found["counts"] == {"pass": 2, "fail": 1, "error": 1, "skipped": 0}
    assert found["metrics"]["pass_rate"] == pytest.approx(2 / 3)
    assert found["metrics"]["mean_score"] == pytest.approx(2 / 3)
    assert found["metrics"]["pass_at_k"] == pytest.approx({"1": 2 / 3, "2": 1.0, "3": 1.0})
    assert found["metrics"]["pass_power_k"] == pytest.approx({"1": 2 / 3, "2": 1 / 3, "3": 0.0})
    assert found["metrics"]["usage"]["cost_usd"] == 1.5
    assert found["metrics"]["usage"]["n_attempts_with_cost"] == 3
    assert found["exit_code"] == 2


def test_a_thousand_rows_cost_what_a_hundred_cost_each(tmp_path: Path, monkeypatch: Any) -> None:
    """The work for a row does not grow with those before; the disk's part is taken out."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    run = begin(tmp_path)

    def seconds(first: int, count: int) -> float:
        begun = time.process_time()
        for number in range(first, first + count):
            run.begun(f"s{number}")
            run.settle(row(f"s{number}"))
            run.ended(f"s{number}")
            run.tick()
        return (time.process_time() - begun) / count

    early = seconds(0, 200)
    seconds(200, 1600)
    late = seconds(1800, 200)
    assert late < 10 * early + 0.001
    run.close()
    assert summary(run)["counts"]["pass"] == 2000


def test_a_full_disk_takes_the_line_back_and_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    run = begin(tmp_path)
    run.settle(row("a"))
    whole = run.layout.attempts.read_bytes()

    def full(descriptor: int, data: Any) -> None:
        os.write(descriptor, bytes(data)[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pytest_ageval.suite.record.write_all", full)
        run.settle(row("b"))
    assert run.layout.attempts.read_bytes() == whole
    assert run.problem == "No space left on device"
    run.settle(row("c"))
    assert list(read_suite(run.layout.root).settled) == ["a", "c"]
    run.close()


def test_a_row_says_in_a_report_what_the_report_said(tmp_path: Path) -> None:
    data = {
        "status": "FAIL",
        "task": "a",
        "dataset": "demo",
        "agent": "codex",
        "box": "local",
        "attempt": 2,
        "score": 0.25,
        "metrics": {"n": 1},
        "failed_checks": ["x"],
        "flags": [],
        "digest": "sha256:1",
        "checks": [{"id": "x", "status": "fail"}],
        "terminal": {"kind": "failed", "reason": "no"},
        "usage": {"cost_usd": 0.5, "by_role": {"a": {"prompt_tokens": 1}}},
        "timing": {"run": 2.5},
        "attempt_id": "attempt_1",
        "attempt_dir": str(tmp_path / "runs" / "attempt_1"),
        "slot": "s[x-2]",
        "message": "score 0.25",
        "sources": {"/box": "cli"},
        "parameters": {},
        "variant": "x",
    }
    made = to_row("s[x-2]", data, tmp_path)
    assert (made.attempt_dir, made.details["sources"]) == ("runs/attempt_1", {"/box": "cli"})
    back = to_data(made, tmp_path)
    assert {name: back.get(name) for name in data} == data
    assert to_row("s[x-2]", back, tmp_path) == made


def test_the_result_of_an_attempt_whose_process_died_after_its_verdict(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "attempt_1")
    layout.root.mkdir()
    data = {"status": "PASS", "score": 1.0, "task": "a", "dataset": "demo", "attempt_dir": str(layout.root)}
    assert not write_result({**data, "status": "ERROR"}, "died")
    assert write_result(data, "died")
    assert not write_result({**data, "status": "FAIL"}, "died")
    found = json.loads(layout.result.read_text())
    assert (found["status"], found["task_id"], found["cleanup_warning"]) == ("PASS", "a", "died")
    assert not layout.writer.exists()


def test_progress_is_throttled_and_whole(tmp_path: Path) -> None:
    run = begin(tmp_path, "a", "b")
    before = run.layout.progress.stat().st_mtime_ns
    run.begun("a")
    run.tick()
    assert run.layout.progress.stat().st_mtime_ns == before  # written less than a second ago
    run._next_progress = 0.0
    run.tick()
    found = json.loads(run.layout.progress.read_text())
    assert ([r["slot"] for r in found["running"]], found["total"], found["status"]) == (["a"], 2, "running")
    SuiteLayout(run.layout.root).cancel.touch()
    run.tick()
    assert run.cancelling
    run.close(interrupted=True)
    assert run.status == "cancelled"
    SuiteWriter.open(run.layout.root).close()


def test_what_is_written_is_linear_in_the_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt a second; what holds all of them is written the more seldom the longer it is."""
    clock, written = [1000.0], [0]
    monkeypatch.setattr("pytest_ageval.suite.run.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("pytest_ageval.suite.record.os.fsync", lambda descriptor: None)

    def count(path: Path, data: bytes, **_: Any) -> None:
        written[0] += len(data)

    def cost(attempts: int) -> int:
        slots = [f"tasks/{number}/task.yaml::task-{number}[codex]" for number in range(attempts)]
        run = begin(tmp_path / str(attempts), *slots)
        monkeypatch.setattr("pytest_ageval.suite.run.write_atomic", count)
        written[0] = 0
        for slot in slots:
            run.settle(row(slot, digest=None))
            clock[0] += 1
            run.tick()
        monkeypatch.undo()
        appended = run.layout.attempts.stat().st_size
        run.close()
        monkeypatch.setattr("pytest_ageval.suite.run.time.monotonic", lambda: clock[0])
        return written[0] + appended

    small, large = cost(200), cost(800)
    assert large < 8 * small  # 16 times, if a file is written anew every few seconds


def test_the_state_of_a_record_that_no_session_wrote(tmp_path: Path) -> None:
    writer = SuiteWriter.create(tmp_path / "suite-runs" / "3f2a9c1d", HEADER)
    writer.add(row("a"))
    writer.add(row("b", "ERROR"))
    writer.close()
    found = state(writer.layout.root)
    assert (found.status, found.progress["done"], found.seconds_left) == ("complete", 2, None)
    assert found.progress["counts"] == {"pass": 1, "fail": 0, "error": 1}
