"""Runs over other machines: sshd in network namespaces, which see nothing of the project's directory."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import machines
import pytest
from machines import Machine, machine

from pytest_ageval.suite import SuiteLayout, read_suite, suites
from pytest_ageval.testing.scripted_model import ScriptedModel, Text

from .attempt_kit import ASK, JUDGE, KEY, ONE, PROFILES, ROLES
from .conftest import FAILING
from .interrupt_kit import start, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .conftest import DataSet

pytestmark = [
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.skipif(machines.MISSING is not None, reason=str(machines.MISSING)),
]

SLEEPS = """
import time
from pathlib import Path

def run(ctx):
    time.sleep({seconds})
    Path(ctx.workspace_root, "answer.txt").write_text("42")
"""


@pytest.fixture
def hosts(
    demo: DataSet, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., list[Machine]]]:
    """Makes machines that do not see the directory of the test."""
    (demo.pytester.path / "pytest.ini").write_text("[pytest]\n")
    with ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="agm-", dir="/tmp"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        monkeypatch.setenv("HOME", str(place))
        yield lambda *names: [
            stack.enter_context(machine(name, number, place / name, demo.pytester.path))
            for number, name in enumerate(names)
        ]


def notes(scratch: Path, *workers: str) -> list[dict[str, object]]:
    """What workers are at, as the controller knows it."""
    found = []
    for path in scratch.glob("ageval-run_*/*.json"):
        if path.name.partition(".")[0] in workers:
            try:
                found.append(json.loads(path.read_bytes()))
            except (OSError, ValueError):
                continue
    return found


def cases_of(demo: DataSet) -> list[tuple[str, str, bool]]:
    """What the JUnit file says of each test."""
    found = ET.parse(demo.pytester.path / "j.xml").iter("testcase")
    return sorted((c.get("classname", ""), c.get("name", ""), c.find("failure") is None) for c in found)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = process.communicate(timeout=90)
    return process.returncode, text


def test_what_two_machines_do_is_all_here(demo: DataSet, hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = hosts("a", "b")
    demo.profiles(PROFILES.format(url="${MODEL_URL}", stall=0))
    demo.task("asks", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
    demo.task("good")
    demo.task("bad", evaluator=FAILING)
    monkeypatch.setenv("PROBE_KEY", KEY)
    with ScriptedModel([Text("42")] * 8, host="0.0.0.0") as model:
        url = model.base_url.replace("0.0.0.0", a.gateway)
        (demo.root / ".env").write_text(f"MODEL_URL={url}\n")
        command = ["datasets", "--attempts=2", "--junitxml=j.xml", "--html=h.html", "-v", "-W", "error"]
        there = demo.pytest(*command, "--tx", f"2*{a.spec()}", "--tx", f"2*{b.spec()}")
        there.assert_outcomes(passed=4, failed=2)
        shown = (demo.pytester.path / "j.xml").read_text() + (demo.pytester.path / "h.html").read_text()
        rows, cases = demo.results(), cases_of(demo)
        shutil.rmtree(demo.root / ".ageval")
        here = demo.pytest(*command, "-n0")
    here.assert_outcomes(passed=4, failed=2)
    assert cases == cases_of(demo)
    assert len(rows) == 6
    assert {row["evidence_path"] for row in rows} == {
        f"{demo.root}/.ageval/runs/{row['attempt_id']}" for row in rows
    }
    assert str(a.directory) not in shown
    assert str(b.directory) not in shown
    assert str(a.directory) not in there.stdout.str().replace(f"sent to {a.directory}", "")
    assert f"{demo.root}/.ageval/runs/attempt_" in shown
    # Only the host that ran the task with an agent has asked, and for nothing else.
    assert {line[1] for line in re.finditer(r"was given (.*)", there.stdout.str())} == {"PROBE_KEY"}
    assert a.left() == b.left() == []


def test_a_lost_machine_costs_its_attempts_in_flight(demo: DataSet, hosts, scratch: Path) -> None:
    a, b = hosts("a", "b")
    for number in range(6):
        demo.task(f"t{number}", run=SLEEPS.format(seconds=1.5))
    tx = ("--tx", f"2*{a.spec()}", "--tx", f"2*{b.spec()}")
    process = start(demo, "datasets", *tx, "--attempts=2")
    try:
        assert until(lambda: len(notes(scratch, "gw2", "gw3")) == 2)
        b.power_off()
        code, text = end(process)
    finally:
        process.kill()
    assert code == 1, text
    assert "2 errors" in text, text
    assert "10 passed" in text, text
    assert "the host b is lost" in text
    assert len(re.findall(r"the host b was lost while gw[23] ran this attempt there", text)) >= 2
    assert a.left() == []
    again = demo.pytest("datasets", "--tx", f"2*{a.spec()}", "--attempts=2", "--resume")
    again.assert_outcomes(passed=12)
    (root,) = suites(demo.root / ".ageval")
    assert {row.status for row in read_suite(root).rows} == {"PASS"}
    assert len(demo.results()) == 12


def test_a_silent_machine_is_noticed_and_with_the_last_one_the_run_ends(
    demo: DataSet, hosts, scratch: Path
) -> None:
    (a,) = hosts("a")
    demo.task("quick")
    demo.task("slow", run=SLEEPS.format(seconds=60))
    process = start(demo, "datasets", "--tx", f"2*{a.spec()}")
    try:
        assert until(lambda: len(notes(scratch, "gw0", "gw1")) == 1 and demo.results())
        a.cable("down")
        code, text = end(process)
    finally:
        process.kill()
    assert code == 2, text
    assert "INTERNALERROR" not in text
    assert "no host is left" in text
    (root,) = suites(demo.root / ".ageval")
    statuses = {row.task_id: row.status for row in read_suite(root).rows}
    assert statuses == {"quick": "PASS", "slow": "ERROR"}


def test_a_host_that_cannot_be_used_is_named(demo: DataSet, hosts) -> None:
    (a,) = hosts("a")
    demo.task("quick")
    bare = a.directory / "python"
    bare.write_text(f'#!/bin/sh\nexec {shutil.which("python3")} -S -I "$@"\n')
    bare.chmod(0o755)
    wrong = {
        a.spec(
            python=str(bare)
        ): "a: * has no pytest and no pytest_ageval and no xdist*; there: * -m pip install *",
        a.spec(python="/nowhere/python"): "a: */nowhere/python: No such file or directory",
        a.spec().replace("ssh=a/", "ssh=nobody.invalid/"): "nobody.invalid: *",
    }
    for spec, said in wrong.items():
        result = demo.pytest("datasets", "--tx", spec)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: --tx: {said}"])
    assert a.left() == []


def test_a_budget_is_that_of_all_machines(demo: DataSet, hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = hosts("a", "b")
    monkeypatch.setenv("PROBE_KEY", KEY)
    with ScriptedModel([Text("42")] * 40, host="0.0.0.0") as model:
        demo.profiles(PROFILES.format(url=model.base_url.replace("0.0.0.0", a.gateway), stall=0))
        demo.task(
            "t", run="import time\n" + ASK + "    time.sleep(1)\n", evaluator=JUDGE, roles=(ROLES,), more=ONE
        )
        tx = ("--tx", a.spec(), "--tx", b.spec(), "--tx", "popen")
        result = demo.pytest("datasets", *tx, "--attempts=12", "--max-tokens=4000")
    outcomes = result.parseoutcomes()
    (root,) = suites(demo.root / ".ageval")
    spent = json.loads(SuiteLayout(root).spent.read_bytes())
    assert spent["tokens"] == 1050 * outcomes["passed"]
    # 1050 tokens an attempt: four use it up, and two others may be under way then.
    assert 4 <= outcomes["passed"] <= 6, result.stdout.str()
    # One that had begun may be refused its call.
    assert outcomes["passed"] + outcomes["skipped"] + outcomes.get("errors", 0) == 12


WAITS = """
import time
from pathlib import Path

