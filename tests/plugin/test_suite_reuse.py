"""``--reuse``: the result of an attempt with the same lock stands for one that would cost again."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from pytest_ageval.suite import read_suite, suites

from .conftest import EVALUATOR, FAILING
from .suite_kit import counting, starts, suite_roots

if TYPE_CHECKING:
    from .conftest import DataSet


@pytest.fixture
def trio(demo: DataSet) -> DataSet:
    counting(demo)
    demo.task("good")
    demo.task("bad", evaluator=FAILING)
    demo.task("shaky")
    return demo


def test_verdicts_are_taken_and_errors_are_not(trio: DataSet) -> None:
    trio.pytest("--attempts=2").assert_outcomes(passed=2, failed=2, errors=2)
    assert starts(trio) == ["bad", "bad", "good", "good", "shaky", "shaky"]
    again = trio.pytest("--attempts=2", "--reuse", "--junitxml=out.xml", "-v", "-n2")
    again.assert_outcomes(passed=2, failed=2, errors=2)
    assert starts(trio) == ["shaky", "shaky"]
    again.stdout.fnmatch_lines(["reused 4 attempts: saved *s"])
    assert "PASSED (reused)" in again.stdout.str() or "PASSED" in again.stdout.str()
    one, two = map(read_suite, suite_roots(trio))
    before = {row.slot: row for row in one.rows}
    reused = [row for row in two.rows if row.source == "reused"]
    assert len(reused) == 4
    assert len({row.of for row in reused}) == 4
    for row in reused:
        old = before[row.slot]
        assert (row.of, row.digest, row.score) == (old.attempt_id, old.digest, old.score)
        assert row.attempt_dir == old.attempt_dir
    marked = [
        row.attrib["value"]
        for row in ET.parse(trio.pytester.path / "out.xml").iter("property")
        if row.attrib["name"] == "ageval.reused"
    ]
    assert sorted(marked) == sorted(row.of or "" for row in reused)


def test_a_shared_cache_serves_another_place_and_another_lock_is_another_result(trio: DataSet) -> None:
    (trio.root / "mended").touch()
    trio.pytest("--reuse=cache").assert_outcomes(passed=2, failed=1)
    assert starts(trio) == ["bad", "good", "shaky"]
    (trio.root / "tasks" / "bad" / "evaluator.py").write_text(EVALUATOR)
    trio.pytest("--reuse=cache", "--ageval-dir=out").assert_outcomes(passed=3)
    assert starts(trio) == ["bad"]
    (root,) = suites(trio.pytester.path / "out")
    sources = {row.task_id: row.source for row in read_suite(root).rows}
    assert sources == {"good": "reused", "shaky": "reused", "bad": "run"}
    # Resumed, a reused result is one that is recorded; and what is replaced is run.
    trio.pytest("--reuse=cache", "--ageval-dir=out", "--resume").assert_outcomes(passed=3)
    assert starts(trio) == []
    replaced = trio.pytest("--reuse=cache", "--ageval-dir=out", "--resume", "--replace", "-k", "good")
    replaced.assert_outcomes(passed=1, deselected=2)
    assert starts(trio) == ["good"]
    entries = list((trio.pytester.path / "cache" / "results").glob("*/1.json"))
    assert len(entries) == 4
    kept = {json.loads(entry.read_bytes())["row"]["attempt_id"] for entry in entries}
    assert {row.attempt_id for row in read_suite(root).rows} <= kept
