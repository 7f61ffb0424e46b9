"""What a turn keeps does not grow with what an agent prints."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ageval_executors.acp.entries.base import UsageRule
from ageval_executors.acp.turn import BRIEF, TOOLS_LIMIT, Turn
from ageval_executors.acp.usage import UsageTracker
from pytest_ageval.evidence import EvidenceStore, read_activity
from pytest_ageval.executor import Usage

MB = 1_000_000


def tools(size: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Tool calls of 100 kB each, arguments and results, `size` bytes together."""
    for number in range(size // 200_000):
        call = {
            "sessionUpdate": "tool_call",
            "toolCallId": f"t{number}",
            "kind": "execute",
            "status": "pending",
        }
        yield {**call, "rawInput": {"command": f"make {number} " * 10_000}}, 100_000
        block = {"type": "content", "content": {"type": "text", "text": f"output of {number}\n" * 6000}}
        done = {"sessionUpdate": "tool_call_update", "toolCallId": f"t{number}", "status": "completed"}
        yield {**done, "content": [block]}, 100_000


def words(size: int) -> Iterator[tuple[dict[str, Any], int]]:
    """The answer, in chunks of eight characters."""
    for number in range(size // 8):
        content = {"type": "text", "text": f"{number:07} "}
        yield {"sessionUpdate": "agent_message_chunk", "content": content}, 150


def flood(place: Path, updates: Iterator[tuple[dict[str, Any], int]]) -> tuple[float, float, Turn]:
    """Peak memory of the turn and size of the step log in MB, and the turn."""
    with EvidenceStore.create(place, sync="none") as store:
        scope = store.activity.scope("sess_1", "req_1")
        tracemalloc.start()
        try:
            # No events here: the record of an invocation bounds them by itself.
            turn = Turn("go", scope, lambda event: None, UsageTracker(UsageRule()))
            for update, size in updates:
                turn.update(update, size)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        turn.complete(Usage(), "end_turn")
        return peak / MB, store.layout.activity.stat().st_size / MB, turn


@pytest.mark.parametrize("most", [15 * MB, 60 * MB])
def test_tools_that_print_much_are_cut(tmp_path: Path, most: int) -> None:
    peak, logged, turn = flood(tmp_path / "a", tools(most))
    assert peak < 2 * TOOLS_LIMIT / MB + 1
    assert logged < 2 * TOOLS_LIMIT / MB
    assert len(turn.tools) == most // 200_000
    rows = [row["payload"] for row in read_activity(tmp_path / "a" / "activity.jsonl")]
    results = [row["content"] for row in rows if row.get("outcome") == "ok"]
    assert len(results) == len(turn.tools)
    assert results[0] == "output of 0\n" * 6000
    assert len(results[-1]) < BRIEF + 100
    assert results[-1].startswith(f"output of {len(results) - 1}\n")


def test_an_answer_in_small_pieces_takes_little_more_than_its_length(tmp_path: Path) -> None:
    peak, _, turn = flood(tmp_path / "a", words(400_000))
    assert len(turn.text) == 400_000
    assert not turn.text_truncated
    assert peak < 2


def test_an_answer_without_end_is_cut(tmp_path: Path) -> None:
    chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x" * 500_000}}
    peak, _, turn = flood(tmp_path / "a", ((chunk, 500_100) for _ in range(60 * MB // 500_000)))
    assert turn.text_truncated
    assert len(turn.text) == 8 * 1024 * 1024
    assert peak < 30
