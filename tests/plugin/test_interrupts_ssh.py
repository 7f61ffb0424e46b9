"""Whatever ends a run over ssh, nothing of it stays on the host: no process, no directory, no note here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("paramiko")

from support.sshd import MISSING, Sshd, sshd

from . import interrupt_kit
from .interrupt_kit import SECONDS, alive, directories, start, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import DataSet

pytestmark = [pytest.mark.ssh, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


class Run:
    """A run over ssh whose one task does not end."""

    def __init__(self, demo: DataSet, server: Sshd, scratch: Path, notes: Path) -> None:
        self.demo = demo
        self.server = server
        self.scratch = scratch
        self.notes = notes
        self.mark = interrupt_kit.sleeper(demo)

    def start(self, *args: str) -> subprocess.Popen[str]:
        options = [f"--box-option={name}={value}" for name, value in self.server.options.items()]
        process = start(self.demo, "--box=ssh", *options, "-k", "sleeps", *args)
        if not until((self.demo.root / "pid").is_file):
            process.kill()
            raise AssertionError(process.communicate(timeout=5))
        assert alive(self.mark)
        assert len(self.server.roots()) == 1
        return process

    def clean(self) -> str:
        command = [sys.executable, "-m", "pytest_ageval.cli", "clean"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def left(self) -> list[object]:
        """Everything that is still there."""
        notes = list(self.notes.iterdir()) if self.notes.is_dir() else []
        return [*alive(self.mark), *self.server.roots(), *notes, *directories(self.scratch)]


@pytest.fixture
def run(demo: DataSet, server: Sshd, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Run(demo, server, scratch, tmp_path / "cache" / "pytest-ageval" / "ssh")


@pytest.mark.parametrize(
    ("number", "times", "workers"),
    [
        (signal.SIGINT, 1, ()),
        (signal.SIGINT, 2, ()),
        (signal.SIGINT, 3, ()),
        (signal.SIGTERM, 1, ()),
        (signal.SIGINT, 1, ("-n", "1")),
    ],
    ids=["ctrl-c", "twice", "thrice", "term", "ctrl-c-xdist"],
)
def test_a_signal(run: Run, number: int, times: int, workers: tuple[str, ...]) -> None:
    process = run.start(*workers)
    try:
        for _ in range(times):
            os.killpg(process.pid, number)
            time.sleep(0.15)
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert until(lambda: not run.left(), 5), run.left()


def test_a_killed_worker(run: Run) -> None:
    """Its controller removes the box."""
    process = run.start("-n", "1")
    try:
        os.kill(int((run.demo.root / "pid").read_text()), signal.SIGKILL)
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert "1 error" in output
    assert "ageval: removed a leftover: ssh box of " in output
    assert run.left() == []


def test_a_killed_run_is_told_of_and_cleaned(run: Run) -> None:
    """The next session says that something is left, and leaves it alone; `clean` removes it."""
    process = run.start()
    process.kill()
    process.communicate(timeout=SECONDS)
    assert len(run.server.roots()) == 1
    options = [f"--box-option={name}={value}" for name, value in run.server.options.items()]
    again = run.demo.pytest("--box=ssh", *options, "-k", "quick")
    again.assert_outcomes(passed=1)
    again.stdout.fnmatch_lines(
        ["ageval: 1 left-over box of killed runs; remove it with: pytest-ageval clean"]
    )
    assert len(run.server.roots()) == 1
    assert "removed ssh box of attempt_" in run.clean()
    assert until(lambda: not run.left(), 5), run.left()


@pytest.fixture
def lone(
    demo: DataSet,
    scratch: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Run]:
    """With a host of its own, which may go."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with sshd(tmp_path_factory.mktemp("lone")) as server:
        yield Run(demo, server, scratch, tmp_path / "cache" / "pytest-ageval" / "ssh")


def test_a_host_that_is_gone_at_the_end(lone: Run) -> None:
    """The attempt's result stands or not; the box is noted, and goes when the host is there again."""
    run = lone
    process = run.start("-p", "no:xdist")
    run.server.stop()
    try:
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "pytest-ageval clean" in output, output
    assert len(run.server.roots()) == 1
    with sshd(run.server.directory, port=run.server.port):
        assert "removed ssh box of attempt_" in run.clean()
        assert until(lambda: not run.left(), 5), run.left()
