"""A session of `AcpExecutor`, from open to close, with agents that behave."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from acp_kit import AGENTS, play

if TYPE_CHECKING:
    from pathlib import Path


def test_one_turn_gives_the_text_and_the_steps(tmp_path: Path) -> None:
    played = play(tmp_path, "hello")

    assert played.result.ok
    assert played.result.text == "hello, 5"
    assert played.result.status == "completed"
    assert played.result.stop_reason == "end_turn"
    assert played.result.repeatable
    assert played.log.of_kind("text") == [{"kind": "text", "channel": "assistant", "text": "hello, 5"}]
    names = [name for name, _ in played.log.steps]
    assert names == ["model_turn_started", "model_turn_completed"]


def test_an_agent_on_the_sdk_writes_into_the_workspace(tmp_path: Path) -> None:
    command = [sys.executable, str(AGENTS / "sdk_agent.py")]

    played = play(tmp_path, "", options={"command": command}, isolation="auto")

    assert played.result.text == "wrote 5 characters"
    assert (played.workspace / "answer.txt").read_text() == "do it"
    assert (played.result.usage.prompt_tokens, played.result.usage.completion_tokens) == (10, 5)
    assert played.result.metadata["agent"]["name"] == "file-agent"
    assert not played.result.repeatable


def test_a_session_takes_turn_after_turn_and_long_prompts(tmp_path: Path) -> None:
    async def act(executor):
        first = await executor.invoke("x" * 200_000)
        assert first.text == "hello, 200000"
        return await executor.invoke("a\u2028b\u0000c \ud800")

    assert play(tmp_path, "hello", act=act).result.text == "hello, 7"