HERE = Path(__file__).parent

def pytest_ageval_before_run(attempt):
    if attempt.task_id == "t0" and not (HERE / "go").exists():
        time.sleep(60)
"""


def test_an_interrupt_leaves_nothing_there_and_everything_here(demo: DataSet, hosts, scratch: Path) -> None:
    a, b = hosts("a", "b")
    for number in range(4):
        demo.task(f"t{number}")
    (demo.root / "conftest.py").write_text(WAITS)
    process = start(demo, "datasets", "--tx", f"2*{a.spec()}")
    try:
        assert until(lambda: notes(scratch, "gw0") and len(demo.results()) == 2)
        (waiting,) = notes(scratch, "gw0")
        os.killpg(process.pid, signal.SIGINT)
        code, text = end(process)
    finally:
        process.kill()
    assert code == 2, text
    assert a.left() == [], text
    assert str(waiting["attempt_dir"]) in map(str, demo.attempts())
    assert not (Path(str(waiting["attempt_dir"])) / "result.json").exists()

    (demo.root / "go").touch()
    again = demo.pytest("datasets", "--tx", f"2*{b.spec()}", "--resume", "-v")
    again.assert_outcomes(passed=4)
    assert again.stdout.str().count("PASSED (recorded)") == 2
    resumed = {row["attempt_id"]: row.get("resumed") for row in demo.results()}
    assert len(resumed) == 4
    assert resumed[waiting["attempt_id"]] == 1
    assert b.left() == []


def test_a_controller_that_is_killed_leaves_nothing_there(demo: DataSet, hosts, scratch: Path) -> None:
    (a,) = hosts("a")
    demo.task("slow", run=SLEEPS.format(seconds=60))
    process = start(demo, "datasets", "--tx", a.spec())
    assert until(lambda: notes(scratch, "gw0"))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert until(lambda: a.left() == [], 40), a.left()


def test_a_result_is_reused_and_judged_again_elsewhere(demo: DataSet, hosts) -> None:
    a, b = hosts("a", "b")
    demo.task("known", run='def run(ctx):\n    ctx.publish_json("reply", {})\n', more=ONE)
    demo.pytest("datasets", "--tx", a.spec()).assert_outcomes(passed=1)
    result = demo.pytest("datasets", "--tx", b.spec(), "-v", "--reuse")
    result.assert_outcomes(passed=1)
    assert "PASSED (reused)" in result.stdout.str()
    assert len(demo.attempts()) == 1
    (demo.root / "tasks" / "known" / "evaluator.py").write_text(FAILING)
    demo.pytest("datasets", "--tx", b.spec(), "--regrade=last").assert_outcomes(failed=1)
    assert sorted(str(row["status"]) for row in demo.results()) == ["FAIL", "PASS"]
