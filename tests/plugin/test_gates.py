"""Gates in a run and after it, and known failures: lines, exit codes, under every way to run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from suites import rows, write

from pytest_ageval.cli import main
from pytest_ageval.controller import EXIT_ERRORS
from pytest_ageval.gates.session import EXIT_GATES

from .conftest import CRASHING, FAILING, DataSet

WORKERS = pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])


@pytest.fixture
def mixed(demo: DataSet) -> DataSet:
    """One task passes, one fails."""
    demo.task("a", roles=("solver",))
    demo.task("d", FAILING, roles=("solver",))
    return demo


def gates(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("gate ")]


# -- pass rate -------------------------------------------------------------------------------------


@WORKERS
def test_fail_under_decides_on_the_fails(mixed: DataSet, workers: tuple[str, ...]) -> None:
    good = mixed.pytest("--agent", "nop", "--fail-under", "50%", *workers)
    assert good.ret == 0
    (line,) = gates(good)
    assert line.startswith("gate fail-under: passed: demo, nop / local: 1 of 2 attempts pass, 50.0% [")
    bad = mixed.pytest("--agent", "nop", "--fail-under", "0.51", *workers)
    assert bad.ret == EXIT_GATES
    assert gates(bad)[0].startswith("gate fail-under: FAILED: demo, nop / local: 1 of 2 attempts pass, 50.0%")
    bad.assert_outcomes(passed=1, failed=1)


def test_each_group_is_judged_by_itself(mixed: DataSet) -> None:
    (mixed.root / "tasks" / "d" / "evaluator.py").write_text(
        "def evaluate(inputs):\n    return {'status': 'PASS'}\n"
    )
    run = "from pathlib import Path\nasync def run(ctx):\n    await ctx.agent.session('solver').invoke('x')\n"
    (mixed.root / "tasks" / "d" / "run.py").write_text(run)
    (mixed.root / "tasks" / "d" / "solution").mkdir()
    result = mixed.pytest("--agent", "nop", "--agent", "oracle", "--fail-under", "1", "--max-errors", "1")
    lines = gates(result)
    assert len([line for line in lines if "fail-under" in line]) == 2
    assert any("nop / local" in line for line in lines)
    assert any("oracle / local" in line for line in lines)


def test_an_error_still_fails_the_run_unless_a_gate_allows_it(mixed: DataSet) -> None:
    mixed.task("e", CRASHING, roles=("solver",))
    one = mixed.pytest("--agent", "nop", "--fail-under", ".5")
    assert one.ret == 1
    assert "no gate is about ERRORs (--max-errors): the run fails" in one.outlines
    assert "1 errors are not counted" in gates(one)[0]
    assert mixed.pytest("--agent", "nop", "--fail-under", ".5", "--ageval-exit=verdict").ret == EXIT_ERRORS
    allowed = mixed.pytest("--agent", "nop", "--fail-under", ".5", "--max-errors", "34%")
    assert allowed.ret == 0
    assert gates(allowed)[1] == (
        "gate max-errors: passed: 1 of 3 attempts are errors (33.3%), allowed are 34%"
    )
    assert mixed.pytest("--agent", "nop", "--fail-under", ".5", "--max-errors", "0").ret == EXIT_GATES
    # Without a gate about them, FAILs fail the run as ever.
    assert mixed.pytest("--agent", "nop", "--max-errors", "1").ret == 1


def test_what_is_no_attempt_fails_the_run_whatever_the_gates_say(mixed: DataSet) -> None:
    (mixed.pytester.path / "test_other.py").write_text("def test_other():\n    assert False\n")
    result = mixed.pytest("--agent", "nop", "--fail-under", "0", "--max-errors", "100%", ".")
    assert result.ret == 1
    assert "no gate is about other failures: the run fails" in result.outlines


def test_nothing_measured_is_no_success(demo: DataSet) -> None:
    demo.task("a", roles=("solver",))
    skipped = demo.pytest("--fail-under", "0.5")
    skipped.assert_outcomes(skipped=1)
    assert skipped.ret == EXIT_GATES
    assert gates(skipped) == ["gate fail-under: FAILED: there is no attempt"]
    demo.task("b", CRASHING, roles=("solver",))
    result = demo.pytest("--agent", "nop", "-k", "b", "--fail-under", "0", "--max-errors", "1")
    assert result.ret == EXIT_GATES
    assert "none of 1 attempts has a verdict (1 errors)" in gates(result)[0]


@WORKERS
def test_a_run_that_stopped_early_is_not_judged(mixed: DataSet, workers: tuple[str, ...]) -> None:
    for name in ("0first", "b", "c"):
        mixed.task(name, FAILING, roles=("solver",))
    result = mixed.pytest("--agent", "nop", "--fail-under", "0", "-x", *workers)
    assert result.ret in (1, 2)
    (line,) = gates(result)
    assert re.fullmatch(r"gate fail-under: not judged: [1-4] of 5 attempts were made", line)


def test_x_does_not_spoil_a_run_that_has_no_failure(mixed: DataSet) -> None:
    result = mixed.pytest("--agent", "nop", "--fail-under", "1", "-x", "-m", "not ageval(task='d')")
    assert result.ret == 0


def test_gates_are_not_for_ordinary_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_x():\n    assert False\n")
    result = pytester.runpytest_subprocess("--fail-under", "0", "-p", "no:cacheprovider")
    assert result.ret == 1
    assert gates(result) == []


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--fail-under", "80", "--fail-under: expected a rate such as 0.8 or 80%"),
        ("--max-errors", "many", "--max-errors: expected a number such as 3 or 5%"),
        ("--baseline-alpha", "0", "--baseline-alpha must be between 0 and 1"),
        ("--baseline", "nowhere", "suite_not_found: --baseline nowhere: there is no such file"),
        ("--known-failures", "nowhere.yaml", "there is no file"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(mixed: DataSet, option: str, value: str, message: str) -> None:
    result = mixed.pytest("--agent", "nop", "--fail-under", "0", option, value)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in "\n".join(result.errlines)
    assert mixed.attempts() == []


# -- baseline --------------------------------------------------------------------------------------


def baseline(demo: DataSet, tasks: dict[str, str]) -> Path:
    found = rows(tasks, agent="nop", box="local")
    return write(demo.pytester.path / "old", "ba5e", found)


def many(demo: DataSet, failing: int, passing: int = 0) -> list[str]:
    names = [f"t{n:02}" for n in range(failing + passing)]
    for n, name in enumerate(names):
        demo.task(name, *([FAILING] if n < failing else []), roles=("solver",))
    return names


def test_a_regression_that_chance_explains_passes(mixed: DataSet) -> None:
    before = baseline(mixed, {"a": "P", "d": "P"})
    result = mixed.pytest("--agent", "nop", "--baseline", str(before))
    assert result.ret == 0
    (line,) = gates(result)
    assert "passed: demo, nop / local: 50.0% after 100.0% on 2 tasks, -50.0 points" in line
    assert "one-sided p = 0.5 (exact McNemar test), level 0.05" in line


@WORKERS
def test_a_significant_regression_fails(demo: DataSet, workers: tuple[str, ...]) -> None:
    before = baseline(demo, dict.fromkeys(many(demo, failing=5), "P"))
    result = demo.pytest("--agent", "nop", "--baseline", str(before), *workers)
    assert result.ret == EXIT_GATES
    assert "FAILED" in gates(result)[0]
    assert "one-sided p = 0.0312" in gates(result)[0]
    if not workers:
        assert demo.pytest("--agent", "nop", "--baseline", str(before), "--baseline-alpha", "0.03").ret == 0


def test_a_baseline_of_something_else_is_no_baseline(mixed: DataSet) -> None:
    before = baseline(mixed, {"z": "P"})
    result = mixed.pytest("--agent", "nop", "--baseline", str(before))
    assert result.ret == EXIT_GATES
    assert "nothing can be compared with ba5e" in gates(result)[0]


def test_gate_after_the_run_and_a_baseline_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"t{n}" for n in range(8)]
    write(tmp_path / ".ageval", "aa", rows(dict.fromkeys(names, "PP"), agent="codex"))
    write(tmp_path / ".ageval", "bb", rows(dict.fromkeys(names, "PF"), agent="codex"), created_at="2026-02")
    assert main(["gate", "aa", "--fail-under", "1", "--write-baseline", "base.json"]) == 0
    assert capsys.readouterr().out.startswith("gate fail-under: passed: demo, codex: 16 of 16 attempts pass")
    kept = json.loads((tmp_path / "base.json").read_text())
    assert kept["format"] == "ageval.baseline/1"
    assert kept["groups"][0]["tasks"]["t0"] == {"passed": 2, "judged": 2}
    assert main(["gate", "last", "--baseline", "base.json", "--max-errors", "0"]) == EXIT_GATES
    out = capsys.readouterr().out
    assert "gate max-errors: passed: 0 of 16" in out
    assert "gate baseline: FAILED: demo, codex: 50.0% after 100.0% on 8 tasks, -50.0 points" in out
    assert "p = 0.00391 (exact sign-flip permutation test)" in out
    assert main(["gate", "bb", "--baseline", "aa", "--format", "json"]) == EXIT_GATES
    assert json.loads(capsys.readouterr().out)[0]["passed"] is False
    assert main(["gate", "bb", "--baseline", "bb"]) == 0
    capsys.readouterr()
    assert main(["gate", "bb"]) == 2
    assert "name a gate" in capsys.readouterr().err
    (tmp_path / "base.json").write_text("{}")
    assert main(["gate", "bb", "--baseline", "base.json"]) == 2
    assert "baseline_invalid" in capsys.readouterr().err


def test_a_new_model_is_measured_against_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    old = rows({"a": "P", "b": "P"}, agent="codex", model="old")
    write(tmp_path / ".ageval", "aa", old)
    write(tmp_path / ".ageval", "bb", rows({"a": "P", "b": "F"}, agent="codex", model="new"))
    assert main(["gate", "bb", "--baseline", "aa"]) == 0
    assert "demo, codex / new: 50.0% after 100.0% on 2 tasks" in capsys.readouterr().out
    # With two of them it cannot be known which is meant.
    write(tmp_path / ".ageval", "cc", [*old, *rows({"a": "P"}, agent="pi")])
    assert main(["gate", "bb", "--baseline", "cc"]) == EXIT_GATES
    assert "demo, codex / new: cc has demo, codex / old; demo, pi" in capsys.readouterr().out


def test_tasks_whose_files_changed_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, digest, letter in (("aa", "1", "P"), ("bb", "2", "F")):
        evidence = tmp_path / name
        found = []
        for task, changed in (("same", "1"), ("changed", digest)):
            directory = evidence / "runs" / task
            directory.mkdir(parents=True)
            (directory / "lock.json").write_text(json.dumps({"eval_digest": changed}))
            found += rows({task: letter}, agent="codex", attempt_dir=f"runs/{task}")
        write(evidence, name, found)
    assert main(["gate", "bb/suite-runs/bb", "--baseline", "aa/suite-runs/aa"]) == 0
    out = capsys.readouterr().out
    assert "on 1 tasks" in out
    assert "left out: 1 tasks whose files have changed" in out


# -- known failures --------------------------------------------------------------------------------

KNOWN = """
format: ageval.known-failures/1
known_failures:
  - task: d
    agent: "no*"
    reason: cannot count
  - task: a
    agent: nop
    reason: was mended long ago
  - {task: e, reason: an outage is no failure}
  - {task: gone, agent: codex, reason: no longer there}
