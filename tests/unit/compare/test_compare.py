"""`pytest-ageval compare`: which suite runs, paired by task, what is said, and how it is written."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from suites import rows, write, write_foreign

from pytest_ageval.cli import main
from pytest_ageval.compare import pairs, render
from pytest_ageval.compare.sides import Side, divide, find, read_side
from pytest_ageval.errors import ConfigError
from pytest_ageval.suite import Settled

FIRST = {"a": "P", "b": "P", "c": "F", "d": "F", "e": "P", "f": "E"}
SECOND = {"a": "P", "b": "F", "c": "P", "d": "P", "e": "E", "g": "P"}


def side(
    label: str, tasks: dict[str, str], root: Path = Path("/nowhere/suite-runs/x"), **fields: Any
) -> Side:
    return Side(label, root, label.lower(), "1", rows(tasks, **fields))


def compared(first: Side, second: Side) -> dict[str, Any]:
    (found,) = pairs.report([first, second])["comparisons"]
    return found


# -- pairing ---------------------------------------------------------------------------------------


def test_tasks_are_paired_and_what_cannot_be_is_named() -> None:
    found = compared(side("A", FIRST), side("B", SECOND))
    assert found["tasks"] == 4
    assert found["difference"]["value"] == pytest.approx(0.25)
    assert [row["task"] for row in found["better"]] == ["c", "d"]
    assert [row["task"] for row in found["worse"]] == ["b"]
    assert (found["only_first"], found["only_second"]) == (["f"], ["g"])
    assert found["unjudged"] == [{"task": "e", "first_errors": 0, "second_errors": 1}]
    assert found["test"]["method"] == "mcnemar-exact"
    assert found["test"]["p"] == pytest.approx(1.0)
    # With e on the second side: at worst 3/5 - 3/5, at best 4/5 - 3/5.
    assert found["errors"] == {"first": 0, "second": 1, "low": pytest.approx(0.0), "high": pytest.approx(0.2)}
    assert found["conclusion"] == "inconclusive"


def test_several_attempts_are_one_observation_of_their_task() -> None:
    found = compared(side("A", {"a": "PPP", "b": "PFF"}), side("B", {"a": "PFE", "b": "PPP"}))
    assert found["difference"]["value"] == pytest.approx((-0.5 + 2 / 3) / 2)
    assert found["worse"] == [{"task": "a", "first": [3, 3], "second": [1, 2], "flipped": False}]
    assert found["better"] == [{"task": "b", "first": [1, 3], "second": [3, 3], "flipped": True}]
    assert found["test"]["method"] == "sign-flip-exact"


def test_a_clear_difference_is_told() -> None:
    names = [f"t{n}" for n in range(20)]
    found = compared(side("A", dict.fromkeys(names, "FF")), side("B", dict.fromkeys(names, "PP")))
    assert found["conclusion"] == "better"
    assert found["difference"]["low"] > 0.5
    back = compared(side("B", dict.fromkeys(names, "PP")), side("A", dict.fromkeys(names, "FF")))
    assert back["conclusion"] == "worse"


def test_several_comparisons_are_adjusted_after_holm() -> None:
    names = [f"t{n}" for n in range(8)]
    one = dict.fromkeys(names, "F")
    six = {n: "P" if n < "t6" else "F" for n in names}
    found = pairs.report([side("A", one), side("B", six), side("C", six)])["comparisons"]
    assert [row["test"]["p"] for row in found] == [2 / 64, 2 / 64]
    assert [row["test"]["p_adjusted"] for row in found] == [4 / 64, 4 / 64]
    assert [row["conclusion"] for row in found] == ["inconclusive", "inconclusive"]
    assert "0.0625 adjusted after Holm" in render.headline(found[0])
    both = pairs.report([side("A", one), side("B", six), side("C", six)], all_pairs=True)["comparisons"]
    assert [(row["first"], row["second"]) for row in both] == [("A", "B"), ("A", "C"), ("B", "C")]


def test_nothing_in_common() -> None:
    found = compared(side("A", {"a": "P"}), side("B", {"b": "P"}))
    assert (found["tasks"], found["difference"], found["conclusion"]) == (0, None, "inconclusive")
    assert "no task has a verdict on both sides" in render.headline(found)


def test_data_sets_of_other_names_are_paired_by_task_with_a_warning() -> None:
    found = compared(side("A", FIRST), side("B", FIRST, dataset_id="copy"))
    assert found["tasks"] == 5
    assert any("tasks are paired by their own names" in text for text in found["warnings"])


def test_a_task_whose_files_changed_is_a_warning(tmp_path: Path) -> None:
    made = []
    for name, digests in (("x", {"a": "1", "b": "1"}), ("y", {"a": "1", "b": "2"})):
        evidence = tmp_path / name
        for task, digest in digests.items():
            directory = evidence / "runs" / f"attempt_{task}"
            directory.mkdir(parents=True)
            (directory / "lock.json").write_text(json.dumps({"eval_digest": digest}))
        found = [
            Settled(**{**_fields(row), "attempt_dir": f"runs/attempt_{row.task_id}"})
            for row in rows({"a": "P", "b": "P", "c": "P"})
        ]
        made.append(read_side(write(evidence, name, found, dataset_version=name), name))
    warned = compared(*made)["warnings"]
    assert "different versions of the data set: x and y" in warned
    assert "1 task (b): the files of the task are not the same on both sides" in warned
    assert "1 task (c): not known whether the files of the task are the same on both sides" in warned


def _fields(row: Settled) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


# -- figures ---------------------------------------------------------------------------------------


def test_figures_keep_errors_and_unknown_values_apart() -> None:
    found = rows({"a": "PPE", "b": "PFE", "c": "EEE"})
    usage = {"prompt_tokens": 900, "completion_tokens": 100, "cost_usd": 0.5, "cost_source": "estimated"}
    found[0] = Settled(**{**_fields(found[0]), "usage": usage, "timing": {"run": 1500.0, "evaluate": 500.0}})
    (made,) = pairs.report([Side("A", Path("x"), "a", "1", found)])["sides"]
    figures = made["figures"]
    assert (figures["passed"], figures["failed"], figures["errors"]) == (3, 1, 5)
    assert figures["pass_rate"]["value"] == 0.75
    assert (figures["errors_as_fail"], figures["errors_as_pass"]) == (3 / 9, 8 / 9)
    assert figures["pass_hat_k"]["2"]["value"] == 0.5
    assert figures["pass_hat_k"]["2"]["tasks"] == 2
    assert figures["score"]["value"] == pytest.approx(3.25 / 4)
    assert figures["flaky"] == ["b"]
    assert figures["error_tasks"] == {"a": 1, "b": 1, "c": 3}
    assert figures["seconds"] == {"known": 1, "unknown": 8, "median": 2.0, "p90": 2.0, "total": 2.0}
    assert figures["tokens"]["total"] == 1000
    cost = figures["cost_usd"]
    assert (cost["total"], cost["unknown"], cost["estimated"]) == (0.5, 8, 1)
    shown = render.text(pairs.report([Side("A", Path("x"), "a", "1", found)]))
    assert re.search(r"with errors as FAIL to PASS +33.3% to 88.9%", shown)
    assert "$0.50 / $0.50 / $0.50 (8 unknown, 1 estimated)" in shown
    assert "flaky in A: b" in shown


def test_figures_of_nothing_are_none() -> None:
    (made,) = pairs.report([Side("A", Path("x"), "a", None, [])])["sides"]
    assert made["figures"]["pass_rate"] is None
    assert "n/a" in render.text({"sides": [made], "comparisons": []})


# -- which suite runs ------------------------------------------------------------------------------


def test_suites_are_found_by_path_data_set_id_and_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = write(tmp_path / "one" / ".ageval", "aa11", rows(FIRST), created_at="2026-01-01")
    two = write(tmp_path / "two" / ".ageval", "ab22", rows(FIRST), created_at="2026-01-02")
    old = write_foreign(tmp_path / "two" / ".ageval", "ffff0000", {"a": "P"})
    monkeypatch.chdir(tmp_path)
    assert find(str(one)) == one
    assert find(str(one / "attempts.jsonl")) == one
    assert find("one") == one
    assert find("two") == two
    assert find(str(tmp_path / "two" / ".ageval")) == two
    assert find("aa") == one
    assert find("last") == two
    assert find("ffff") == old
    assert find(str(old / "summary.json")) == old
    assert find("last", tmp_path / "one" / ".ageval") == one
    with pytest.raises(ConfigError, match="suite_ambiguous"):
        find("a")
    with pytest.raises(ConfigError, match=r"suite_not_found.*known: ffff0000, aa11, ab22"):
        find("zz")


def test_a_suite_of_ageval_is_read(tmp_path: Path) -> None:
    root = write_foreign(tmp_path, "6ed7b862", {"a": "PF", "b": "E"})
    document = json.loads((root / "summary.json").read_text())
    document["attempts"].append(
        {"task_id": "c", "attempt_index": 0, "status": "ERROR", "phase": "cancelled", "run_id": None}
    )
    (root / "summary.json").write_text(json.dumps(document))
    evidence = tmp_path / "runs" / "attempt_6ed7b862a0"
    evidence.mkdir(parents=True)
    (evidence / "result.json").write_text(json.dumps({"timing": {"run": 250}, "usage": {"cost_usd": 0.25}}))
    found = read_side(root, "A")
    assert [(r.task_id, r.attempt, r.status) for r in found.rows] == [
        ("a", 1, "PASS"),
        ("a", 2, "FAIL"),
        ("b", 1, "ERROR"),
    ]
    assert (found.dataset_version, found.values("agent")) == ("1", ["codex"])
    assert (found.rows[0].seconds, found.rows[0].usage) == (0.25, {"cost_usd": 0.25})
    assert found.rows[1].seconds is None


def test_one_suite_is_divided(tmp_path: Path) -> None:
    root = write(tmp_path, "aa", [*rows(FIRST, agent="pi"), *rows(FIRST, agent="codex")])
    assert [s.label for s in divide(read_side(root, "A"), "agent")] == ["codex", "pi"]
    with pytest.raises(ConfigError, match=r"compare_one_side.*same box \(-\)"):
        divide(read_side(root, "A"), "box")


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / ".ageval", "aa11", [*rows(FIRST, agent="pi"), *rows(SECOND, agent="codex")])
    write(tmp_path / ".ageval", "bb22", rows(SECOND, agent="pi"), created_at="2026-01-02")
    return tmp_path / ".ageval"


def test_the_command_in_its_forms(evidence: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "aa11", "last"]) == 0
    out = capsys.readouterr().out
    assert "B - A: " in out
    assert "only in A: 1, not compared: f" in out
    assert main(["compare", "aa", "--by", "agent", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == "ageval.compare/1"
    assert [row["label"] for row in report["sides"]] == ["codex", "pi"]
    assert main(["compare", "aa", "bb", "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert out.count("<details>") == out.count("</details>") > 0
    table = [line for line in out.splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in table}) == 1


def test_what_the_command_refuses(evidence: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["aa", "bb", "--by", "agent"], "name just one"),
        (["zz"], "suite_not_found"),
        (["aa", "--alpha", "2"], "--alpha must be between 0 and 1"),
    ):
        assert main(["compare", *arguments]) == 2
        assert message in capsys.readouterr().err
    (evidence / "suite-runs" / "aa11" / "attempts.jsonl").write_text("{}\n")
    assert main(["compare", "aa"]) == 2
    assert "suite_invalid" in capsys.readouterr().err


def test_without_scipy_the_extra_is_named(
    evidence: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "scipy" else real(name))
    assert main(["compare", "aa"]) == 2
    err = capsys.readouterr().err
    assert "stats_missing" in err
    assert "pip install 'pytest-ageval[stats]'" in err


def test_numpy_is_imported_only_when_needed() -> None:
    import subprocess

    code = "import sys, pytest_ageval.cli, pytest_ageval.plugin"
    code += "; print('numpy' in sys.modules, 'scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_markdown_shows_names_and_nothing_else() -> None:
    name = "a|b<img src=x>`c`@team\n# [x](y)"
    found = pairs.report([side("A", {name: "P"}), side("B", {name: "F"})])
    shown = render.markdown(found)
    assert "<img" not in shown
    assert "@team" not in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("- a"))
    assert line == "- a\\|b&lt;img src=x&gt;\\`c\\`&#64;team \\# \\[x\\](y) 1/1 -&gt; 0/1"
