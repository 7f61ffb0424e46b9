"""PASS, FAIL and ERROR as pytest outcomes, alone and distributed, and what other plugins make of them."""

from __future__ import annotations

import json
import sys
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from .conftest import CRASHING, EVALUATOR, FAILING, DataSet

if TYPE_CHECKING:
    from pathlib import Path

BROKEN_RUN = """
def run(ctx):
    raise KeyError("a bug of the task")
"""


@pytest.fixture
def mixed(demo: DataSet) -> DataSet:
    """One task for each way in which an attempt can end."""
    demo.task("passes")
    demo.task("fails", FAILING)
    demo.task("judge", CRASHING)
    demo.task("script", run=BROKEN_RUN)
    demo.task("boxless", more="requires: {environment: [compose]}\n")
    demo.task("broken", more="limitz: {}\n")
    return demo


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_verdicts_and_errors(mixed: DataSet, workers: tuple[str, ...]) -> None:
    result = mixed.pytest("-rfE", "--strict-markers", "-W", "error", *workers)
    result.assert_outcomes(passed=1, failed=1, errors=4)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines_random(
        [
            "FAILED *fails[[]default[]] - TaskFailed: score 0.40; failed checks: tests (evidence: *",
            "ERROR *judge[[]default[]] - *RuntimeError: the judge is on strike*",
            "ERROR *script[[]default[]] - *KeyError*a bug of the task*",
            "ERROR *boxless[[]default[]] - ConfigError: *compose*",
            "ERROR *broken - ConfigError: *unknown key 'limitz'*",
        ]
    )
    result.stdout.no_fnmatch_line("*attempt_face.py*")
    # What ran has evidence, and its report says where: a FAIL in its message, an ERROR in a line.
    errors = {str(path) for path in mixed.attempts() if "ERROR" in (path / "result.json").read_text()}
    assert {line.removeprefix("evidence: ") for line in result.outlines if "attempt_" in line} >= errors
    statuses = sorted(str(row["status"]) for row in mixed.results())
    assert statuses == ["ERROR", "ERROR", "FAIL", "PASS"]


def test_the_attempt_directory_is_settled(demo: DataSet) -> None:
    demo.task("fails", FAILING)
    demo.pytest()
    (attempt,) = demo.attempts()
    result = json.loads((attempt / "result.json").read_text())
    assert (result["status"], result["score"]) == ("FAIL", 0.4)
    assert (attempt / "lock.json").is_file()
    assert (attempt / "trajectory.jsonl").is_file()


def test_known_failures_are_not_a_place_for_outages_to_hide(demo: DataSet) -> None:
    for name, evaluator in (("fails", FAILING), ("judge", CRASHING)):
        demo.task(name, evaluator)
    (demo.root / "conftest.py").write_text(
        dedent(
            """
            import pytest
            from pytest_ageval.errors import TaskFailed

            def pytest_collection_modifyitems(items):
                for item in items:
                    item.add_marker(pytest.mark.xfail(raises=TaskFailed, reason="known"))
            """
        )
    )
    demo.pytest().assert_outcomes(xfailed=1, errors=1)
    demo.pytest("--runxfail").assert_outcomes(failed=1, errors=1)


def test_repeating_only_the_errors_gives_fresh_attempts(demo: DataSet) -> None:
    demo.task("fails", FAILING)
    flaky = demo.task("flaky", CRASHING)
    # Fails until its second attempt; a trusted evaluator can count on the host.
    (flaky / "evaluator.py").write_text(
        dedent(
            f"""
            from pathlib import Path

            def evaluate(inputs):
                seen = Path({str(demo.root / "seen")!r})
                if not seen.exists():
                    seen.touch()
                    raise RuntimeError("the judge is on strike")
                return {{"status": "PASS", "score": 1.0}}
            """
        )
    )
    result = demo.pytest("--trust-tasks", "--reruns", "2", "--only-rerun", "ScriptFault|RuntimeError", "-rR")
    result.assert_outcomes(passed=1, failed=1)
    assert result.parseoutcomes()["rerun"] == 1
    statuses = sorted(str(row["status"]) for row in demo.results())
    assert statuses == ["ERROR", "FAIL", "PASS"]
    result.stdout.fnmatch_lines(["demo *1 *1 *0 *2/2 *"])


def test_last_failed_and_failed_first(mixed: DataSet) -> None:
    first = mixed.pytester.runpytest_subprocess()
    first.assert_outcomes(passed=1, failed=1, errors=4)
    again = mixed.pytester.runpytest_subprocess("--lf", "--co", "-q")
    assert sum("::" in line for line in again.outlines) == 5
    assert not any("passes" in line for line in again.outlines)


