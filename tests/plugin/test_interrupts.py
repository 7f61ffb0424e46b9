"""Whatever ends a run, nothing of it stays: no process, no directory of a box."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from . import interrupt_kit
from .interrupt_kit import SECONDS, alive, directories, start, until

if TYPE_CHECKING:
    from .conftest import DataSet


@pytest.fixture
def sleeper(demo: DataSet, scratch: Path) -> tuple[DataSet, str]:
    """A task whose box holds a process that can be recognised."""
    return demo, interrupt_kit.sleeper(demo)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
@pytest.mark.parametrize(
    ("number", "group"),
    [
        (signal.SIGINT, True),
        (signal.SIGTERM, False),
        (signal.SIGTERM, True),
        (signal.SIGHUP, True),
    ],
    ids=["ctrl-c", "term", "term-group", "hangup"],
)
def test_a_signal_ends_the_run_and_everything_in_it(
    sleeper: tuple[DataSet, str],
    scratch: Path,
    number: int,
    group: bool,
    workers: tuple[str, ...],
) -> None:
    demo, mark = sleeper
    process = start(demo, *workers)
    try:
        assert until((demo.root / "pid").is_file), process.communicate(timeout=5)
        (os.killpg if group else os.kill)(process.pid, number)
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert until(lambda: not alive(mark), 5)
    assert until(lambda: not directories(scratch), 5), directories(scratch)


def test_a_second_ctrl_c_does_not_break_off_the_clean_up(sleeper: tuple[DataSet, str], scratch: Path) -> None:
    demo, mark = sleeper
    with (demo.root / "conftest.py").open("a") as file:
        file.write(
            "\nimport pytest, time\n"
            "@pytest.hookimpl(wrapper=True)\n"
            "def pytest_ageval_cleanup_report(attempt, value):\n"
            "    time.sleep(1)\n"
            "    return (yield)\n"
        )
    process = start(demo)
    try:
        assert until((demo.root / "pid").is_file)
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "cleaning up" in output
    assert not alive(mark)
    assert directories(scratch) == []


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
@pytest.mark.parametrize("times", [2, 3])
def test_ctrl_c_again_and_again_leaves_no_box(
    sleeper: tuple[DataSet, str], scratch: Path, workers: tuple[str, ...], times: int
) -> None:
    """Within a moment, as an impatient user does: the run ends soon, and no box stays."""
    demo, mark = sleeper
    process = start(demo, *workers)
    try:
        assert until((demo.root / "pid").is_file), process.communicate(timeout=5)
        begun = time.monotonic()
        for _ in range(times):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.1)
        output, _ = process.communicate(timeout=SECONDS)
        assert time.monotonic() - begun < 15
    finally:
        process.kill()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert until(lambda: not alive(mark), 5)
    assert until(lambda: not directories(scratch), 5), directories(scratch)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_what_a_killed_controller_left_is_found(
    sleeper: tuple[DataSet, str], scratch: Path, workers: tuple[str, ...]
) -> None:
    """kill -9 of the process that the user started: `pytest-ageval clean` leaves nothing."""
    demo, mark = sleeper
    process = start(demo, *workers)
    try:
        assert until((demo.root / "pid").is_file), process.communicate(timeout=5)
        process.kill()
        process.communicate(timeout=SECONDS)
        # Workers end by themselves when their controller is gone.
        worker = int((demo.root / "pid").read_text())
        assert until(lambda: not Path(f"/proc/{worker}").exists(), 20)
        command = [sys.executable, "-m", "pytest_ageval.cli", "clean"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        process.kill()
    assert until(lambda: not alive(mark), 5)
    assert until(lambda: not directories(scratch), 5), directories(scratch)


def test_a_worker_whose_clean_up_is_cut_off_leaves_nothing(
    sleeper: tuple[DataSet, str], scratch: Path
) -> None:
    """After an interrupt pytest-xdist kills workers within some ten seconds; the controller sweeps then."""
    demo, mark = sleeper
    with (demo.root / "conftest.py").open("a") as file:
        file.write(
            "\nimport pytest, time\n"
            "@pytest.hookimpl(wrapper=True)\n"
            "def pytest_ageval_summary_enrich(attempt, value):\n"
            "    time.sleep(100)  # the box is stopped after this\n"
            "    return (yield)\n"
        )
    process = start(demo, "-n", "1", "-k", "sleeps")
    try:
        assert until((demo.root / "pid").is_file), process.communicate(timeout=5)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "ageval: removed a leftover: local box of " in output
    assert until(lambda: not alive(mark), 5)
    assert until(lambda: not directories(scratch), 5), directories(scratch)


def test_workers_of_a_run_in_the_background_can_be_stopped(
    sleeper: tuple[DataSet, str], scratch: Path
) -> None:
    demo, mark = sleeper
    process = start(demo, "-n", "2", ignore=True)
    try:
        assert until((demo.root / "pid").is_file)
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert until(lambda: not alive(mark), 20)


def test_a_killed_worker_is_one_error_everywhere_and_leaves_nothing(
    sleeper: tuple[DataSet, str], scratch: Path
) -> None:
    demo, mark = sleeper
    process = start(demo, "-n", "2", "--junitxml=out.xml", "--html=out.html", "-rE")
    try:
        assert until((demo.root / "pid").is_file)
        os.kill(int((demo.root / "pid").read_text()), signal.SIGKILL)
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == pytest.ExitCode.TESTS_FAILED, output
    assert "1 passed, 1 error" in output
    assert "ERROR datasets/demo/tasks/sleeps/task.yaml::sleeps[default]" in output
    unsettled = [path for path in demo.attempts() if not (path / "result.json").exists()]
    assert len(unsettled) == 1
    assert str(unsettled[0]) in output
    suite = ET.parse(demo.pytester.path / "out.xml").getroot()[0]
    assert (suite.attrib["tests"], suite.attrib["errors"], suite.attrib["failures"]) == (
        "2",
        "1",
        "0",
    )
    assert {case.attrib["name"] for case in suite.iter("testcase")} == {
        "quick[default]",
        "sleeps[default]",
    }
    assert "sleeps[default]" in (demo.pytester.path / "out.html").read_text("utf-8")
    assert "repeat the errors: pytest" in output
    assert not alive(mark)
    assert directories(scratch) == []


def test_handlers_are_put_back(demo: DataSet) -> None:
    demo.task("foo")
    demo.pytester.makepyfile(
        run_twice="""
        import signal, pytest

        assert pytest.main(["-q", "-p", "no:cacheprovider", "datasets"]) == 0
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert pytest.main(["-q", "-p", "no:cacheprovider", "datasets"]) == 0
        """
    )
    assert demo.pytester.runpython("run_twice.py").ret == 0


def test_a_handler_of_the_user_is_left_alone(demo: DataSet) -> None:
    demo.task("foo")
    demo.pytester.makeconftest(
        """
        import signal

        def handler(number, frame): pass

        signal.signal(signal.SIGTERM, handler)

        def pytest_sessionfinish():
            assert signal.getsignal(signal.SIGTERM) is handler
        """
    )
    demo.pytest().assert_outcomes(passed=1)


def test_a_verdict_that_was_told_stands_when_the_worker_dies_afterwards(demo: DataSet) -> None:
    demo.task("foo")
    demo.pytester.makeconftest(
        """
        import os, signal

        def pytest_runtest_makereport(item, call):
            if call.when == "teardown":
                os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    result = demo.pytest("-n", "1", "--junitxml=out.xml")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["demo *1 *0 *0 *1/1 *", "clean-up warning: *foo*died*"])
    assert [row["status"] for row in demo.results()] == ["PASS"]
    assert len(demo.attempts()) == 1
