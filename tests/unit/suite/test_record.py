"""The record of a suite run: appended, torn tails, one writer, the last line of a slot counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ageval.errors import AgevalError, ConfigError
from pytest_ageval.suite import Settled, SuiteHeader, SuiteLayout, SuiteWriter, find_suite, read_suite

HEADER = SuiteHeader(suite_run_id="3f2a9c1d", created_at="2026-01-31T12:00:00.000Z")


def begin(evidence: Path, name: str = "3f2a9c1d", created_at: str = HEADER.created_at) -> SuiteWriter:
    header = SuiteHeader(suite_run_id=name, created_at=created_at)
    return SuiteWriter.create(evidence / "suite-runs" / name, header)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    writer = begin(tmp_path)
    row = Settled(
        slot="t/task.yaml::a[codex]",
        status="FAIL",
        task_id="a",
        score=0.25,
        usage={"cost_usd": 0.5},
        failed_checks=["x"],
    )
    writer.add(row)
    found = read_suite(writer.layout.root)
    assert found.header == HEADER
    (read,) = found.rows
    assert (read.slot, read.status, read.score, read.usage) == (row.slot, "FAIL", 0.25, {"cost_usd": 0.5})
    assert read.settled_at
    writer.close()


def test_the_last_line_of_a_slot_counts_and_the_others_are_its_history(tmp_path: Path) -> None:
    writer = begin(tmp_path)
    writer.add(Settled(slot="x", status="ERROR", task_id="a", attempt_id="one"))
    writer.add(Settled(slot="y", status="PASS", task_id="b"))
    writer.add(Settled(slot="x", status="PASS", task_id="a", attempt_id="two"))
    found = read_suite(writer.layout.root)
    assert [(row.slot, row.status) for row in found.rows] == [("x", "PASS"), ("y", "PASS")]
    assert [row.attempt_id for row in found.history["x"]] == ["one"]
    writer.close()


def test_a_torn_line_is_cut_before_the_next_is_appended(tmp_path: Path) -> None:
    writer = begin(tmp_path)
    writer.add(Settled(slot="x\u2028\u0085", status="PASS", task_id="a"))
    writer.close()
    with writer.layout.attempts.open("ab") as stream:
        stream.write(b'{"slot": "y", "sta')
    again = SuiteWriter.open(writer.layout.root)
    again.add(Settled(slot="z", status="PASS", task_id="c"))
    assert [row.slot for row in read_suite(again.layout.root).rows] == ["x\u2028\u0085", "z"]
    again.close()


def test_there_is_one_writer(tmp_path: Path) -> None:
    writer = begin(tmp_path)
    with pytest.raises(AgevalError, match="suite_in_progress"):
        SuiteWriter.open(writer.layout.root)
    writer.close()
    SuiteWriter.open(writer.layout.root).close()


def test_a_line_of_another_kind_is_named(tmp_path: Path) -> None:
    writer = begin(tmp_path)
    writer.close()
    writer.layout.attempts.write_text('{"slot": "x", "status": "GREAT", "task_id": "a"}\n')
    with pytest.raises(AgevalError, match=r"attempts.jsonl line 1: Invalid enum value 'GREAT'"):
        read_suite(writer.layout.root)


def test_a_suite_is_found_by_its_id_by_last_and_by_its_path(tmp_path: Path) -> None:
    for name, at in (("aa11", "2026-01-02"), ("ab22", "2026-01-01")):
        begin(tmp_path, name, at).close()
    assert find_suite("last", tmp_path).name == "aa11"
    assert find_suite("ab", tmp_path).name == "ab22"
    assert find_suite(str(tmp_path / "suite-runs" / "ab22"), tmp_path / "elsewhere").name == "ab22"
    with pytest.raises(ConfigError, match="suite_ambiguous"):
        find_suite("a", tmp_path)
    with pytest.raises(ConfigError, match=r"no suite run 'zz'.*known: ab22, aa11"):
        find_suite("zz", tmp_path)
    assert SuiteLayout(find_suite("last", tmp_path)).evidence == tmp_path.resolve()


def test_cells_of_a_matrix_are_counted_apart() -> None:
    def group(**parameters: object) -> tuple[str, ...]:
        return Settled(slot="s", status="PASS", task_id="a", box="docker", parameters=parameters).group

    assert group()[-1] == "docker"
    assert group(seed=1, mode="a b")[-1] == 'docker seed=1 mode="a b"'
    assert group(seed=1) != group(seed="1")
    assert group(text="x" * 99 + "1") != group(text="x" * 99 + "2")
    assert len(group(text="x" * 9999)[-1]) < 60