"""


@WORKERS
def test_known_failures_are_expected_and_outages_are_not(mixed: DataSet, workers: tuple[str, ...]) -> None:
    mixed.task("e", CRASHING, roles=("solver",))
    (mixed.pytester.path / "known.yaml").write_text(KNOWN)
    result = mixed.pytest("--agent", "nop", "--known-failures", "known.yaml", "-rx", *workers)
    result.assert_outcomes(xfailed=1, xpassed=1, errors=1)
    assert "cannot count" in result.stdout.str()
    (passed,) = (line for line in result.outlines if line.startswith("known failure passed"))
    assert passed.endswith("tasks/a/task.yaml::a[nop] (was mended long ago)")
    (gone,) = (line for line in result.outlines if "matches no attempt" in line)
    assert gone == "known failure matches no attempt of this run: gone, agent codex (line 11)"


def test_a_strict_known_failure_that_passes_fails_the_run(mixed: DataSet) -> None:
    (mixed.pytester.path / "known.yaml").write_text(
        "format: ageval.known-failures/1\nknown_failures:\n"
        "  - {task: a, reason: mended, strict: true}\n  - {task: d, reason: known}\n"
    )
    mixed.pytester.makeini("[pytest]\nageval_known_failures = known.yaml\n")
    result = mixed.pytest("--agent", "nop", "--fail-under", "0")
    result.assert_outcomes(xfailed=1, failed=1)
    assert result.ret == 1
    assert any(line.startswith("known failure passed") and "(mended)" in line for line in result.outlines)


def test_a_known_failure_counts_in_the_pass_rate(mixed: DataSet) -> None:
    (mixed.pytester.path / "known.yaml").write_text(KNOWN)
    result = mixed.pytest("--agent", "nop", "--known-failures", "known.yaml", "--fail-under", "0.8")
    assert result.ret == EXIT_GATES
    assert "1 of 2 attempts pass, 50.0%" in gates(result)[0]


def test_known_failures_by_agent_model_and_mark(mixed: DataSet) -> None:
    (mixed.pytester.path / "known.yaml").write_text(
        "format: ageval.known-failures/1\nknown_failures:\n"
        "  - {task: '*', agent: codex, reason: another agent}\n"
        "  - {task: '*', model: 'gpt-*', reason: another model}\n"
    )
    (mixed.root / "conftest.py").write_text(
        "import pytest\n"
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items:\n"
        "        item.add_marker(pytest.mark.ageval_known_failure('by mark', agent='nop', strict=False))\n"
    )
    (mixed.pytester.path / "conftest.py").write_text("")
    result = mixed.pytest("--agent", "nop", "--known-failures", "known.yaml")
    result.assert_outcomes(xpassed=1, xfailed=1)
    assert len([line for line in result.outlines if "matches no attempt" in line]) == 2


def test_a_file_of_known_failures_is_checked(mixed: DataSet) -> None:
    (mixed.pytester.path / "known.yaml").write_text(KNOWN.replace("reason: cannot count", "reson: x"))
    result = mixed.pytest("--agent", "nop", "--known-failures", "known.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "did you mean 'reason'" in "\n".join(result.errlines).lower()
