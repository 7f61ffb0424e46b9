"""The record of a suite run while it is written, and what can be done with it from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_ageval.suite import SuiteLayout, read_suite, suites

from .conftest import FAILING
from .interrupt_kit import SECONDS, alive, sleeper, start, until
from .suite_kit import document, suite_roots, the_suite

if TYPE_CHECKING:
    from .conftest import DataSet


def tool(demo: DataSet, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_ageval.cli", *args]
    return subprocess.run(command, cwd=demo.pytester.path, text=True, capture_output=True, check=False)


def test_what_a_session_leaves(demo: DataSet) -> None:
    demo.task("good")
    demo.task("bad", evaluator=FAILING)
    result = demo.pytest("--attempts=2", "-n2")
    result.assert_outcomes(passed=2, failed=2)
    suite = the_suite(demo)
    assert suite.header.suite_run_id == suite.root.name
    assert (suite.header.dataset_id, suite.header.n_attempts) == ("demo", 2)
    result.stdout.fnmatch_lines([f"suite {suite.root.name}: complete, 4 of 4 settled (*)"])
    assert {row.slot for row in suite.rows} == set(demo.collect("--attempts=2"))
    for row in suite.rows:
        assert row.attempt_dir is not None
        directory = demo.root / ".ageval" / row.attempt_dir
        outcome = json.loads((directory / "result.json").read_text())
        assert (outcome["suite_run_id"], outcome["slot"]) == (suite.root.name, row.slot)
        lines = map(json.loads, (directory / "activity.jsonl").read_bytes().splitlines())
        header = next(line for line in lines if line["kind"] == "attempt")
        assert header["payload"]["suite_run_id"] == suite.root.name
        assert row.timing == outcome["timing"]
        assert (row.variant, row.box) == ("default", "local")
    summary = document(demo, "summary")
    assert summary["schema"] == "ageval.suite.summary/1"
    assert summary["counts"] == {"pass": 2, "fail": 2, "error": 0, "skipped": 0}
    assert summary["metrics"]["pass_rate"] == 0.5
    assert summary["metrics"]["pass_power_k"] == {"1": 0.5, "2": 0.5}
    assert summary["max_concurrent_tasks"] == 2
    reference = (
        "suite_run_id dataset_id dataset_version n_attempts task_ids attempts tasks task_refs metrics "
        "exit_code status created_at inflight_peak config_fingerprint config_homogeneous actors_summary "
        "agent_label model_label job_overlay note"
    )
    assert set(reference.split()) <= summary.keys()
    progress = document(demo, "progress")
    assert (progress["status"], progress["done"], progress["total"]) == ("complete", 4, 4)


def test_a_session_without_attempts_leaves_no_record(demo: DataSet) -> None:
    demo.task("good", roles=("solver",))
    demo.pytest().assert_outcomes(skipped=1)
    demo.pytest("--collect-only")
    demo.pytest("--setup-plan", "--agent=oracle")
    assert not (demo.root / ".ageval").exists()


def test_a_place_that_cannot_be_written_is_the_attempts_error(demo: DataSet) -> None:
    demo.task("good")
    (demo.pytester.path / "file").touch()
    result = demo.pytest("--ageval-dir=file/below")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*evidence_unwritable*", "no suite run is recorded: *"])


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "xdist"])
def test_status_and_cancel(demo: DataSet, scratch: Path, workers: tuple[str, ...]) -> None:
    mark = sleeper(demo)
    process = start(demo, *workers)
    try:
        assert until((demo.root / "pid").is_file), process.communicate(timeout=5)
        assert until(lambda: suite_roots(demo) and the_suite(demo).rows)
        (root,) = suite_roots(demo)
        assert until(lambda: json.loads(SuiteLayout(root).progress.read_text())["done"] == 1, 5)
        seen = json.loads(tool(demo, "status", "--json").stdout)
        assert (seen["status"], seen["done"], seen["total"]) == ("running", 1, 2)
        assert [row["task_id"] for row in seen["running"]] == ["sleeps"]
        assert seen["eta_seconds"] > 0
        words = tool(demo, "status", root.name[:4]).stdout
        assert f"suite {root.name}: running, 1 of 2 settled" in words
        assert "1 pass, 0 fail, 0 error" in words
        refused = tool(demo, "rm", root.name, "--yes")
        assert (refused.returncode, "suite_in_progress" in refused.stderr) == (2, True)
        stopped = tool(demo, "cancel", root.name)
        assert (stopped.returncode, stopped.stdout) == (
            0,
            f"suite {root.name}: cancelled, 1 of 2 settled\n",
        ), stopped
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert f"suite {root.name}: cancelled, 1 of 2 settled" in output
    assert f"--resume={root.name}" in output
    assert until(lambda: not alive(mark), 5)
    assert document(demo, "summary")["cancelled"] is True
    again = tool(demo, "cancel", root.name)
    assert (again.returncode, again.stderr) == (2, f"suite_not_running: suite {root.name} is cancelled\n")
    assert "cancelled" in tool(demo, "list").stdout


def test_a_killed_session_is_seen_as_killed(demo: DataSet, scratch: Path) -> None:
    sleeper(demo)
    process = start(demo)
    try:
        assert until((demo.root / "pid").is_file), process.communicate(timeout=5)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=SECONDS)
    (root,) = suite_roots(demo)
    assert f"suite {root.name}: killed" in tool(demo, "status").stdout
    (row,) = (json.loads(line) for line in tool(demo, "list", "--json").stdout.splitlines())
    assert row["status"] == "killed"
    time.sleep(0.1)
    tool(demo, "clean")


def test_remove_keeps_what_another_suite_run_names(demo: DataSet) -> None:
    demo.task("good")
    demo.task("bad", evaluator=FAILING)
    demo.pytest().assert_outcomes(passed=1, failed=1)
    (first,) = suite_roots(demo)
    demo.pytest("--reuse", "-k", "good").assert_outcomes(passed=1, deselected=1)
    (second,) = (root for root in suite_roots(demo) if root != first)
    asked = tool(demo, "rm", first.name, "--evidence")
    assert (asked.returncode, first.is_dir()) == (2, True)
    kept = {row.attempt_id for row in read_suite(second).rows}
    removed = tool(demo, "rm", first.name, "--evidence", "--yes")
    assert removed.stdout.endswith(f"removed suite {first.name} and 1 attempts\n"), removed
    assert {path.name for path in demo.attempts()} == kept
    assert suites(demo.root / ".ageval") == [second]
    assert tool(demo, "rm", second.name, "--yes").returncode == 0
    assert {path.name for path in demo.attempts()} == kept
    gone = tool(demo, "status")
    assert (gone.returncode, "suite_not_found" in gone.stderr) == (2, True)


def test_a_worker_that_dies_has_a_row_and_its_attempt_runs_again(demo: DataSet, scratch: Path) -> None:
    demo.task("quick")
    demo.task("deadly")
    (demo.root / "conftest.py").write_text(
        "import os, signal\nfrom pathlib import Path\n"
        "def pytest_ageval_after_environment(attempt):\n"
        f"    flag = Path({str(demo.root / 'once')!r})\n"
        "    if attempt.task_id == 'deadly' and not flag.exists():\n"
        "        flag.touch()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    demo.pytest("-n2").assert_outcomes(passed=1, errors=1)
    rows = {row.task_id: row for row in the_suite(demo).rows}
    assert rows["deadly"].error is not None
    assert rows["deadly"].error["title"] == "worker_crashed"
    assert rows["deadly"].attempt_id is not None
    assert rows["deadly"].digest is not None
    demo.pytest("--resume").assert_outcomes(passed=2)
    suite = the_suite(demo)
    assert {row.status for row in suite.rows} == {"PASS"}
    assert [row.status for old in suite.history.values() for row in old] == ["ERROR"]
