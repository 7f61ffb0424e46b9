"""What agents print: long lines, cut lines, banners, unknown things, floods, silence, sudden ends."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import pytest
from acp_kit import play

from ageval_executors.acp.frames import LineSplitter, LineTooLongError, parse_message
from pytest_ageval.errors import ExecutorError

if TYPE_CHECKING:
    from pathlib import Path

QUICK = {"start_timeout_seconds": 20}


# -- lines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [65535, 65536, 65537, 2**20, 20 * 2**20])
def test_long_lines_are_accepted(tmp_path: Path, size: int) -> None:
    played = play(tmp_path, "long_line", str(size))

    assert played.result.ok
    [tool] = played.log.of_kind("tool")
    assert len(tool["content"]) <= 300_000
    assert ("cut" in tool["content"]) is (size > 2**19)


def test_a_line_above_the_cap_fails_the_turn_and_names_the_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ageval_executors.acp.wire.MAX_LINE", 100_000)

    played = play(tmp_path, "long_line", "100001")

    assert not played.result.ok
    assert played.result.infrastructure
    assert played.result.error.startswith("acp_message_too_large: ACP message > 100000 bytes")
    assert played.seconds < 5


@pytest.mark.parametrize("cut", ["whole", "pages", "before", "after"])
def test_where_the_pipe_cuts_a_message_does_not_matter(tmp_path: Path, cut: str) -> None:
    played = play(tmp_path, "cuts", cut)

    assert played.result.ok
    assert played.result.text == "y" * (5 * 2**20) + "|"


def test_only_newlines_end_a_line() -> None:
    text = json.dumps("a\u2028b\x85c", ensure_ascii=False).encode()

    assert LineSplitter().feed(text + b"\r\n\nrest") == [text + b"\r", b""]


def test_a_line_may_be_as_long_as_the_cap_and_no_longer() -> None:
    splitter = LineSplitter(limit=4)

    assert splitter.feed(b"ab") == []
    assert splitter.feed(b"cd\n1234\n") == [b"abcd", b"1234"]
    with pytest.raises(LineTooLongError):
        splitter.feed(b"12345")


@pytest.mark.parametrize("line", [b'{"id": 1, "error": "text"}', b'{"id": 1, "error": null}'])
def test_a_malformed_error_still_ends_its_request(line: bytes) -> None:
    message = parse_message(line)

    assert message is not None
    assert message["error"]["code"] == -32603


def test_what_is_read_can_be_written_again() -> None:
    line = b'{"id": 1, "result": {"a": NaN, "b": -Infinity, "c": "\\ud800", "d": "\xff"}}'

    message = parse_message(line)

    assert message == {"id": 1, "result": {"a": None, "b": None, "c": "?", "d": "\ufffd"}}


@pytest.mark.parametrize(("depth", "taken"), [(150, True), (300, False)])
def test_nesting_has_a_limit(depth: int, taken: bool) -> None:
    line = b'{"id": 1, "result": ' + b"[" * depth + b"]" * depth + b"}"

    assert (parse_message(line) is not None) is taken


def test_noise_between_messages_is_skipped_and_counted(tmp_path: Path) -> None:
    played = play(tmp_path, "noise")

    assert played.result.ok
    assert played.result.text == "still here"
    assert played.result.metadata["skipped_lines"] == 4 * 12
    assert played.result.metadata["first_skipped_line"] == "Welcome back"


# -- not an ACP agent ------------------------------------------------------------------------------


def refused(work: Path, options: dict, **more: object) -> ExecutorError:
    with pytest.raises(ExecutorError) as caught:
        play(work, "", options={**QUICK, **options}, **more)
    return caught.value


def test_babble_instead_of_a_handshake_quotes_the_first_line(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError) as caught:
        play(tmp_path, "babble", options=QUICK)

    assert caught.value.title == "acp_not_a_server"
    assert "Usage: frobnicate [OPTIONS] FILE" in caught.value.message
    assert "an ACP server?" in caught.value.message


def test_a_command_that_echoes_is_seen_through(tmp_path: Path) -> None:
    started = time.monotonic()

    error = refused(tmp_path, {"command": ["cat"]})

    assert error.title == "acp_not_a_server"
    assert "'cat'" in error.message
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("command", [["sleep", "1000"], ["python3", "-c", "input(); input()"]])
def test_silence_ends_with_the_handshake_limit(tmp_path: Path, command: list[str]) -> None:
    error = refused(tmp_path, {"command": command, "start_timeout_seconds": 1})

    assert error.title == "acp_handshake_timeout"
    assert f"is '{command[0]}' an ACP server?" in error.message


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    error = refused(tmp_path, {"command": ["no-such-agent"]}, isolation="auto")

    assert error.title in ("acp_start_failed", "acp_unexpected_eof")
    assert "no-such-agent" in str(error)


# -- unknown things --------------------------------------------------------------------------------


def test_unknown_updates_are_kept_and_never_fatal(tmp_path: Path) -> None:
    played = play(tmp_path, "kinds")

    assert played.result.ok
    assert played.result.text == "lone surrogate: ?."
    raw = [event["raw"] for event in played.log.of_kind("opaque")]
    assert {"sessionUpdate": "totally_new_kind", "payload": {"a": [1, 2]}} in raw
    assert played.result.metadata["unknown_updates"]["totally_new_kind"] == 1
    assert played.log.of_kind("usage")[0]["context_tokens"] == 10
    [tool] = played.log.of_kind("tool")
    assert (tool["tool_call_id"], tool["phase"]) == ("only-updates", "start")
    json.dumps(played.log.events).encode()


def test_every_unknown_request_is_answered(tmp_path: Path) -> None:
    played = play(tmp_path, "unknown_requests")

    assert played.result.text == "[-32601, -32601, -32601]"
    assert played.result.metadata["client_requests"] == {
        "_vendor/drain": 1,
        "terminal/create": 1,
        "x": 1,
    }


def test_updates_before_and_after_a_turn(tmp_path: Path) -> None:
    async def act(executor):
        await asyncio.sleep(0.2)
        first = await executor.invoke("one")
        assert first.text == "in time and late"
        assert first.metadata["late_updates"] == 1
        assert first.metadata["foreign_updates"] == 1
        return await executor.invoke("two")

    played = play(tmp_path, "late", act=act)

    assert played.result.text == "second turn"
    texts = [(event["text"], event.get("late", False)) for event in played.log.of_kind("text")]
    assert texts == [("in time", False), (" and late", True), ("second turn", False)]
    early = [e["raw"]["sessionUpdate"] for e in played.log.of_kind("opaque") if e.get("unsolicited")]
    assert early == ["available_commands_update", "current_mode_update"]


def test_a_flood_on_stderr_blocks_nothing(tmp_path: Path) -> None:
    played = play(tmp_path, "stderr_flood", raw_dir=tmp_path / "raw")

    assert played.result.text == "quiet on stdout"
    assert played.seconds < 10
    log = (tmp_path / "raw" / "agent-stderr.log").read_text()
    assert log.endswith("the last line\n")
    assert 60_000 < len(log) < 140_000


# -- sudden ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "told"),
    [("at-once", "SyntaxError: bad agent"), ("after-initialize", "session/new: the agent ended")],
)
def test_an_agent_that_ends_while_it_is_opened(tmp_path: Path, how: str, told: str) -> None:
    started = time.monotonic()

    with pytest.raises(ExecutorError) as caught:
        play(tmp_path, "die", how)

    assert caught.value.title == "acp_unexpected_eof"
    assert told in caught.value.message
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("how", "told", "within"),
    [
        ("sigkill", "killed by SIGKILL", 2.0),
        ("closes-stdout", "still running, its stdout closed", 5.0),
        ("held-pipe", "exit code 3", 3.0),
        ("half-line", 'mid-message (exit code 0): {"jsonrpc":"2.0","method":"session/upd', 2.0),
    ],
)
def test_an_agent_that_ends_in_a_turn(tmp_path: Path, how: str, told: str, within: float) -> None:
    played = play(tmp_path, "die", how)

    assert not played.result.ok
    assert played.result.infrastructure
    assert played.result.status == "crashed"
    assert played.result.error.startswith("acp_unexpected_eof: ")
    assert told in played.result.error
    assert "Traceback: it hurts" in played.result.error
    assert played.result.text == "working"
    assert played.log.steps[-1][0] == "model_turn_aborted"
    assert played.seconds < within


def test_a_turn_after_the_end_is_an_error_too(tmp_path: Path) -> None:
    async def act(executor):
        await executor.invoke("one")
        return await executor.invoke("two")

    result = play(tmp_path, "die", "sigkill", act=act).result

    assert result.error.startswith("acp_session_ended: the agent ended (killed by SIGKILL)")
    assert result.infrastructure


def test_a_prompt_to_an_agent_that_closed_its_stdin(tmp_path: Path) -> None:
    async def act(executor):
        return await executor.invoke("x" * 2**20)

    result = play(tmp_path, "die", "closes-stdin", act=act).result

    assert not result.ok
    assert result.infrastructure
    assert result.error.startswith("acp_unexpected_eof")
