"""Runs beside each other, in odd surroundings, and what a task's services do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from plugin.conftest import EVALUATOR, FAILING, DataSet

SOLVER = 'async def run(ctx):\n    await ctx.agent.session("solver").invoke("go")\n'


@pytest.fixture
def demo(pytester: pytest.Pytester) -> DataSet:
    return DataSet(pytester, pytester.path / "datasets" / "demo")


def boxes(place: Path) -> list[Path]:
    """What runs left below the directory for temporary files."""
    return [path for base in place.glob("pytest-ageval-*") for path in base.iterdir()]


@pytest.fixture
def temporary() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="agp-", dir="/tmp"))
    yield place
    shutil.rmtree(place, ignore_errors=True)


def test_two_runs_over_one_data_set_at_once_do_not_meet(demo: DataSet, temporary: Path) -> None:
    demo.task("good", run="import time\ndef run(ctx):\n    time.sleep(0.3)\n")
    demo.task("bad", evaluator=FAILING)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "--attempts", "3"]
    running = [
        subprocess.Popen(
            [*command, "--junitxml", f"out{number}.xml"],
            cwd=demo.root,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
        )
        for number in range(2)
    ]
    for number, process in enumerate(running):
        process.communicate(timeout=120)
        suite = next(ElementTree.parse(demo.root / f"out{number}.xml").iter("testsuite"))
        assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["6", "3", "0"]
    found = demo.results()
    assert len({str(row["attempt_id"]) for row in found}) == len(found) == 12
    assert sum(row["status"] == "PASS" for row in found) == 6
    assert boxes(temporary) == []


def test_many_attempts_are_all_settled_once(demo: DataSet) -> None:
    demo.task("t")
    demo.pytest("datasets", "-n", "4", "--attempts", "24").assert_outcomes(passed=24)
    assert len({str(row["attempt_id"]) for row in demo.results()}) == 24


@pytest.mark.parametrize("name", ["with space, ünï:colon", "/".join(["long" * 15] * 4)], ids=["odd", "long"])
def test_the_directory_for_temporary_files_may_have_any_name(
    demo: DataSet, temporary: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place = temporary / name
    place.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(place))
    demo.task(
        "t",
        evaluator="""
            async def evaluate(inputs):
                done = await inputs["scoring"].exec("main", ["sh", "-c", "cat answer.txt"])
                return {"status": "PASS" if done.stdout == "42" else "FAIL"}
        """,
    )
    demo.pytest("datasets").assert_outcomes(passed=1)
    assert boxes(place) == []


def test_a_run_needs_nothing_of_the_callers_environment(
    demo: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.task("t")
    for name in ("HOME", "PATH", "LANG", "USER", "TMPDIR", "LC_ALL"):
        monkeypatch.delenv(name, raising=False)
    demo.pytest("datasets").assert_outcomes(passed=1)


@pytest.mark.parametrize("mode", ["worksteal", "each"])
def test_every_way_of_distribution_gives_the_same_outcomes(demo: DataSet, mode: str) -> None:
    demo.task("good", evaluator=EVALUATOR)
    demo.task("bad", evaluator=FAILING)
    workers = ("--tx", "2*popen") if mode == "each" else ("-n", "2")
    times = 2 if mode == "each" else 1
    demo.pytest("datasets", "--dist", mode, *workers).assert_outcomes(passed=times, failed=times)


@pytest.mark.parametrize(("policy", "grows"), [("kill", False), ("keep", True)])
def test_a_service_that_the_agent_left_goes_on_only_where_it_is_kept(
    demo: DataSet, policy: str, grows: bool
) -> None:
    demo.profiles(
        "format: ageval.profiles/1\nenvironment: local\n"
        f"environment_options: {{background: {policy}}}\nagent_profiles: {{}}\n"
    )
    task = demo.task(
        "t",
        run=SOLVER,
        roles=("solver",),
        evaluator="""
            import time
            from pathlib import Path
            def evaluate(inputs):
                tick = Path(inputs["workspace_dir"], "tick")
                before = tick.stat().st_size
                time.sleep(0.5)
                return {"status": "PASS", "metrics": {"grew": tick.stat().st_size > before}}
        """,
    )
    (task / "solution").mkdir()
    (task / "solution" / "solve.sh").write_text(
        "cd $AGEVAL_WORKSPACE && echo start > tick\n"
        "setsid nohup sh -c 'trap \"\" TERM; while :; do date >> tick; sleep 0.05; done' >/dev/null 2>&1 &\n"
    )
    demo.pytest("datasets", "--agent", "oracle").assert_outcomes(passed=1)
    (found,) = demo.results()
    assert found["metrics"] == {"grew": grows}
    assert json.loads((demo.attempts()[0] / "summary.json").read_text())["result"]["cleanup_warning"] is None
    assert still_running(str(found["attempt_id"])) == []


def still_running(attempt_id: str) -> list[int]:
    """Processes that carry the attempt in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            text = entry.read_bytes()
        except OSError:
            continue
        if f"AGEVAL_ATTEMPT_ID={attempt_id}".encode() in text:
            found.append(int(entry.parent.name))
    return found
