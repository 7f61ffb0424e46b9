"""``--resume``: what has settled is shown as it was and not run again."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_ageval.suite import SuiteWriter

from .conftest import EVALUATOR, FAILING
from .suite_kit import counting, document, starts, statuses, suite_roots, the_suite

if TYPE_CHECKING:
    from .conftest import DataSet


@pytest.fixture
def mixed(demo: DataSet) -> DataSet:
    """A task that passes, one that fails, one whose environment is unreliable."""
    counting(demo)
    demo.task("good")
    demo.task("bad", evaluator=FAILING)
    demo.task("shaky")
    return demo


def cases(file: Path) -> dict[str, ET.Element]:
    return {case.attrib["name"]: case for case in ET.parse(file).iter("testcase")}


def properties(case: ET.Element) -> dict[str, str]:
    return {row.attrib["name"]: row.attrib["value"] for row in case.iter("property")}


def test_settled_slots_are_shown_as_they_were_and_nothing_starts(mixed: DataSet) -> None:
    """Also by several workers, after the directory was moved, and with other volatile settings."""
    here = mixed.pytester.path
    first = mixed.pytest("--junitxml=one.xml", "--ageval-dir=evidence")
    first.assert_outcomes(passed=1, failed=1, errors=1)
    assert starts(mixed) == ["bad", "good", "shaky"]
    there = here / "moved"
    there.mkdir()
    for name in ("datasets", "evidence"):
        shutil.move(here / name, there / name)
    mixed.pytester.chdir()
    mixed.root = there / "datasets" / "demo"
    for options in (("-v",), ("-n2", "-q", "--log-level=DEBUG")):
        again = mixed.pytester.runpytest_subprocess(
            *("-p", "no:cacheprovider", f"--rootdir={there}", str(there)),
            *(f"--ageval-dir={there / 'evidence'}", "--resume", "--junitxml=two.xml", *options),
        )
        again.assert_outcomes(passed=1, failed=1, errors=1)
        assert starts(mixed) == []
        again.stdout.fnmatch_lines(["recorded 3 attempts: not run again, *", "suite *: complete, 3 of 3 *"])
        one, two = cases(here / "one.xml"), cases(here / "two.xml")
        assert one.keys() == two.keys()
        for name, case in two.items():
            before, now = properties(one[name]), properties(case)
            assert "ageval.recorded" in now
            for key in ("status", "score", "digest", "checks", "metrics.lines", "error.title"):
                assert before.get(f"ageval.{key}") == now.get(f"ageval.{key}"), (name, key)
            assert [child.tag for child in case] == [child.tag for child in one[name]]
            assert float(case.attrib["time"]) > 0
        message = two["bad[default]"].find("failure").attrib["message"]  # type: ignore[union-attr]
        assert message == one["bad[default]"].find("failure").attrib["message"]  # type: ignore[union-attr]
        assert "score 0.40; failed checks: tests" in message
        assert "the weather is bad" in ET.tostring(two["shaky[default]"]).decode()
    assert len(list((there / "evidence" / "suite-runs").iterdir())) == 1
    assert len(list((there / "evidence" / "runs").iterdir())) == 3


def test_errors_run_again_when_that_is_asked_for_and_stay_in_the_history(mixed: DataSet) -> None:
    mixed.pytest().assert_outcomes(passed=1, failed=1, errors=1)
    (mixed.root / "mended").touch()
    starts(mixed)
    shown = mixed.pytest("--resume")
    shown.assert_outcomes(passed=1, failed=1, errors=1)
    shown.stdout.fnmatch_lines(["repeat the errors: pytest *shaky* --retry-errors"])
    assert starts(mixed) == []
    mixed.pytest("--resume=last", "--retry-errors").assert_outcomes(passed=2, failed=1)
    assert starts(mixed) == ["shaky"]
    suite = the_suite(mixed)
    assert statuses(mixed) == {"good": "PASS", "bad": "FAIL", "shaky": "PASS"}
    ((slot, (before,)),) = suite.history.items()
    assert (before.status, suite.settled[slot].status) == ("ERROR", "PASS")
    assert before.error is not None
    assert before.error["title"] == "RuntimeError"
    summary = document(mixed, "summary")
    assert summary["amended"] is True
    assert summary["counts"] == {"pass": 2, "fail": 1, "error": 0, "skipped": 0}
    (row,) = (row for row in summary["attempts"] if row["task_id"] == "shaky")
    assert [old["status"] for old in row["previous"]] == ["ERROR"]


def test_a_changed_task_is_refused_with_what_changed_and_can_be_replaced(mixed: DataSet) -> None:
    (mixed.root / "mended").touch()
    mixed.pytest().assert_outcomes(passed=2, failed=1)
    starts(mixed)
    (mixed.root / "tasks" / "bad" / "evaluator.py").write_text(EVALUATOR)
    with (mixed.root / "tasks" / "good" / "task.yaml").open("a") as file:
        file.write("limits: {wall_time_seconds: 17}\n")
    refused = mixed.pytest("--resume")
    refused.assert_outcomes(passed=1, errors=2)
    refused.stdout.fnmatch_lines_random(
        [
            "*resume_digest_changed: since attempt_*: /limits/wall_time_seconds: 300 -> 17*",
            "*resume_digest_changed: since attempt_*: evaluator.py has changed*",
            "*--replace*",
        ]
    )
    assert starts(mixed) == []
    assert statuses(mixed) == {"good": "PASS", "bad": "FAIL", "shaky": "PASS"}
    # More attempts at what has changed would be counted with the first one.
    mixed.pytest("--resume", "--attempts=2", "-k", "bad").assert_outcomes(errors=2)
    assert starts(mixed) == []
    mixed.pytest("--resume", "--replace", "-k", "bad").assert_outcomes(passed=1, deselected=2)
    assert starts(mixed) == ["bad"]
    assert statuses(mixed)["bad"] == "PASS"
    assert [row.status for old in the_suite(mixed).history.values() for row in old] == ["FAIL"]


def test_more_attempts_are_added_to_those_that_there_are(demo: DataSet) -> None:
    counting(demo)
    demo.task("good")
    demo.pytest().assert_outcomes(passed=1)
    demo.pytest("--resume", "--attempts=3", "-n2").assert_outcomes(passed=3)
    assert starts(demo) == ["good"] * 3
    rows = the_suite(demo).rows
    assert sorted(row.attempt for row in rows) == [1, 2, 3]
    assert len({row.attempt_id for row in rows}) == 3
    summary, progress = document(demo, "summary"), document(demo, "progress")
    assert (summary["n_attempts"], summary["tasks"][0]["attempt_indices"]) == (3, [1, 2, 3])
    assert (progress["done"], progress["total"], progress["status"]) == (3, 3, "complete")


def test_an_attempt_is_replaced_whatever_its_item_is_called(demo: DataSet) -> None:
    """The number of attempts is in the names of items, and a changed task has another lock."""
    counting(demo)
    task = demo.task("good")
    demo.pytest("--attempts=2").assert_outcomes(passed=2)
    (task / "evaluator.py").write_text(FAILING)
    demo.pytest("--resume", "--attempts=1").assert_outcomes(errors=1)
    demo.pytest("--resume", "--replace", "--attempts=1").assert_outcomes(failed=1)
    assert starts(demo) == ["good"] * 3
    assert {row.attempt: row.status for row in the_suite(demo).rows} == {1: "FAIL", 2: "PASS"}
    progress = document(demo, "progress")
    assert (progress["done"], progress["total"], progress["status"]) == (2, 2, "complete")


def test_known_failures_stay_known(mixed: DataSet) -> None:
    (mixed.root / "mended").touch()
    mixed.pytest().assert_outcomes(passed=2, failed=1)
    with (mixed.root / "conftest.py").open("a") as file:
        file.write(
            "\nimport pytest\n"
            "def pytest_collection_modifyitems(items):\n"
            "    for item in items:\n"
            "        item.add_marker(pytest.mark.xfail(strict=True))\n"
        )
    starts(mixed)
    result = mixed.pytest("--resume")
    result.assert_outcomes(xfailed=1, failed=2)
    result.stdout.fnmatch_lines(["*XPASS(strict)*"])
    assert starts(mixed) == []


def test_fixtures_of_a_recorded_item_are_not_set_up(mixed: DataSet) -> None:
    (mixed.root / "mended").touch()
    mixed.pytest().assert_outcomes(passed=2, failed=1)
    with (mixed.root / "conftest.py").open("a") as file:
        file.write(
            "\nimport pytest\n"
            "@pytest.fixture(scope='session', autouse=True)\n"
            "def costly():\n"
            "    raise RuntimeError('a fixture was set up')\n"
        )
    mixed.pytest("--resume").assert_outcomes(passed=2, failed=1)


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "xdist"])
def test_what_cannot_be_resumed_is_refused_before_anything_starts(
    demo: DataSet, workers: tuple[str, ...]
) -> None:
    counting(demo)
    demo.task("good")
    nothing = demo.pytest("--resume", *workers)
    assert nothing.ret == pytest.ExitCode.USAGE_ERROR
    nothing.stderr.fnmatch_lines(["ERROR: suite_not_found: --resume: there is no suite run below *"])
    demo.pytest("--ageval-dir=out").assert_outcomes(passed=1)
    (root,) = (demo.pytester.path / "out" / "suite-runs").iterdir()
    writer = SuiteWriter.open(root)
    busy = demo.pytest("--ageval-dir=out", "--resume", *workers)
    writer.close()
    assert busy.ret == pytest.ExitCode.USAGE_ERROR
    busy.stderr.fnmatch_lines(["ERROR: suite_in_progress: *"])
    (demo.root / "ageval.yaml").write_text('format: ageval.dataset/1\ndataset_id: other\nversion: "1"\n')
    other = demo.pytest("--ageval-dir=out", f"--resume={root.name[:5]}", *workers)
    assert other.ret == pytest.ExitCode.USAGE_ERROR
    other.stderr.fnmatch_lines(["ERROR: suite_of_another_dataset: * of the data set demo, *of other*"])
    elsewhere = demo.pytest(f"--resume={root}", *workers)
    elsewhere.stderr.fnmatch_lines(["ERROR: suite_elsewhere: *"])
    assert starts(demo) == ["good"]


def test_options_that_mean_nothing_alone(demo: DataSet) -> None:
    demo.task("good")
    result = demo.pytest("--retry-errors")
    result.stderr.fnmatch_lines(["ERROR: invalid_option: --retry-errors needs --resume"])
    result = demo.pytest("--reuse", "datasets/demo")
    result.stderr.fnmatch_lines(["ERROR: invalid_option: --reuse: * holds other files, so it is no cache*"])


def test_what_was_never_begun_runs(demo: DataSet) -> None:
    """A broken task was nobody's attempt: mended, it runs; until then it says what is wrong, once."""
    counting(demo)
    demo.task("good")
    broken = demo.task("odd", more="colour: red\n")
    demo.pytest().assert_outcomes(passed=1, errors=1)
    assert statuses(demo) == {"good": "PASS", "odd": "ERROR"}
    demo.pytest("--resume").assert_outcomes(passed=1, errors=1)
    assert len(the_suite(demo).rows) == 2
    text = (broken / "task.yaml").read_text()
    (broken / "task.yaml").write_text(text.replace("colour: red\n", ""))
    demo.pytest("--resume").assert_outcomes(passed=2)
    assert starts(demo) == ["good", "odd"]
    assert sorted(row.status for row in the_suite(demo).rows) == ["PASS", "PASS"]
    assert document(demo, "progress")["total"] == 2


def test_a_session_of_two_data_sets_has_two_records_with_one_name(demo: DataSet) -> None:
    demo.task("good")
    other = type(demo)(demo.pytester, demo.pytester.path / "datasets" / "other")
    other.task("fine")
    demo.pytest().assert_outcomes(passed=2)
    (one,), (two,) = suite_roots(demo), suite_roots(other)
    assert one.name == two.name
    demo.pytest(f"--resume={one.name}").assert_outcomes(passed=2)
    demo.pytest("--ageval-dir=shared").assert_outcomes(passed=2)
    (shared,) = (demo.pytester.path / "shared" / "suite-runs").iterdir()
    header = json.loads((shared / "suite.json").read_text())
    assert header["dataset_id"] is None
