"""The `pytest-ageval` command and the JSON Schemas."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from config_helpers import DataSet

from pytest_ageval import cli
from pytest_ageval.config import lock_task, schemas

Output = pytest.CaptureFixture[str]


@pytest.fixture
def local(ds: DataSet, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    """The command makes a registry of its own; here it knows the kinds of the tests."""
    monkeypatch.setattr("pytest_ageval.registry.Registry", lambda *more: ds.registry)
    ds.task("agent_profiles: [{id: solver}]\ntags: [one, two]\n", name="a")
    ds.task("agent_profiles: [{id: solver}]\n", name="b")
    return ds


ARGS = ["--agent", "parrot", "--model", "m", "--box", "room"]


def test_lock_prints_the_document(local: DataSet, capsys: Output) -> None:
    assert cli.main(["lock", ".", "--task", "b", *ARGS, "--attempts", "3"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["format"], document["task_id"]) == ("ageval.lock/1", "b")
    assert cli.main(["lock", "tasks/b/task.yaml", *ARGS]) == 0
    assert json.loads(capsys.readouterr().out) == document


def test_lock_prints_a_list_for_several(local: DataSet, capsys: Output) -> None:
    assert cli.main(["lock", ".", *ARGS, "--model", "n"]) == 0
    found = [
        (row["task_id"], row["job_overlay"]["agent_profiles"]["solver"]["model"]["id"])
        for row in json.loads(capsys.readouterr().out)
    ]
    assert found == [("a", "m"), ("a", "n"), ("b", "m"), ("b", "n")]


def test_one_broken_task_does_not_hide_the_others(local: DataSet, capsys: Output) -> None:
    local.task("limit: 1\n", name="c")
    local.task("requires: {environment: [compose]}\n", name="d")
    assert cli.main(["lock", ".", *ARGS, "--model", "n"]) == 2
    output = capsys.readouterr()
    assert {row["task_id"] for row in json.loads(output.out)} == {"a", "b"}
    assert [line.split(":")[0] for line in output.err.splitlines() if not line.startswith(" ")] == [
        "invalid_schema",
        "unsupported_capability",
    ]


def test_explain_names_sources(local: DataSet, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGEVAL_EFFORT", "low")
    assert cli.main(["lock", "tasks/a", "--explain", *ARGS]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["/agent_profiles/solver/model/id", '"m"', "cli", "(--model)"] in lines
    assert ["/agent_profiles/solver/model/reasoning/effort", '"low"', "env", "(--effort)"] in lines
    assert ["/limits/wall_time_seconds", "300", "default"] in lines


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lock", ".", "--task", "c"], "unknown_task: there is no task 'c'"),
        (["lock", ".", "--agent", "parot", "--box", "room"], "did you mean 'parrot'?"),
        (["lock", ".", "--agent", "solvr=parrot"], "did you mean 'solver'?"),
        (["lock", ".", "--set", "x"], "invalid_override: --set takes POINTER=JSON"),
        (["lock", "/"], "no data set (ageval.yaml) at or above /"),
    ],
)
def test_errors_go_to_standard_error(
    arguments: list[str], words: str, local: DataSet, capsys: Output
) -> None:
    assert cli.main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert words in output.err


def test_tasks_lists_what_is_sound_and_reports_the_rest(local: DataSet, capsys: Output) -> None:
    assert cli.main(["tasks", "."]) == 0
    assert capsys.readouterr().out == "a\tsolver\tone,two\nb\tsolver\t-\n"
    local.task("limit: 1\n", name="c")
    assert cli.main(["tasks", ".", "--json"]) == 2
    output = capsys.readouterr()
    assert [json.loads(line)["task_id"] for line in output.out.splitlines()] == ["a", "b"]
    assert output.err.startswith("invalid_schema: unknown key 'limit'; known here: agent_profiles")
    assert "(tasks/c/task.yaml:3:/limit)" in output.err


def test_tasks_shows_notes(local: DataSet, capsys: Output) -> None:
    local.task("parameters: {strict: no}\n", name="c")
    assert cli.main(["tasks", "tasks/c"]) == 0
    assert capsys.readouterr().err.startswith("note: tasks/c/task.yaml:3: no is the text 'no' here")


@pytest.mark.parametrize(("script", "code"), [(None, "missing_reference"), ("exit 3\n", "prepare_failed")])
def test_a_script_that_fails_leaves_the_data_set_unprepared(
    script: str | None, code: str, local: DataSet, capsys: Output
) -> None:
    local.write("ageval.yaml", (local.root / "ageval.yaml").read_text() + "prepare: get.sh\n")
    if script is not None:
        local.write("get.sh", script)
    assert cli.main(["prepare", "."]) == 2
    assert code in capsys.readouterr().err
    assert cli.main(["lock", "tasks/a", *ARGS]) == 2
    assert "prepare_not_allowed" in capsys.readouterr().err


def test_prepare_fetches_and_runs_only_when_asked(local: DataSet, capfd: pytest.CaptureFixture[str]) -> None:
    source = local.write("elsewhere/big.bin", "data")
    digest = hashlib.sha256(b"data").hexdigest()
    local.write("get.sh", 'echo "$AGEVAL_DATASET_ROOT" > ran.txt\n')
    manifest = (local.root / "ageval.yaml").read_text()
    local.write(
        "ageval.yaml",
        f"{manifest}assets: [{{path: in/big.bin, url: '{source.as_uri()}', sha256: {digest}}}]\n"
        "prepare: get.sh\n",
    )
    assert cli.main(["lock", "tasks/a", *ARGS]) == 2
    assert not (local.root / "ran.txt").exists()
    assert cli.main(["prepare", "."]) == 0
    assert (local.root / "in/big.bin").read_text() == "data"
    assert (local.root / "ran.txt").read_text() == f"{local.root}\n"
    assert cli.main(["lock", "tasks/a", *ARGS]) == 0
    source.write_text("other")
    (local.root / "in/big.bin").unlink()
    capfd.readouterr()
    assert cli.main(["prepare", "."]) == 2
    assert "asset_digest_mismatch" in capfd.readouterr().err
    assert list((local.root / "in").iterdir()) == []


def test_the_schemas_in_the_documentation_are_current() -> None:
    assert schemas.outdated(schemas.DIRECTORY) == []


def test_schemas_are_written_and_checked(tmp_path: Path, capsys: Output) -> None:
    assert schemas.main(["--check", "--output", str(tmp_path)]) == 1
    assert schemas.main(["--output", str(tmp_path)]) == 0
    assert schemas.main(["--check", "--output", str(tmp_path)]) == 0
    capsys.readouterr()
    assert cli.main(["schemas", "ageval.task/1"]) == 0
    assert json.loads(capsys.readouterr().out) == schemas.schema("ageval.task/1")


def test_lock_needs_no_credential(local: DataSet) -> None:
    assert cli.main(["lock", "tasks/a", *ARGS]) == 0
    assert (lock_task.__kwdefaults__ or {})["credentials"] is True
