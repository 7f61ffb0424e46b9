"""A suite run that is interrupted five times comes to the summary of one that is not.

``AGEVAL_TEST_SUITE_ATTEMPTS`` is the number of attempts, 24 by default.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ageval.suite import SuiteLayout, read_suite, suites
from pytest_ageval.suite.run import is_unfinished

from .conftest import EVALUATOR, FAILING
from .interrupt_kit import SECONDS, directories, start, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import DataSet

ATTEMPTS = int(os.environ.get("AGEVAL_TEST_SUITE_ATTEMPTS", "24"))
TASKS = 4

#: Seconds that an attempt takes at least: a fast machine must not be done before it is interrupted.
PAUSE = 0.4 if ATTEMPTS < 100 else 0.0

CONFTEST = f"""
import os, time
from pathlib import Path

HERE = Path(__file__).parent

def pytest_ageval_after_environment(attempt):
    with open(HERE / "starts", "a") as file:
        file.write(f"{{attempt.identity.slot}} {{os.getpid()}}\\n")

def pytest_ageval_before_run(attempt):
    time.sleep({PAUSE})
"""


def ctrl_c(process: subprocess.Popen[str], worker: int) -> None:
    os.killpg(process.pid, signal.SIGINT)


def ctrl_c_twice(process: subprocess.Popen[str], worker: int) -> None:
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)


def term(process: subprocess.Popen[str], worker: int) -> None:
    os.kill(process.pid, signal.SIGTERM)


def kill_controller(process: subprocess.Popen[str], worker: int) -> None:
    os.kill(process.pid, signal.SIGKILL)


def kill_worker(process: subprocess.Popen[str], worker: int) -> None:
    os.kill(worker, signal.SIGKILL)
    time.sleep(1)
    os.kill(process.pid, signal.SIGTERM)


#: What happens, with which options, and how many attempts can run then.
INTERRUPTIONS: list[tuple[Callable[[Any, int], None], str, int]] = [
    (kill_controller, "-n2", 2),
    (ctrl_c, "--in-flight=2", 2),
    (kill_worker, "-n2", 2),
    (term, "-n2", 2),
    (ctrl_c_twice, "-n0", 1),
]


def build(demo: DataSet) -> None:
    for number in range(TASKS):
        demo.task(f"task-{number}", evaluator=FAILING if number == 1 else EVALUATOR)
    (demo.root / "conftest.py").write_text(CONFTEST)


def begun(demo: DataSet) -> list[tuple[str, int]]:
    file = demo.root / "starts"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(slot, int(pid)) for slot, _, pid in (line.rpartition(" ") for line in lines)]


def figures(root: Path) -> dict[str, Any]:
    """What of a summary does not say when and how often something ran."""
    found = json.loads(SuiteLayout(root).summary.read_text())
    kept = ("counts", "status", "task_ids", "exit_code", "n_attempts", "agent_label", "config_fingerprint")
    rows = sorted(
        [row["slot"], row["status"], row["score"], row["digest"], row["attempt_index"]]
        for row in found["attempts"]
    )
    metrics = {name: value for name, value in found["metrics"].items() if name != "usage"}
    tasks = sorted([row["task_id"], row["n"], row["c"], row["status"]] for row in found["tasks"])
    same = {name: sorted(found[name]) if name == "task_ids" else found[name] for name in kept}
    return {**same, "rows": rows, "metrics": metrics, "tasks": tasks}


def test_interrupted_and_resumed_it_is_the_suite_run_of_one_session(demo: DataSet, scratch: Path) -> None:
    build(demo)
    each = ("--attempts", str(ATTEMPTS // TASKS), "-q")
    seconds = 60 + 3 * ATTEMPTS
    whole = start(demo, "-n2", *each, "--ageval-dir=whole")
    output, _ = whole.communicate(timeout=seconds)
    assert whole.returncode == pytest.ExitCode.TESTS_FAILED, output
    assert len(begun(demo)) == ATTEMPTS
    (demo.root / "starts").unlink()
    evidence = demo.root / ".ageval"
    lost = 0
    for number, (interrupt, option, _) in enumerate(INTERRUPTIONS):
        resume = ("--resume",) if number else ()
        before = len(begun(demo))
        more = max(2, ATTEMPTS // 10)
        process = start(demo, option, *each, *resume)
        try:
            assert until(lambda: len(begun(demo)) >= before + more, seconds), process.communicate(timeout=5)  # noqa: B023
            time.sleep(0.05 * number)
            interrupt(process, begun(demo)[-1][1])
            output, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        (root,) = suites(evidence)
        settled = read_suite(root).settled
        lost += sum(is_unfinished(row) for row in settled.values())
        assert until(lambda: not any(map(_alive, {pid for _, pid in begun(demo)})), 20)
    last = start(demo, "-n2", *each, "--resume")
    output, _ = last.communicate(timeout=seconds)
    assert last.returncode == pytest.ExitCode.TESTS_FAILED, output
    (root,) = suites(evidence)
    (one,) = suites(demo.pytester.path / "whole")
    assert figures(root) == figures(one)
    suite = read_suite(root)
    assert len(suite.rows) == ATTEMPTS
    # No attempt that had a result was run again: what was begun and is not in the record was interrupted.
    runs = [path for path in (evidence / "runs").iterdir() if path.is_dir()]
    with_result = {path.name for path in runs if (path / "result.json").exists()}
    assert with_result == {row.attempt_id for row in suite.rows}
    interrupted = len(runs) - len(with_result)
    assert len(begun(demo)) <= ATTEMPTS + sum(at_once for _, _, at_once in INTERRUPTIONS)
    assert interrupted <= sum(at_once for _, _, at_once in INTERRUPTIONS)
    # Killed processes leave their boxes to the command that removes them.
    command = [sys.executable, "-m", "pytest_ageval.cli", "clean"]
    subprocess.run(command, cwd=demo.pytester.path, check=False, capture_output=True)
    assert until(lambda: not directories(scratch), 5), directories(scratch)
    print(f"{ATTEMPTS} attempts, 5 interruptions, {interrupted} attempts in flight lost, {lost} crashed rows")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