def test_maxfail_counts_an_attempt_once(mixed: DataSet) -> None:
    result = mixed.pytest("-x", "-k", "judge or passes")
    result.assert_outcomes(errors=1, deselected=4)


def test_a_hang_guard_is_an_error_and_the_box_is_removed(demo: DataSet) -> None:
    demo.task("slow", run="import time\ndef run(ctx):\n    time.sleep(60)\n")
    result = demo.pytest("--timeout", "3", "--timeout-method", "signal")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*Timeout*3.0*s*"])
    (row,) = demo.results()
    assert row["status"] == "ERROR"


def test_the_summary_keeps_errors_apart(demo: DataSet) -> None:
    demo.task("passes")
    demo.task("fails", FAILING)
    demo.task("judge", CRASHING)
    result = demo.pytest()
    result.stdout.fnmatch_lines(
        [
            "data set * agent * pass *fail *error *scored *pass rate [[]95 %[]] * score *tokens*",
            "demo *1 *1 *1 *2/3 *50.0% [[]9.5%, 90.5%[]] *0.700 *",
            "evidence: datasets/demo/.ageval/runs",
        ]
    )


def test_nothing_scored_has_no_rate(demo: DataSet) -> None:
    for number in range(5):
        demo.task(f"judge{number}", CRASHING)
    result = demo.pytest()
    result.assert_outcomes(errors=5)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["demo *0 *0 *5 *0/5 *n/a *n/a*"])


