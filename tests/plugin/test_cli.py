"""The console script beside a run: the same configuration, and what killed runs left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import DataSet

SLEEPS = """
import time
def run(ctx):
    (ctx.workspace_root / "started").write_text("")
    time.sleep(600)
"""


def command(demo: DataSet, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest_ageval.cli", *arguments],
        cwd=demo.pytester.path,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_lock_sees_the_command_line_the_environment_the_ini_file_and_conftest(
    demo: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.pytester.makeini("[pytest]\nageval_agent = parrot\nageval_box = room\nageval_model = small\n")
    demo.pytester.makeconftest(
        """
        from ageval_boxes.local import LocalBox
        from ageval_executors.nop import NopExecutor

        class Room(LocalBox):
            kind = "room"

        class Parrot(NopExecutor):
            kind = "parrot"
            supported_model_fields = frozenset({"reasoning_effort"})

        def pytest_ageval_box_kinds():
            return {"room": Room}

        def pytest_ageval_executors():
            return {"parrot": Parrot}
        """
    )
    monkeypatch.setenv("AGEVAL_EFFORT", "low")
    demo.task("t", roles=("solver",))
    done = command(demo, "lock", "datasets/demo", "--model", "large")
    assert done.returncode == 0, done.stderr
    rows = {row["pointer"]: row for row in json.loads(done.stdout)["resolution"]}
    found = {
        pointer: (rows[pointer]["value"], rows[pointer]["source"])
        for pointer in (
            "/environment",
            "/agent_profiles/solver/executor",
            "/agent_profiles/solver/model/id",
            "/agent_profiles/solver/model/reasoning/effort",
        )
    }
    assert found == {
        "/environment": ("room", "ini"),
        "/agent_profiles/solver/executor": ("parrot", rows["/agent_profiles/solver/executor"]["source"]),
        "/agent_profiles/solver/model/id": ("large", "cli"),
        "/agent_profiles/solver/model/reasoning/effort": ("low", "env"),
    }
    again = command(demo, "lock", "datasets/demo", "--model", "large")
    assert again.stdout == done.stdout


def test_lock_refuses_what_a_run_refuses(demo: DataSet) -> None:
    demo.pytester.makeini("[pytest]\nageval_attempts = many\n")
    demo.task("t")
    done = command(demo, "lock", "datasets/demo")
    assert done.returncode == 2
    assert "many" in done.stderr
    assert "Traceback" not in done.stderr


def test_clean_removes_what_a_killed_run_left(demo: DataSet, scratch: Path) -> None:
    demo.task("t", run=SLEEPS)
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", "datasets", "-p", "no:cacheprovider"],
        cwd=demo.pytester.path,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not list(scratch.rglob("started")):
        assert time.monotonic() < deadline, "the run did not start"
        time.sleep(0.05)
    running.kill()
    running.wait()
    assert list(scratch.rglob("box.json"))
    done = command(demo, "clean")
    assert done.returncode == 0, done.stderr
    assert "1 left-over boxes removed" in done.stdout
    assert not list(scratch.rglob("box.json"))
    assert "nothing was left behind" in command(demo, "clean").stdout
    assert os.environ["TMPDIR"] == str(scratch)
