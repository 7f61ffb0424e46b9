"""What a turn comes to: stop reasons, errors, permissions, tools, files, cancellation."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from acp_kit import play

from pytest_ageval.errors import ExecutorError
from pytest_ageval.executor import ModelSpec

if TYPE_CHECKING:
    from pathlib import Path


# -- stop reasons ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "literal", "status"),
    [
        ('"end_turn"', "end_turn", "completed"),
        ('"max_tokens"', "max_tokens", "limit"),
        ('"max_turn_requests"', "max_turn_requests", "limit"),
        ('"refusal"', "refusal", "refused"),
        ('"cancelled"', "cancelled", "cancelled"),
        ('"max_steps"', "max_steps", "unknown"),
        ("null", None, "unknown"),
        ("7", "7", "unknown"),
        ("missing", None, "unknown"),
        ("not-an-object", None, "unknown"),
    ],
)
def test_stop_reasons_keep_their_literal(tmp_path: Path, sent: str, literal: str | None, status: str) -> None:
    result = play(tmp_path, "stop", sent).result

    assert result.ok
    assert (result.stop_reason, result.status) == (literal, status)
    assert result.text == "text"


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        ({"code": -32603, "message": "429 rate_limit_error"}, True),
        ({"code": -32603, "message": "Internal error", "data": {"errorKind": "server_error"}}, True),
        ({"code": -32603, "message": "x", "data": {"codex_error_info": "internal_server_error"}}, True),
        ({"code": 503, "message": "no capacity"}, True),
        ({"code": -32603, "message": "request timed out"}, True),
        ({"code": -32603, "message": "unexpected status 401 Unauthorized"}, False),
        ({"code": -32603, "message": "invalid_request_error after 3 timeouts (timed out)"}, False),
        ({"code": 401, "message": "bad key"}, False),
        ({"code": -32603, "message": "model gpt-5003 does not exist"}, False),
        ({"code": -32602, "message": "Invalid params"}, False),
    ],
)
def test_an_rpc_error_is_infrastructure(tmp_path: Path, error: dict, transient: bool) -> None:
    async def act(executor):
        first = await executor.invoke("one")
        assert (await executor.invoke("two")).text == "recovered"
        return first

    result = play(tmp_path, "rpc_error", json.dumps(error), act=act).result

    assert not result.ok
    assert result.infrastructure
    assert result.error.startswith(f"acp_error:{error['code']}: {error['message']}")
    assert result.metadata["rpc_error"]["data"] == error.get("data")
    assert result.transient is transient
    assert result.repeatable


def test_an_error_after_a_command_ran_is_not_repeatable(tmp_path: Path) -> None:
    error = {"code": -32603, "message": "overloaded, retry after 7s", "after_tool": True}

    result = play(tmp_path, "rpc_error", json.dumps(error)).result

    assert (result.transient, result.repeatable, result.retry_after) == (True, False, 7.0)


def test_an_agent_that_wants_a_login(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError) as caught:
        play(tmp_path, "auth")

    assert caught.value.title == "acp_auth_required"
    assert "Authentication required" in caught.value.message


def test_a_provider_error_as_text_is_only_a_suspicion(tmp_path: Path) -> None:
    result = play(tmp_path, "fake_success", "text").result

    assert result.ok
    assert result.metadata["agent_error_suspected"] is True


def test_a_failure_that_the_agent_declares_is_recorded_and_left_to_the_evaluator(tmp_path: Path) -> None:
    result = play(tmp_path, "fake_success", "declared").result

    assert result.ok
    assert result.metadata["declared_failure"] == {"failed": True, "error": "HTTP 400"}
    assert result.metadata["agent_error_suspected"] is True
    assert result.stop_reason == "end_turn"


def test_a_failure_of_the_agents_machinery_is_infrastructure(tmp_path: Path) -> None:
    result = play(tmp_path, "fake_success", "system-error").result

    assert not result.ok
    assert result.infrastructure
    assert result.error.startswith("acp_agent_failed: systemError: We're currently experiencing")
    assert result.metadata["agent_error_suspected"] is True
    assert result.stop_reason == "end_turn"


# -- tools -----------------------------------------------------------------------------------------


def test_tools_become_steps_and_events(tmp_path: Path) -> None:
    played = play(tmp_path, "tools")

    steps = [(name, args[0] if name.startswith("tool") else None) for name, (args, _) in played.log.steps]
    assert steps == [
        ("model_turn_started", None),
        ("tool_call_started", "t1"),
        ("tool_call_completed", "t1"),
        ("tool_call_started", "t2"),
        ("tool_call_completed", "t2"),
        ("tool_call_started", "t3"),
        ("tool_call_completed", "t3"),
        ("model_turn_completed", None),
    ]
    details = {args[0]: kw for name, (args, kw) in played.log.steps if name == "tool_call_completed"}
    assert details["t1"] == {"outcome": "ok", "content": "the file", "exit_code": None, "raw_output": None}
    assert details["t2"]["outcome"] == "error"
    assert details["t2"]["exit_code"] == 3
    assert details["t2"]["content"].endswith("+++ b\nnew")
    assert details["t3"]["outcome"] == "interrupted"
    started = {args[0]: kw for name, (args, kw) in played.log.steps if name == "tool_call_started"}
    assert started["t1"]["replay_safe"]
    assert not started["t2"]["replay_safe"]
    assert not played.result.repeatable
    assert played.log.steps[-1][1][1]["thought"] == "let me see"


def test_a_turn_that_only_read_can_be_repeated(tmp_path: Path) -> None:
    assert play(tmp_path, "tools", "read").result.repeatable


def warnings_of(played) -> list[str]:
    raws = [event["raw"] for event in played.log.events if event["kind"] == "opaque"]
    return [raw["code"] for raw in raws if raw.get("type") == "warning"]


def test_tools_of_the_task_are_not_sent_and_the_record_says_so(tmp_path: Path) -> None:
    async def act(executor):
        return await executor.invoke("p", tools=[{"type": "function"}])

    played = play(tmp_path, "hello", act=act)

    assert played.result.ok
    assert warnings_of(played) == ["acp_tools_ignored"]


def test_messages_that_say_more_than_the_prompt_are_not_sent(tmp_path: Path) -> None:
    async def act(executor):
        alone = await executor.invoke("p", messages=[{"role": "user", "content": "p"}])
        assert alone.ok
        return await executor.invoke("p", messages=[{"role": "system", "content": "s"}])

    played = play(tmp_path, "hello", act=act)

    assert played.result.ok
    assert warnings_of(played) == ["acp_messages_ignored"]


def test_files_of_the_client_stay_in_the_workspace(tmp_path: Path) -> None:
    told = json.loads(play(tmp_path, "files").result.text)

    assert told["write"] == {}
    assert told["read"] == "one\ntwo\nthree"
    assert told["part"] == "two"
    refused = {name: code for name, code in told.items() if isinstance(code, int)}
    assert refused == {
        "/etc/hostname": -32602,
        "/../x": -32602,
        "/link": -32602,
        "/dir/hostname": -32602,
        "relative": -32602,
        "/no": -32002,
        "write outside": -32602,
    }
    assert (tmp_path / "workspace" / "sub" / "new.txt").read_text() == "one\ntwo\nthree"


# -- permissions -----------------------------------------------------------------------------------

ONCE = {"optionId": "o", "name": "Once", "kind": "allow_once"}
ALWAYS = {"optionId": "a", "name": "Always", "kind": "allow_always"}
REJECT = {"optionId": "r", "name": "No", "kind": "reject_once"}
NEVER = {"optionId": "n", "name": "Never", "kind": "reject_always"}
STRANGE = {"optionId": "s", "name": "?", "kind": "allow_session"}


@pytest.mark.parametrize(
    ("policy", "options", "chosen"),
    [
        ("allow", [REJECT, ALWAYS, ONCE], "o"),
        ("allow", [ALWAYS], "a"),
        ("allow", [REJECT], "r"),
        ("allow", [], None),
        ("allow", [STRANGE], None),
        ("allow", [{"kind": "allow_once"}, "text", {**ONCE, "optionId": "o2"}], "o2"),
        ("deny", [ONCE, ALWAYS, NEVER, REJECT], "r"),
        ("deny", [ONCE, NEVER], "n"),
        ("deny", [ONCE], None),
    ],
)
def test_permission_requests_are_answered_by_policy(
    tmp_path: Path, policy: str, options: list, chosen: str | None
) -> None:
    played = play(tmp_path, "permission", json.dumps(options), permission=policy)

    expected: dict[str, Any] = {"outcome": "cancelled"}
    if chosen is not None:
        expected = {"outcome": "selected", "optionId": chosen}
    assert json.loads(played.result.text) == expected
    [event] = played.log.of_kind("permission")
    assert (event["option_id"], event["policy"], event["title"]) == (chosen, policy, "rm -rf /")
    assert not played.result.repeatable
    assert played.seconds < 3


@pytest.mark.parametrize(("answer", "chosen"), [("r", "r"), ("invented", None), (None, None)])
def test_a_hook_chooses_among_the_options(tmp_path: Path, answer: str | None, chosen: str | None) -> None:
    asked = []

    async def ask(request):
        asked.append(request)
        return answer

    options = json.dumps([ONCE, REJECT])
    played = play(tmp_path, "permission", options, permission="ask", ask=ask)

    assert json.loads(played.result.text).get("optionId") == chosen
    assert asked[0]["toolCall"]["title"] == "rm -rf /"


def test_a_hook_that_fails_cancels_the_request(tmp_path: Path) -> None:
    async def ask(request):
        raise RuntimeError("no opinion")

    played = play(tmp_path, "permission", json.dumps([ONCE]), permission="ask", ask=ask)

    assert json.loads(played.result.text) == {"outcome": "cancelled"}
    assert "no opinion" in played.log.of_kind("permission")[0]["note"]


# -- cancellation and time -------------------------------------------------------------------------


def cancelling(seconds: float):
    async def act(executor):
        turn = asyncio.create_task(executor.invoke("work"))
        await asyncio.sleep(seconds)
        await executor.cancel()
        return await turn

    return act


def test_cancel_answers_open_requests_first(tmp_path: Path) -> None:
    async def ask(request):
        await asyncio.sleep(60)

    played = play(tmp_path, "hung_permission", act=cancelling(0.5), permission="ask", ask=ask)

    assert played.result.text == "cancelled, then session/cancel"
    assert (played.result.ok, played.result.status) == (False, "cancelled")
    assert played.result.error == "acp_cancelled"
    assert played.seconds < 3


def test_a_cancelled_session_takes_the_next_turn(tmp_path: Path) -> None:
    async def act(executor):
        first = await cancelling(0.3)(executor)
        assert first.status == "cancelled"
        return await cancelling(0.3)(executor)

    result = play(tmp_path, "cancellable", act=act).result

    assert (result.status, result.stop_reason, result.text) == ("cancelled", "cancelled", "working")


@pytest.mark.parametrize("how", ["child", "setsid"])
def test_an_agent_that_does_not_stop_is_ended_with_its_children(tmp_path: Path, how: str) -> None:
    async def act(executor):
        result = await cancelling(0.8)(executor)
        sizes = []
        for _ in range(2):
            sizes.append((await executor.session.box.exec(["wc", "-c", "tick"])).stdout)
            await asyncio.sleep(0.5)
        assert sizes[0] == sizes[1]
        assert int(sizes[0].split()[0]) > 0
        return result

    played = play(tmp_path, "hang", how, act=act)

    assert played.result.status == "cancelled"
    assert played.seconds < 9


def test_a_model_timeout_ends_the_turn(tmp_path: Path) -> None:
    played = play(tmp_path, "cancellable", model=ModelSpec(timeout=0.7))

    assert (played.result.status, played.result.error) == ("timeout", "acp_timeout")
    assert not played.result.infrastructure
    assert 0.6 < played.seconds < 3


def test_silence_ends_the_turn_when_it_is_limited(tmp_path: Path) -> None:
    played = play(tmp_path, "cancellable", options={"idle_timeout_seconds": 0.7})

    assert (played.result.status, played.result.error) == ("timeout", "acp_idle_timeout")
    assert played.result.infrastructure


def test_the_time_in_which_we_decide_is_not_the_agents_silence(tmp_path: Path) -> None:
    async def ask(request):
        await asyncio.sleep(1.2)
        return "o"

    options = {"idle_timeout_seconds": 0.5}
    arguments = json.dumps([ONCE])
    played = play(tmp_path, "permission", arguments, options=options, permission="ask", ask=ask)

    assert played.result.ok


def test_an_abandoned_turn_leaves_no_steps_open(tmp_path: Path) -> None:
    async def act(executor):
        turn = asyncio.create_task(executor.invoke("work"))
        await asyncio.sleep(0.3)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        return await executor.invoke("again")

    played = play(tmp_path, "cancellable", act=act)

    assert played.result.error == "acp_session_ended: a turn was abandoned"
    assert [name for name, _ in played.log.steps] == ["model_turn_started", "model_turn_aborted"]