@pytest.mark.parametrize("many", [False, True], ids=["named", "file"])
def test_the_command_that_repeats_the_errors_works(
    demo: DataSet, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.task("fails", FAILING, roles=("solver",))
    names = [f"judge {number}" for number in range(5 if many else 1)]
    for name in names:
        demo.task(name, CRASHING, roles=("solver",))
    # From another directory than the rootdir, with options that make the ids what they are.
    demo.pytester.makeini("[pytest]\n")
    monkeypatch.chdir(demo.root)
    reports = ("--junitxml", "out.xml", "--html=out.html", "--self-contained-html")
    result = demo.pytest("--agent", "nop", "--attempts", "2", *reports, "tasks")
    (line,) = (line for line in result.outlines if line.startswith("repeat the errors: "))
    command = line.removeprefix("repeat the errors: ")
    assert ("@" in command) == many
    # The reports of the whole run stay.
    assert not {"--junitxml", "out.xml", "--html=out.html", "--self-contained-html"} & set(command.split())
    done = demo.pytester.run("sh", "-c", command.replace("pytest", f"{sys.executable} -m pytest", 1))
    done.assert_outcomes(errors=2 * len(names))


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
@pytest.mark.parametrize(
    ("tasks", "code"), [("passes", 0), ("passes fails", 8), ("fails judge", 9), ("other fails", 1)]
)
def test_exit_code_by_verdict(demo: DataSet, tasks: str, code: int, workers: tuple[str, ...]) -> None:
    evaluators = {"fails": (FAILING,), "judge": (CRASHING,), "passes": ()}
    for name in tasks.split():
        if name == "other":
            demo.pytester.makepyfile(test_other="def test_other(): assert not 'an ordinary test'")
        else:
            demo.task(name, *evaluators[name])
    result = demo.pytest("--ageval-exit=verdict", *workers)
    assert result.ret == code
    result.stdout.fnmatch_lines(["data set *"])


TEARDOWN = """
import pytest

@pytest.fixture(autouse=True)
def untidy():
    yield
    raise OSError("cannot tidy up")
"""

STRICT = """
import pytest
from pytest_ageval.errors import TaskFailed

def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.xfail(raises=TaskFailed, strict=True))
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
@pytest.mark.parametrize(
    ("conftest", "evaluators", "code"),
    [
        pytest.param(TEARDOWN, [EVALUATOR], 9, id="teardown-of-a-pass"),
        pytest.param(TEARDOWN, [FAILING], 9, id="teardown-of-a-fail"),
        pytest.param(STRICT, [EVALUATOR, FAILING], 9, id="known-failure-that-passed"),
        pytest.param(STRICT, [FAILING], 0, id="known-failure"),
    ],
)
def test_exit_code_counts_what_the_verdict_does_not_explain(
    demo: DataSet, conftest: str, evaluators: list[str], code: int, workers: tuple[str, ...]
) -> None:
    for number, evaluator in enumerate(evaluators):
        demo.task(f"task{number}", evaluator)
    (demo.root / "conftest.py").write_text(conftest)
    assert demo.pytest("--ageval-exit=verdict", *workers).ret == code


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_exit_code_counts_a_broken_data_set(demo: DataSet, workers: tuple[str, ...]) -> None:
    demo.task("fails", FAILING)
    other = DataSet(demo.pytester, demo.root.parent / "other")
    other.task("passes")
    other.profiles("format: ageval.nonsense/1\n")
    args = ("--ageval-exit=verdict", *workers)
    if not workers:  # pytest-xdist goes on by itself
        assert demo.pytest(*args).ret == pytest.ExitCode.INTERRUPTED
    assert demo.pytest(*args, "--continue-on-collection-errors").ret == 9


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_skipped_for_want_of_an_agent(demo: DataSet, workers: tuple[str, ...]) -> None:
    demo.task("foo", roles=("solver", "judge"))
    demo.task("bar", roles=("solver",))
    result = demo.pytest(*workers)
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(
        ["2 attempts were skipped: nobody plays *solver*; choose an agent with --agent NAME *"]
    )


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_a_kind_of_box_that_only_the_workers_know(demo: DataSet, workers: tuple[str, ...]) -> None:
    demo.task("foo")
    (demo.root / "conftest.py").write_text(
        dedent(
            """
            from ageval_boxes.local import LocalBox

            class Mine(LocalBox):
                kind = "mine"

            def pytest_ageval_box_kinds():
                return {"mine": Mine}
            """
        )
    )
    result = demo.pytest("--box", "mine", *workers)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["ageval: * x * x 1 attempt; *"])


def test_evidence_is_kept_out_of_version_control(demo: DataSet) -> None:
    demo.task("foo")
    demo.pytest()
    assert (demo.root / ".ageval" / ".gitignore").read_text().splitlines()[-1] == "*"
    demo.pytest("--ageval-dir", "new")
    assert (demo.pytester.path / "new" / ".gitignore").is_file()
    # A directory that was there before is somebody else's.
    mine = demo.pytester.mkdir("mine")
    demo.pytest("--ageval-dir", "mine")
    assert (mine / "runs").is_dir()
    assert not (mine / ".gitignore").exists()


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_one_line_before_the_run(demo: DataSet, scratch: Path, workers: tuple[str, ...]) -> None:
    demo.task("foo", roles=("solver",))
    result = demo.pytest("--agent", "nop", "--box", "local", "--attempts", "2", *workers)
    assert scratch.is_dir()  # killed runs of others left nothing there
    lines = [line for line in result.outlines if line.startswith("ageval: ")]
    assert len(lines) == 1
    assert lines[0].startswith("ageval: nop x local")
    assert "x 2 attempts" in lines[0]


def test_quiet_listing_has_ids_only(demo: DataSet) -> None:
    demo.task("foo")
    result = demo.pytest("--co", "-q")
    assert result.outlines[0] == "datasets/demo/tasks/foo/task.yaml::foo[default]"


def test_where_the_evidence_goes_and_what_is_kept(demo: DataSet, scratch: Path) -> None:
    demo.task("foo")
    demo.pytest("--ageval-dir", "elsewhere", "--keep-workspace").assert_outcomes(passed=1)
    assert demo.attempts() == []
    (attempt,) = (demo.pytester.path / "elsewhere" / "runs").iterdir()
    assert (attempt / "result.json").is_file()
    assert [path.read_text() for path in scratch.rglob("answer.txt")] == ["42"]


def test_a_relative_ini_directory_is_below_the_rootdir(
    demo: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.task("foo")
    demo.pytester.makeini("[pytest]\nageval_dir = evidence\n")
    monkeypatch.chdir(demo.root)
    demo.pytest("tasks").assert_outcomes(passed=1)
    assert (demo.pytester.path / "evidence" / "runs").is_dir()


SCHEDULER = """
    def pytest_sessionfinish(session):
        found = session.config.pluginmanager.getplugin("dsession")
        if found is not None:
            print("chunk", found.sched.maxschedchunk)
"""


def test_attempts_are_handed_out_one_by_one(demo: DataSet) -> None:
    demo.task("foo")
    demo.pytester.makeconftest(SCHEDULER)
    demo.pytest("-n", "2", "-s").stdout.fnmatch_lines(["*chunk 1"])
    demo.pytest("-n", "2", "-s", "--maxschedchunk=5").stdout.fnmatch_lines(["*chunk 5"])


def test_tests_of_other_projects_are_handed_out_as_ever(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(SCHEDULER)
    pytester.makepyfile("import pytest\n@pytest.mark.parametrize('n', range(9))\ndef test_n(n): pass")
    pytester.runpytest_subprocess("-n", "2", "-s").stdout.fnmatch_lines(["*chunk 9"])
