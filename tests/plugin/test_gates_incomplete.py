"""Gates and what a run did not do: budgets, ``-x``, a baseline that was not complete."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from suites import rows

from pytest_ageval.cli import main
from pytest_ageval.gates.session import EXIT_GATES
from pytest_ageval.suite import SuiteHeader
from pytest_ageval.suite.run import SuiteRun
from pytest_ageval.testing.scripted_model import ScriptedModel, Text

from .attempt_kit import ASK, JUDGE, ONE, PROFILES, ROLES
from .conftest import FAILING
from .suite_kit import document, suite_roots

if TYPE_CHECKING:
    from .conftest import DataSet


def gates(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("gate ")]


@pytest.mark.usefixtures("key")
def test_what_a_budget_left_out_is_missing(demo: DataSet, capsys: pytest.CaptureFixture[str]) -> None:
    """In the record, in a gate after the run, and until a session without that budget has made it up."""
    with ScriptedModel(by=lambda request: Text("42")) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        for name in "abc":
            demo.task(name, run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        first = demo.pytest("--max-tokens", "1000", "--fail-under", "1")
        assert first.ret == 1
        assert gates(first) == ["gate fail-under: not judged: 1 of 3 attempts were made"]
        first.stdout.fnmatch_lines(["suite *: incomplete, 1 of 3 settled *"])
        assert document(demo, "summary")["status"] == "incomplete"
        (root,) = suite_roots(demo)
        assert main(["gate", str(root), "--fail-under", "1"]) == EXIT_GATES
        out = capsys.readouterr().out
        assert f"gate complete: FAILED: suite {root.name} is incomplete: 2 of 3 slots have no result" in out
        allowed = demo.pytest("--resume", "--max-tokens", "1", "--fail-under", "1", "--allow-incomplete")
        assert allowed.ret == 0
        assert gates(allowed)[0] == "gate complete: not judged: 1 of 3 attempts were made"
        assert "1 of 1 attempts pass" in gates(allowed)[1]
        last = demo.pytest("--resume", "--fail-under", "1")
        assert last.ret == 0
        assert "3 of 3 attempts pass" in gates(last)[0]
    assert document(demo, "summary")["status"] == "complete"
    assert main(["gate", str(root), "--fail-under", "1"]) == 0


def test_a_baseline_that_is_not_complete_is_refused_before_anything_starts(demo: DataSet) -> None:
    for name in "ad":
        demo.task(name, *([FAILING] if name == "d" else []), roles=("solver",))
    found = rows({"a": "P"}, agent="nop", box="local")
    header = SuiteHeader(suite_run_id="ba5e", created_at="2026", dataset_id="demo")
    root = demo.pytester.path / "old" / "suite-runs" / "ba5e"
    run = SuiteRun.begin(root, header, [found[0].slot, "tasks/d/task.yaml::d[nop-local-1]"])
    run.settle(found[0])
    run.close(interrupted=True)
    where = ("--agent", "nop", "--baseline", str(Path(root)))
    refused = demo.pytest(*where)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    assert "suite_incomplete: a suite run that is not complete is no baseline" in "\n".join(refused.errlines)
    assert demo.attempts() == []
    allowed = demo.pytest(*where, "--allow-incomplete")
    assert allowed.ret == 0
    assert "the baseline is ba5e (incomplete, 1 without a result)" in gates(allowed)[0]
