"""``--in-flight N``: attempts run before their items' turn, and pytest sees what it always sees."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from .conftest import CRASHING, FAILING
from .in_flight_kit import most_at_once, order, sleeping
from .interrupt_kit import alive, sleeper, start, until

if TYPE_CHECKING:
    from .conftest import DataSet


def test_attempts_overlap_up_to_the_limit(demo: DataSet) -> None:
    log = sleeping(demo, **{f"t{number}": 1.0 for number in range(9)})
    demo.pytest("--in-flight", "4").assert_outcomes(passed=9)
    assert most_at_once(log) == 4


def test_without_the_option_attempts_come_one_after_the_other(demo: DataSet) -> None:
    log = sleeping(demo, one=0.2, two=0.2)
    demo.pytest().assert_outcomes(passed=2)
    assert most_at_once(log) == 1


def test_what_is_over_is_reported_first_with_its_own_time(demo: DataSet) -> None:
    sleeping(demo, a_slow=6.0, b=1.0, c=2.0)
    demo.pytester.makepyfile(zz_test="def test_after(): pass", aa_test="def test_before(): pass")
    result = demo.pytest(
        "-v", "--in-flight", "3", "--junitxml=junit.xml", "aa_test.py", "datasets", "zz_test.py"
    )
    result.assert_outcomes(passed=5)
    assert order(result) == ["b", "c", "a_slow"]
    nodes = [line.partition(" ")[0] for line in result.outlines if " PASSED" in line]
    assert nodes[0] == "aa_test.py::test_before"
    assert nodes[-1] == "zz_test.py::test_after", "other tests keep their places"
    cases = {
        case.get("name"): float(case.get("time", 0))
        for case in ElementTree.parse("junit.xml").iter("testcase")
    }
    for name, seconds in (("a_slow[default]", 6.0), ("b[default]", 1.0), ("c[default]", 2.0)):
        assert seconds <= cases[name] < seconds + 3, cases


def test_outcomes_are_those_of_attempts_in_turn(demo: DataSet) -> None:
    demo.task("passes")
    demo.task("fails", evaluator=FAILING)
    demo.task("crashes", evaluator=CRASHING)
    demo.task("broken", more="limits: {wall_time_seconds: soon}")
    demo.task("unbound", roles=("solver",))
    setup = demo.task("environment")
    (setup / "environment").mkdir()
    (setup / "environment" / "setup.sh").write_text("exit 3\n")
    seen = []
    for arguments in ((), ("--in-flight", "6"), ("--in-flight", "3", "-n", "2")):
        result = demo.pytest("-rA", "--junitxml=junit.xml", *arguments)
        seen.append(sorted((case.get("name"), _failures(case)) for case in junit_cases()))
        assert result.parseoutcomes() == {"passed": 1, "failed": 1, "errors": 3, "skipped": 1}
    assert seen[0] == seen[1] == seen[2]


def junit_cases() -> list[ElementTree.Element]:
    return list(ElementTree.parse("junit.xml").iter("testcase"))


def _failures(case: ElementTree.Element) -> list[tuple[str, str]]:
    return [(child.tag, _first_line(child.get("message"))) for child in case if child.tag != "properties"]


def _first_line(message: str | None) -> str:
    return re.sub(r"\(evidence: .*", "", (message or "").split("\n")[0])


@pytest.mark.parametrize(
    ("conftest", "reason"),
    [
        ("@pytest.fixture\ndef box(box): return box", "the fixture box is overridden in conftest"),
        ("@pytest.fixture(autouse=True)\ndef server(): pass", "the fixture server of conftest"),
        ("def pytest_runtest_setup(item): pass", "the hook pytest_runtest_setup of conftest"),
        (
            "def pytest_collection_modifyitems(items):\n"
            "    for i in items: i.add_marker(pytest.mark.skipif(False, reason='x'))",
            "the mark skipif",
        ),
    ],
)
def test_an_item_that_needs_its_turn_waits_for_it(demo: DataSet, conftest: str, reason: str) -> None:
    log = sleeping(demo, one=0.3, two=0.3)
    demo.pytester.makeconftest(f"import pytest\n{conftest}\n")
    result = demo.pytest("--in-flight", "2", "--log-file=log.txt", "--log-file-level=DEBUG")
    result.assert_outcomes(passed=2)
    assert most_at_once(log) == 1
    assert reason in Path("log.txt").read_text()
    result.stdout.fnmatch_lines([f"ageval: 2 attempts ran in turn, not ahead: {reason}*"])


def test_what_workers_ran_in_turn_is_said_once(demo: DataSet) -> None:
    sleeping(demo, one=0.1, two=0.1, three=0.1)
    demo.pytester.makeconftest("def pytest_runtest_setup(item): pass")
    result = demo.pytest("-n", "2", "--in-flight", "2")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        ["ageval: 3 attempts ran in turn, not ahead: the hook pytest_runtest_setup of *"]
    )


def test_the_first_failure_ends_it_and_nothing_is_left(demo: DataSet) -> None:
    demo.task("a-fails", evaluator=FAILING)
    log = sleeping(demo, **{f"t{number}": 30.0 for number in range(5)})
    begun = time.monotonic()
    result = demo.pytest("-x", "--in-flight", "3")
    assert time.monotonic() - begun < 25
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines([r"ageval: \d attempts in flight were cancelled, \d were not begun"])
    assert not log.exists(), "nobody came to the end"
    assert [row["status"] for row in demo.results()] == ["FAIL"]


@pytest.mark.parametrize(
    ("distributed", "number"), [((), signal.SIGINT), (("-n", "1"), signal.SIGINT), ((), signal.SIGTERM)]
)
def test_an_interrupt_takes_all_of_them_with_it(
    demo: DataSet, distributed: tuple[str, ...], number: signal.Signals
) -> None:
    mark = sleeper(demo)
    process = start(demo, "--in-flight", "4", *distributed)
    assert until(lambda: (demo.root / "pid").exists() and demo.results())
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 2
    assert until(lambda: not alive(mark), 5)
    assert [row["status"] for row in demo.results()] == ["PASS"], "what was over stands"


def test_workers_keep_several_in_flight_each(demo: DataSet) -> None:
    log = sleeping(demo, **{f"t{number:02}": 1.5 for number in range(14)})
    result = demo.pytest("-v", "-n", "2", "--in-flight", "4")
    result.assert_outcomes(passed=14)
    assert 5 <= most_at_once(log) <= 8
    assert Counter(order(result)).most_common(1)[0][1] == 1, "each is run and reported once"


def test_a_stop_that_a_worker_asks_for_is_no_crash(demo: DataSet) -> None:
    """``--stepwise`` sets it in every process; what the worker had in flight is not reported at all."""
    sleeping(demo, **{f"t{number:02}": 0.3 for number in range(8)})
    (demo.root / "tasks" / "t01" / "evaluator.py").write_text(FAILING)
    found = demo.pytester.runpytest_subprocess("-n", "2", "--in-flight", "3", "--stepwise", timeout=120)
    outcomes = found.parseoutcomes()
    assert (outcomes["failed"], outcomes.get("errors", 0)) == (1, 0), outcomes
    found.stdout.fnmatch_lines(["*Interrupted: Test failed, continuing from this test next run*"])
    found.stdout.no_fnmatch_line("*keyboard-interrupt*")


def test_a_plugin_that_seeds_each_test_holds_nothing_back(demo: DataSet) -> None:
    pytest.importorskip("pytest_randomly")
    log = sleeping(demo, one=2.0, two=2.0, three=2.0)
    demo.pytest("--in-flight", "3").assert_outcomes(passed=3)
    assert most_at_once(log) == 3


SAYS = """
import logging, sys

