"""The run's context: parameters and what is published. No parent is needed for these."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_ageval.sdk import RunContext, RunParameterView, RunScope


@pytest.fixture
def ctx(tmp_path: Path) -> RunContext:
    for name in ("workspace", "gold"):
        (tmp_path / name).mkdir()
    return RunContext(
        params=RunParameterView({}),
        scope=RunScope("attempt_1"),
        workspace_root=tmp_path / "workspace",
        artifact_dir=tmp_path / "artifacts",
    )


def test_parameters_are_reached_by_path_and_read_only() -> None:
    params = RunParameterView({"a": {"b": 3, "none": None}, "flag": True, "name": "x"})
    assert (params["a.b"], params.get("a.c", 7), params.get("name.x"), params["a.none"]) == (3, 7, None, None)
    assert "a.none" in params
    assert "a.c" not in params
    assert (params.require_int("a.b"), params.require_str("name")) == (3, "x")
    for missing in (
        lambda: params["a.c"],
        lambda: params.require_int("flag"),
        lambda: params.require_int("name"),
        lambda: params.require_str("a.b"),
    ):
        with pytest.raises(KeyError):
            missing()
    with pytest.raises(TypeError):
        params.as_mapping()["a"] = 1  # type: ignore[index]


def test_publish_json_writes_one_whole_file(ctx: RunContext) -> None:
    path = ctx.publish_json("answer", {"b": "é", "a": [1]})
    assert path == ctx.artifact_dir / "answer.json"
    assert path.read_text(encoding="utf-8") == '{"a":[1],"b":"é"}\n'
    ctx.publish_json("answer", {"lone": "\ud83d"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"lone": "\ud83d"}
    assert ctx.published == {"answer": path}
    with pytest.raises(TypeError):
        ctx.publish_json("answer", {"a": {1}})
    assert [entry.name for entry in ctx.artifact_dir.iterdir()] == ["answer.json"]


def test_publish_json_does_not_follow_a_link(ctx: RunContext) -> None:
    ctx.artifact_dir.mkdir()
    elsewhere = ctx.workspace_root / "elsewhere"
    elsewhere.write_text("mine")
    (ctx.artifact_dir / "answer.json").symlink_to(elsewhere)
    ctx.publish_json("answer", {})
    assert elsewhere.read_text() == "mine"
    assert (ctx.artifact_dir / "answer.json").read_text() == "{}\n"


def test_publish_file_copies_under_the_name_of_the_file(ctx: RunContext) -> None:
    source = ctx.workspace_root / "out" / "report.md"
    source.parent.mkdir()
    source.write_bytes(b"# \xff")
    path = ctx.publish_file("rep", source)
    assert path == ctx.artifact_dir / "report.md"
    assert path.read_bytes() == b"# \xff"
    assert ctx.publish_file("rep", "out/report.md") == path
    assert ctx.publish_file("rep", path) == path
    assert path.read_bytes() == b"# \xff"


def test_publish_file_refuses_what_leads_out_of_the_workspace(ctx: RunContext) -> None:
    """An agent that makes a link to gold must not get it published as its own work."""
    gold = ctx.workspace_root.parent / "gold" / "expected.txt"
    gold.write_text("gold")
    (ctx.workspace_root / "hello.txt").symlink_to(gold)
    (ctx.workspace_root / "out").symlink_to(gold.parent)
    (ctx.workspace_root / "real.txt").write_text("mine")
    (ctx.workspace_root / "inside.txt").symlink_to("real.txt")
    for name in ("hello.txt", "out/expected.txt"):
        with pytest.raises(PermissionError, match="leads out of the workspace"):
            ctx.publish_file("hello", ctx.workspace_root / name)
    assert ctx.publish_file("inside", ctx.workspace_root / "inside.txt").read_text() == "mine"
    assert ctx.publish_file("own", gold).read_text() == "gold"


def test_publish_file_refuses_what_is_not_a_file(ctx: RunContext) -> None:
    os.mkfifo(ctx.workspace_root / "pipe")
    for name in ("pipe", "missing", "."):
        with pytest.raises((OSError, ValueError)):
            ctx.publish_file("x", ctx.workspace_root / name)
    assert ctx.published == {}


def test_publish_tree_only_declares(ctx: RunContext) -> None:
    tree = ctx.workspace_root / "site"
    assert ctx.publish_tree("site", tree) == tree
    assert not ctx.artifact_dir.exists()
    assert ctx.published == {"site": tree}


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "/etc", "a\0b"])
def test_an_id_is_a_plain_file_name(ctx: RunContext, name: str) -> None:
    (ctx.workspace_root / "f").write_text("")
    for publish in (
        lambda: ctx.publish_json(name, {}),
        lambda: ctx.publish_file(name, ctx.workspace_root / "f"),
        lambda: ctx.publish_tree(name, ctx.workspace_root),
    ):
        with pytest.raises(ValueError, match="plain file name"):
            publish()


def test_two_ids_cannot_share_a_file(ctx: RunContext) -> None:
    for directory in ("a", "b"):
        (ctx.workspace_root / directory).mkdir()
        (ctx.workspace_root / directory / "report.json").write_text(directory)
    ctx.publish_file("first", ctx.workspace_root / "a" / "report.json")
    with pytest.raises(ValueError, match="already published as 'first'"):
        ctx.publish_file("second", ctx.workspace_root / "b" / "report.json")
    with pytest.raises(ValueError, match="already published as 'first'"):
        ctx.publish_json("report", {})
    assert (ctx.artifact_dir / "report.json").read_text() == "a"


def test_nothing_is_published_after_the_end(ctx: RunContext) -> None:
    ctx.close()
    assert ctx.is_closed
    with pytest.raises(RuntimeError, match="closed"):
        ctx.publish_json("late", {})
