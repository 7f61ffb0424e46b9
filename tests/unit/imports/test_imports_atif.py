"""Trajectories of other programs as rows of ours."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ageval.imports import atif

COMMON = {"turn_index": 1, "session_id": "s", "profile_id": "agent"}


def rows(*steps: dict[str, Any], version: str = "ATIF-v1.8") -> list[dict[str, Any]]:
    document = {"schema_version": version, "agent": {"name": "a", "version": "1"}, "steps": list(steps)}
    return atif.rows(document, COMMON)


def shape(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (row["type"], row.get("role") or row.get("tool_call_id"), row.get("content") or row.get("args"))
        for row in found
    ]


def test_a_step_is_thought_words_calls_and_their_results() -> None:
    calls = [
        {"tool_call_id": "1", "function_name": "ls", "arguments": {"path": "."}},
        {"tool_call_id": "2", "function_name": "cat", "arguments": {}},
    ]
    results = [
        {"source_call_id": "2", "content": "second"},
        {"source_call_id": "1", "content": "first"},
        {"content": "of none"},
    ]
    found = rows(
        {"step_id": 1, "source": "system", "message": "rules"},
        {"step_id": 2, "source": "user", "message": "do it", "timestamp": "2026-01-01T00:00:00Z"},
        {"step_id": 3, "source": "agent", "message": "I look.", "reasoning_content": "hm",
         "tool_calls": calls, "observation": {"results": results}},
    )  # fmt: skip
    assert shape(found) == [
        ("turn", "system", "rules"),
        ("turn", "user", "do it"),
        ("turn", "assistant", "hm"),
        ("turn", "assistant", "I look."),
        ("tool_call", "1", {"path": "."}),
        ("observation", "1", "first"),
        ("tool_call", "2", {}),
        ("observation", "2", "second"),
        ("observation", "step_3", "of none"),
    ]
    assert [row.get("part") for row in found[2:4]] == ["thought", None]
    assert found[1]["started_at"] == "2026-01-01T00:00:00Z"
    assert all(row.items() >= COMMON.items() for row in found)


def test_content_in_parts_and_unknown_sources() -> None:
    picture = {"type": "image", "source": {"media_type": "image/png", "path": "images/1.png"}}
    found = rows(
        {"step_id": 1, "source": "user", "message": [{"type": "text", "text": "look"}, picture]},
        {"step_id": 2, "source": "oracle", "message": "new"},
        {"step_id": 3, "source": "agent", "message": "", "is_copied_context": True},
    )
    assert found[0]["content"].startswith("look\n[{")
    assert "images/1.png" in found[0]["content"]
    assert (found[1]["type"], found[1]["raw"]["message"]) == ("unknown", "new")
    assert len(found) == 2, "an empty message of an agent is no row"


@pytest.mark.parametrize("version", ["ATIF-v1.0", "ATIF-v1.8"])
def test_versions(version: str) -> None:
    assert shape(rows({"source": "user", "message": "x"}, version=version)) == [("turn", "user", "x")]


@pytest.mark.parametrize(
    "document",
    [{}, {"schema_version": "ATIF-v2.0", "steps": []}, {"schema_version": "ATIF-v1.8", "steps": {}},
     {"schema_version": "ATIF-v1.8", "steps": ["x"]}],
)  # fmt: skip
def test_what_is_no_trajectory(document: dict[str, Any]) -> None:
    with pytest.raises(atif.NotAtifError):
        atif.rows(document, COMMON)
