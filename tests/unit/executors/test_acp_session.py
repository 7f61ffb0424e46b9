"""A session of `AcpExecutor`, from open to close, with agents that behave."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from acp_kit import AGENTS, Log, Played, agent_options, make_session, play

from ageval_executors.acp import AcpExecutor
from ageval_executors.acp.entries import Entry, custom_entry
from ageval_executors.acp.options import AcpOptions
from ageval_executors.acp.usage import UsageRule
from pytest_ageval.errors import ExecutorError
from pytest_ageval.executor import ModelSpec

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


# -- model, effort, mode ---------------------------------------------------------------------------


def test_a_model_is_chosen_by_the_sessions_option(tmp_path: Path) -> None:
    played = play(tmp_path, "refuse_option", "accept", model=ModelSpec(id="fast-1"))

    assert played.result.text == "session/set_config_option:fast-1"
    assert played.result.model == "fast-1"


@pytest.mark.parametrize("offer", ["", "no-option"])
def test_a_model_that_cannot_be_set_is_an_error(tmp_path: Path, offer: str) -> None:
    with pytest.raises(ExecutorError) as caught:
        play(tmp_path, "refuse_option", offer, model=ModelSpec(id="fast-1"))

    assert caught.value.title == "acp_model_unavailable"
    assert "'fast-1'" in caught.value.message


def test_an_effort_that_cannot_be_set_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError) as caught:
        play(tmp_path, "refuse_option", model=ModelSpec(reasoning_effort="high"))

    assert caught.value.title == "acp_reasoning_effort_unavailable"


def test_a_mode_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError) as caught:
        play(tmp_path, "refuse_option", options={"mode": "plan"})

    assert caught.value.title == "acp_mode_unavailable"
    assert "'plan'" in caught.value.message


def test_a_mode_that_only_saves_questions_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quiet(options: AcpOptions) -> Entry:
        return replace(custom_entry(tuple(options.command or ()), {}, UsageRule()), quiet_mode="yolo")

    monkeypatch.setattr(AcpOptions, "resolve", quiet)

    played = play(tmp_path, "refuse_option")

    assert played.result.ok
    assert "'yolo'" in played.log.warnings[0]


def test_the_command_can_hold_the_model(tmp_path: Path) -> None:
    options = agent_options("environment", "--model={model}@{base_url} {other}")

    played = play(tmp_path, "", options=options, model=ModelSpec(id="m1"), base_url="http://127.0.0.1:9/v1")

    told = json.loads(played.result.text)
    assert told["argv"] == ["--model=m1@http://127.0.0.1:9/v1 {other}"]
    assert told["env"]["OPENAI_BASE_URL"] == "http://127.0.0.1:9/v1"


def test_the_agents_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    options = agent_options("environment", env={"MINE": "1"})

    played = play(
        tmp_path,
        "",
        options=options,
        isolation="auto",
        api_key="k-123",
        api_key_name="VENDOR_KEY",
    )

    told = json.loads(played.result.text)
    assert told["cwd"] == "/attempt/workspace"
    env = told["env"]
    assert (env["HOME"], env["MINE"]) == ("/attempt/home", "1")
    assert env["VENDOR_KEY"] == "k-123"
    assert "SECRET_OF_THE_HOST" not in env


def test_logs_do_not_hold_the_key(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.stderr.write('key k-123'); print('hi k-123')"]

    with pytest.raises(ExecutorError) as caught:
        play(
            tmp_path,
            "",
            options={"command": command},
            api_key="k-123",
            api_key_name="VENDOR_KEY",
            raw_dir=tmp_path / "raw",
        )

    assert "k-123" not in str(caught.value.as_dict())
    assert "[REDACTED:VENDOR_KEY]" in str(caught.value.as_dict())
    assert (tmp_path / "raw" / "agent-stderr.log").read_text() == "key ${VENDOR_KEY}"
    assert (tmp_path / "raw" / "agent-stdout.log").read_text() == "hi ${VENDOR_KEY}"


# -- resume ----------------------------------------------------------------------------------------


OLD = {"native_session_id": "old", "turns": 1}


def resumed(work: Path, monkeypatch: pytest.MonkeyPatch, scenario: str, argument: str = "") -> Played:
    monkeypatch.setattr(AcpExecutor, "open", lambda self: self.resume(OLD))
    return play(work, scenario, argument, options={"usage": "session"})


def test_a_session_is_loaded_and_its_replay_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = resumed(tmp_path, monkeypatch, "load", "ok")

    assert played.result.text == "continued"
    assert played.executor.native_session_id == "old"
    assert played.executor.resume_token() == {"native_session_id": "old", "turns": 2}
    assert played.result.metadata["replayed_updates"] == 3
    assert played.result.usage.prompt_tokens == 150
    assert [event["text"] for event in played.log.of_kind("text")] == ["continued"]


@pytest.mark.parametrize(("scenario", "argument"), [("load", "late"), ("resume", "ok")])
def test_figures_of_a_session_whose_past_is_not_told_are_ambiguous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str, argument: str
) -> None:
    played = resumed(tmp_path, monkeypatch, scenario, argument)

    assert played.result.text == "continued"
    assert played.result.usage.as_dict() == {"source": "prompt_response.usage", "unavailable": "ambiguous"}


@pytest.mark.parametrize(
    ("scenario", "argument", "title", "told"),
    [
        ("load", "error", "session_gone", "no rollout found for thread"),
        ("load", "empty", "session_gone", "replayed nothing of it"),
        ("load", "auth", "acp_auth_required", "Authentication required"),
        ("hello", "", "resume_unsupported", "can neither load nor resume"),
    ],
)
def test_a_session_that_cannot_be_loaded_is_never_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str, argument: str, title: str, told: str
) -> None:
    with pytest.raises(ExecutorError) as caught:
        resumed(tmp_path, monkeypatch, scenario, argument)

    assert caught.value.title == title
    assert told in caught.value.message


def test_an_empty_refusal_after_a_resume_is_a_session_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = resumed(tmp_path, monkeypatch, "resume", "lost").result

    assert (result.ok, result.infrastructure, result.repeatable) == (False, True, False)
    assert str(result.error).startswith("session_gone: the agent does not have the session old")


@pytest.mark.parametrize("token", [{}, {"native_session_id": ""}, {"native_session_id": 7, "turns": 1}])
def test_a_token_that_names_no_session(tmp_path: Path, token: dict[str, object]) -> None:
    executor = AcpExecutor(make_session(None, Log(), {"command": ["x"]}))

    with pytest.raises(ExecutorError) as caught:
        asyncio.run(executor.resume(token))

    assert caught.value.title == "resume_token_invalid"


def test_importing_the_executor_does_not_import_the_library() -> None:
    code = (
        "import sys, ageval_executors.acp as a; a.AcpExecutor;"
        "print([m for m in ('acp', 'pydantic') if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_without_the_library_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "acp.connection", None)

    with pytest.raises(ExecutorError) as caught:
        play(tmp_path, "hello")

    assert caught.value.title == "acp_extra_missing"
    assert "pip install 'pytest-ageval[acp]'" in caught.value.message


def test_without_a_box_there_is_no_session() -> None:
    executor = AcpExecutor(make_session(None, Log(), {"command": ["x"]}))

    with pytest.raises(ExecutorError) as caught:
        asyncio.run(executor.open())

    assert caught.value.title == "acp_box_missing"