def pytest_ageval_after_environment(attempt):
    print("setting up", attempt.task_id)

def pytest_ageval_after_run(attempt):
    logging.getLogger("mine").warning("logged by %s", attempt.task_id)
    print(f"said by {attempt.task_id}")
    print("complained by", attempt.task_id, file=sys.stderr)
"""


@pytest.mark.parametrize("more", [(), ("--capture=sys", "-n", "1")])
def test_what_an_attempt_says_is_in_its_own_report(demo: DataSet, more: tuple[str, ...]) -> None:
    sleeping(demo, one=1.0, two=1.0)
    for name in ("one", "two"):
        (demo.root / "tasks" / name / "evaluator.py").write_text(FAILING)
    (demo.root / "conftest.py").write_text(SAYS)
    result = demo.pytest("--in-flight", "2", "--junitxml=junit.xml", "-o", "junit_logging=all", *more)
    result.assert_outcomes(failed=2)
    for case in ElementTree.parse("junit.xml").iter("testcase"):
        task = str(case.get("name")).partition("[")[0]
        text = ElementTree.tostring(case, encoding="unicode")
        said = re.findall(r"(setting up|logged by|said by|complained by) (\w+)", text)
        assert set(said) == {(f, task) for f in ("setting up", "logged by", "said by", "complained by")}
    for name in ("setup", "call"):
        assert sum(f"Captured stdout {name}" in line for line in result.outlines) == 2
    everything = result.stdout.str() + result.stderr.str()
    assert everything.count("said by one") == 1, "nowhere else"


def test_without_capture_it_is_seen_at_once(demo: DataSet) -> None:
    sleeping(demo, one=0.5, two=0.5)
    (demo.root / "conftest.py").write_text(SAYS)
    result = demo.pytest("-s", "--in-flight", "2")
    result.assert_outcomes(passed=2)
    assert {"said by one", "said by two"} <= set(re.findall(r"said by \w+", result.stdout.str()))


def test_fixtures_of_higher_scope_are_set_up_once(demo: DataSet) -> None:
    sleeping(demo, slow=2.0, quick=0.1, other=0.1)
    demo.pytester.makepyfile(
        **{
            "datasets/demo/conftest": "",
            "test_shared": """
                import pytest
                @pytest.fixture(scope="package", autouse=True)
                def noted():
                    print("UP"); yield; print("DOWN")
                def test_one(): pass
                def test_two(): pass
            """,
        }
    )
    result = demo.pytest("-s", "--in-flight", "3")
    result.assert_outcomes(passed=5)
    assert result.outlines.count("UP") <= 1


def test_a_test_that_is_run_again_runs_anew(demo: DataSet) -> None:
    demo.task("fails", evaluator=FAILING)
    result = demo.pytest("--in-flight", "2", "--reruns", "1")
    assert result.parseoutcomes() == {"failed": 1, "rerun": 1}
    assert len(demo.results()) == 2


@pytest.mark.parametrize("value", ["0", "-3"])
def test_a_limit_that_cannot_be_meant(demo: DataSet, value: str) -> None:
    demo.task("one")
    result = demo.pytest("--in-flight", value)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--in-flight must be at least 1*"])
