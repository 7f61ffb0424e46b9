"""Sessions as a script sees them, in real workers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from worker_bench import Bench

from pytest_ageval.sdk import Agent, Scoring

TOO_MANY = (
    "this session was opened with max_turns={}; raise it in run.py, and limits.agent_invocations in "
    "task.yaml if need be"
)


def test_session_ids_follow_the_code_and_not_the_arrival(bench: Bench) -> None:
    """The second session is used first; its number is still 2. Any `Agent` object counts on."""
    value = bench.value(
        """
        from ageval_sdk import Agent

        async def evaluate(inputs):
            agent, other = inputs["agent"], Agent(attempt_id="attempt_1")
            sessions = [agent.session("solver"), other.session("solver"),
                        agent.session("solver", actor_id="a"),
                        agent.session("solver", environment="gpu"), agent.session("a", actor_id="b_c"),
                        agent.session("a_b", actor_id="c")]
            for session in reversed(sessions):
                await session.invoke("hello")
            return [session.session_id for session in sessions]
        """
    )
    assert value == [
        "sess_solver_default_main_1",
        "sess_solver_default_main_2",
        "sess_solver_a_main_1",
        "sess_solver_default_gpu_1",
        "sess_a_b_c_main_1",
        "sess_a_b_c_main_2",
    ]
    opened = [payload["session_id"] for op, payload in bench.calls if op == "open"]
    assert opened == value[::-1]


def test_the_sessions_of_a_fan_out_are_the_same_each_time(bench: Bench) -> None:
    source = """
        from ageval_sdk import bounded_gather

        async def evaluate(inputs):
            async def child(topic):
                async with inputs["agent"].session("solver") as session:
                    return [topic, session.session_id, (await session.invoke(topic))["text"]]
            return await bounded_gather([child(topic) for topic in "abcdef"], limit=4)
        """
    delays = iter([0.05, 0.04, 0.03, 0.02, 0.01, 0.0] * 2)

    async def uneven(op: str, payload: dict[str, Any]) -> dict[str, Any]:
        if op == "invoke":
            await asyncio.sleep(next(delays))
        return {"ok": True, "text": payload.get("prompt")}

    expected = [[topic, f"sess_solver_default_main_{n}", topic] for n, topic in enumerate("abcdef", 1)]
    assert bench.value(source, handler=uneven) == expected
    assert bench.value(source) == expected


def test_turns_are_counted_limited_and_refused_after_the_end(bench: Bench) -> None:
    value = bench.value(
        """
        async def evaluate(inputs):
            said = []
            async def attempt(awaitable):
                try:
                    said.append((await awaitable)["turn"])
                except (RuntimeError, ValueError, TypeError) as error:
                    said.append(f"{type(error).__name__}: {error}")
            session = inputs["agent"].session("solver", max_turns=2)
            await attempt(session.invoke("one"))
            await attempt(session.invoke("two", request_id=" mine "))
            await attempt(session.invoke("three"))
            other = inputs["agent"].session("solver")
            await attempt(other.invoke("x", model="gpt"))
            await attempt(other.invoke(["x"]))
            await attempt(other.invoke("x", tools=[{"name": {1}}]))
            for number in range(8):
                await attempt(other.invoke("x"))
            await session.close()
            await session.close()
            await attempt(session.invoke("four"))
            await attempt(session.record_observation("call_1", content="x"))
            return said
        """
    )
    assert value == [
        1,
        2,
        f"RuntimeError: {TOO_MANY.format(2)}",
        "ValueError: invoke does not take model: the configuration decides",
        "TypeError: the prompt must be text, not list",
        "TypeError: Object of type set is not JSON serializable",
        *range(2, 9),
        f"RuntimeError: {TOO_MANY.format(8)}",
        "RuntimeError: session closed",
        "RuntimeError: session closed",
    ]
    requests = [payload["request_id"] for op, payload in bench.calls if op == "invoke"][:3]
    assert requests == [
        "req_sess_solver_default_main_1_turn_1",
        "mine",
        "req_sess_solver_default_main_2_turn_2",
    ]
    assert [op for op, _ in bench.calls].count("close") == 1


def test_a_refused_session_is_told_as_a_reply(bench: Bench) -> None:
    async def refuse(op: str, payload: dict[str, Any]) -> dict[str, Any]:
        assert op == "open", "a session that is not open was used"
        return {"ok": False, "error": "unknown_profile", "detail": "no such role"}

    value = bench.value(
        """
        async def evaluate(inputs):
            async with inputs["agent"].session("nobody") as session:
                reply = await session.invoke("hello")
                return [reply, await session.record_observation("call_1", content="x")]
        """,
        handler=refuse,
    )
    assert value[0]["ok"] is False
    assert (value[0]["error"], value[0]["text"], value[0]["tool_calls"]) == ("unknown_profile", "", [])
    assert value[1] == {"ok": False, "error": "agent_session_unbound"}


def test_a_reply_has_every_key_that_tasks_use(bench: Bench) -> None:
    calls = [{"id": "call_1", "name": "add", "arguments": {"a": 1}}]
    usage = {"prompt_tokens": 3}

    async def answer(op: str, payload: dict[str, Any]) -> dict[str, Any]:
        bench.calls.append((op, payload))
        reply = {"structured": {"a": 1}, "tool_calls": calls, "invocation_id": "inv_1", "usage": usage}
        return {"ok": True, "text": "x" * 9000, **reply, "stop_reason": "tool_calls"}

    value = bench.value(
        """
        async def evaluate(inputs):
            async with inputs["agent"].session("solver") as session:
                tools = [{"type": "function", "function": {"name": "add"}}]
                reply = await session.invoke("go", tools=tools, messages=({"role": "user", "content": "go"},))
                await session.record_observation(
                    "call_1", content="5", raw_output={"sum": 5}, function_name="add")
                return reply
        """,
        handler=answer,
    )
    assert value == {
        "ok": True,
        "text": "x" * 9000,
        "structured": {"a": 1},
        "error": None,
        "tool_calls": calls,
        "invocation_id": "inv_1",
        "evidence_relative": None,
        "usage": usage,
        "turn": 1,
        "provider_session_handle": None,
        "stop_reason": "tool_calls",
    }
    sent = dict(bench.calls)
    assert sent["invoke"]["messages"] == [{"role": "user", "content": "go"}]
    assert sent["record_observation"] == {
        "session_id": "sess_solver_default_main_1",
        "tool_call_id": "call_1",
        "content": "5",
        "error": False,
        "invocation_id": "inv_1",
        "function_name": "add",
        "raw_output": {"sum": 5},
    }


def test_what_scoring_cannot_do_is_raised(bench: Bench) -> None:
    async def refuse(op: str, payload: dict[str, Any]) -> dict[str, Any]:
        return {"error": "unknown_evaluate_environment: gpu"}

    source = "async def evaluate(inputs):\n    await inputs['scoring'].exec('gpu', ['true'])\n"
    outcome = bench.run(source, "evaluate", handler=refuse)
    assert outcome.error is not None
    assert (outcome.error["title"], outcome.error["line"]) == ("RuntimeError", 2)
    assert outcome.error["message"] == "unknown_evaluate_environment: gpu"


def test_a_forked_copy_of_a_script_has_no_sessions(bench: Bench) -> None:
    """It would take the replies of the original."""
    value = bench.value(
        """
        import asyncio, os

        def evaluate(inputs):
            ask = lambda: asyncio.run(inputs["agent"].session("judge").invoke("hello"))
            first = ask()["ok"]
            read, write = os.pipe()
            if os.fork() == 0:
                os.write(write, str(ask()["error"]).encode())
                os._exit(0)
            os.wait()
            return [first, os.read(read, 100).decode(), ask()["ok"]]
        """
    )
    assert value == [True, "agent_session_unbound", True]


def test_outside_of_a_worker_nobody_answers() -> None:
    async def main() -> None:
        reply = await Agent("attempt_1").session("solver").invoke("hello")
        assert (reply["ok"], reply["error"]) == (False, "agent_session_unbound")

    asyncio.run(main())
    with pytest.raises(ValueError, match="profile_id"):
        Agent("attempt_1").session(" ")
    for name, argv, error in (
        ("", ["true"], ValueError),
        ("main", "true", TypeError),
        ("main", [1], TypeError),
    ):
        with pytest.raises(error):
            asyncio.run(Scoring().exec(name, argv))  # type: ignore[arg-type]
