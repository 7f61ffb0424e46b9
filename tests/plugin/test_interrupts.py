"""Whatever ends a run, nothing of it stays: no process, no directory of a box."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import DataSet


SECONDS = 30


@pytest.fixture
def sleeper(demo: DataSet, scratch: Path) -> tuple[DataSet, str]:
    """A task whose box holds a process that can be recognised."""
    mark = f"9{os.getpid()}{time.monotonic_ns() % 1000}"
    demo.task("quick")
    demo.task("sleeps", run="import time\ndef run(ctx):\n    time.sleep(600)\n")
    (demo.root / "conftest.py").write_text(
        dedent(
            f"""
            import os, threading
            from pathlib import Path

            def pytest_ageval_before_run(attempt):
                if attempt.task_id == "sleeps":
                    sleep = lambda: attempt.box.exec(["sleep", "{mark}"])
                    threading.Thread(target=sleep, daemon=True).start()
                    while not alive("{mark}"):
                        pass
                    Path({str(demo.root / "pid")!r}).write_text(str(os.getpid()))

            def alive(mark):
                for proc in Path("/proc").iterdir():
                    if proc.name.isdigit():
                        try:
                            if mark.encode() in (proc / "cmdline").read_bytes().split(b"\\0"):
                                return True
                        except OSError:
                            pass
                return False
            """
        )
    )
    return demo, mark


def alive(mark: str) -> list[int]:
    found = []
    for proc in Path("/proc").iterdir():
        if proc.name.isdigit():
            try:
                if mark.encode() in (proc / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(proc.name))
            except OSError:
                continue
    return found


def until(condition: Callable[[], object], seconds: float = SECONDS) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def start(demo: DataSet, *args: str, ignore: bool = False) -> subprocess.Popen[str]:
    """pytest in a process group of its own, as a shell starts it; `ignore`: as in the background."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]
    if ignore:
        command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    return subprocess.Popen(
        command,
        cwd=demo.pytester.path,
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Whoever runs these tests under nohup has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )


def directories(scratch: Path) -> list[str]:
    """What is left in the temporary directory, apart from pytest's own and the boxes' common one."""
    found = [path.relative_to(scratch) for path in scratch.rglob("*")]
    ours = [path for path in found if not path.parts[0].startswith("pytest-of-")]
    return sorted(str(path) for path in ours if not re.fullmatch(r"pytest-ageval-\d+", str(path)))


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
