"""``--resume`` goes on with the experiment that was begun, not with another one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pytest_ageval.suite import SuiteLayout, read_suite

from .conftest import EVALUATOR
from .suite_kit import counting, starts, suite_roots, the_suite

if TYPE_CHECKING:
    from .conftest import DataSet


KEYWORD = "(alpha or beta) and nop"


def test_the_options_of_the_first_session_are_taken(demo: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents, attempts and ``-k``; alone and by workers; whatever the environment says meanwhile."""
    counting(demo)
    for name in ("alpha", "beta", "gamma"):
        demo.task(name, roles=("solver",))
    given = ("--agent", "nop", "--agent", "oracle", "--attempts", "2", "-k", KEYWORD)
    first = demo.pytest(*given, "-x")
    first.assert_outcomes(passed=4, deselected=8)
    (root,) = suite_roots(demo)
    kept = json.loads(SuiteLayout(root).header.read_text())["options"]
    assert kept == {"agent": ["nop", "oracle"], "attempts": 2, "-k": KEYWORD}
    rows = SuiteLayout(root).attempts
    lines = rows.read_bytes().splitlines(keepends=True)
    starts(demo)
    monkeypatch.setenv("AGEVAL_AGENT", "codex")
    for cut, workers in ((2, ()), (1, ("-n2",))):
        rows.write_bytes(b"".join(lines[:-cut]))  # as if it had been interrupted
        SuiteLayout(root).started.unlink()
        resumed = demo.pytest("--resume", *workers)
        resumed.assert_outcomes(passed=4, **({} if workers else {"deselected": 8}))
        assert len(starts(demo)) == cut
        resumed.stdout.fnmatch_lines(
            [
                f"*goes on with suite {root.name} (datasets/demo/.ageval/suite-runs/{root.name}) "
                f"and its options: --agent nop --agent oracle --attempts 2 -k '{KEYWORD}'",
            ]
        )
        assert "new in suite" not in resumed.stdout.str()
    assert sorted({str(row.agent) for row in read_suite(root).rows}) == ["nop"]


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "xdist"])
def test_another_experiment_is_refused(demo: DataSet, workers: tuple[str, ...]) -> None:
    counting(demo)
    demo.task("a", roles=("solver",), more="parameters: {seed: 1}\n")
    demo.pytest("--agent", "nop").assert_outcomes(passed=1)
    starts(demo)
    cases = [
        (("--agent", "oracle"), "has agent nop; this session asks for agent oracle"),
        (("--agent", "nop", "--agent", "oracle"), "this session asks for agent oracle"),
        (("--set", "/parameters/seed=2"), "no --set; this session asks for --set /parameters/seed=2"),
        (("--attempts", "auto"), "no --attempts; this session asks for --attempts auto"),
    ]
    for options, words in cases if not workers else cases[:1]:
        refused = demo.pytest("--resume", *options, *workers)
        assert refused.ret == pytest.ExitCode.USAGE_ERROR, options
        text = "\n".join(refused.errlines)
        assert "resume_options_differ: --resume: suite " in text
        assert words in text, text
    assert starts(demo) == []
    # What changes nothing is no difference, and a selection is none either.
    demo.pytest("--resume", "--agent", "nop", "-k", "a[", "--in-flight=2").assert_outcomes(passed=1)
    assert starts(demo) == []


def test_fewer_cells_are_a_selection_and_new_slots_are_said(demo: DataSet) -> None:
    counting(demo)
    demo.task("a", roles=("solver",))
    demo.pytest("--agent", "nop", "--box", "local").assert_outcomes(passed=1)
    starts(demo)
    demo.task("b", roles=("solver",))
    more = demo.pytest("--resume")
    more.assert_outcomes(passed=2)
    more.stdout.fnmatch_lines(["*1 slot is new in suite *: the sessions before had not selected them"])
    assert starts(demo) == ["b"]


def test_a_regrade_names_its_source_and_goes_on_with_it(demo: DataSet) -> None:
    """``last`` means the suite run that it meant at first, not the one that is being made."""
    work = "artifacts: {publishable: [{id: work, path: answer.txt}]}\n"
    for name in ("a", "b"):
        demo.task(name, roles=("solver",), more=work)
    demo.pytest("--agent", "nop").assert_outcomes(passed=2)
    (source,) = suite_roots(demo)
    demo.pytest("--regrade", "last", "-k", "a[").assert_outcomes(passed=1, deselected=1)
    made = suite_roots(demo)[-1]
    assert read_suite(made).header.parents == (source.name,)
    mixed = demo.pytest(f"--resume={source.name}", "--regrade", "last")
    mixed.stderr.fnmatch_lines(["*resume_options_differ: *runs attempts; this session asks for --regrade*"])
    (demo.root / "tasks" / "b" / "evaluator.py").write_text(EVALUATOR.replace("1.0", "0.9"))
    on = demo.pytest(f"--resume={made.name}", "-k", "a[ or b[")
    on.assert_outcomes(passed=2)
    rows = read_suite(made).rows
    assert [(row.task_id, row.source) for row in rows] == [("a", "regraded"), ("b", "regraded")]
    assert {row.of for row in rows} == {row.attempt_id for row in read_suite(source).rows}


def test_the_record_without_options_is_as_before(demo: DataSet) -> None:
    """A suite run that nobody kept the options of takes what the session says."""
    demo.task("a", roles=("solver",))
    demo.pytest("--agent", "nop").assert_outcomes(passed=1)
    (root,) = suite_roots(demo)
    header = json.loads(SuiteLayout(root).header.read_text())
    SuiteLayout(root).header.write_text(json.dumps({**header, "options": {}, "cells": []}))
    demo.pytest("--resume", "--agent", "nop").assert_outcomes(passed=1)
    assert len(the_suite(demo).rows) == 1
