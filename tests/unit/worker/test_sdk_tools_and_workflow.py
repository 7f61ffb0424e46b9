"""The parts of the SDK that need no parent: tools, limits, many things at once, check rows."""

from __future__ import annotations

import asyncio
import gc
import math
import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_ageval.sdk import (
    AllowList,
    CallLimit,
    RunTerminal,
    ScoringExecResult,
    ScriptError,
    Tool,
    ToolSet,
    bounded_gather,
    collect_results,
    evaluation_check,
    first_success,
)

# -- tools ---------------------------------------------------------------------------------------


def add(args: Mapping[str, Any]) -> int:
    return int(args["a"]) + int(args["b"])


async def add_later(args: Mapping[str, Any]) -> int:
    await asyncio.sleep(0)
    return add(args)


ADD = Tool("add", add, {"required": ["a", "b"]})


@pytest.mark.parametrize("function", [add, add_later])
def test_a_tool_is_called_and_observed(function: Any) -> None:
    seen: list[Any] = []
    tools = ToolSet(
        before_hooks=[lambda name, args: seen.append((name, dict(args)))],
        after_hooks=[lambda name, observation: seen.append(observation)],
    )
    tools.add(Tool("add", function))
    expected = {"status": "ok", "tool": "add", "result": 3}
    assert asyncio.run(tools.call("add", {"a": 1, "b": 2})) == expected
    assert seen == [("add", {"a": 1, "b": 2}), expected]
    assert tools.side_effect_counter == 1


@pytest.mark.parametrize(
    ("tools", "name", "args", "reason"),
    [
        (ToolSet({"add": ADD}), "subtract", {}, "unknown_tool"),
        (ToolSet({"add": ADD}), "add", {"a": 1}, "invalid_args"),
        (ToolSet({"add": ADD}, allowlist={"other"}), "add", {"a": 1, "b": 2}, "allowlist"),
        (ToolSet({"add": ADD}, allowlist=AllowList.of()), "add", {"a": 1, "b": 2}, "allowlist"),
        (ToolSet({"add": ADD}, call_limit=0), "add", {"a": 1, "b": 2}, "call_limit"),
        (ToolSet({"add": ADD}, call_limit=CallLimit(0)), "add", {"a": 1, "b": 2}, "call_limit"),
    ],
)
def test_a_refusal_touches_nothing(tools: ToolSet, name: str, args: dict[str, Any], reason: str) -> None:
    tools.before_hooks.append(lambda name, args: pytest.fail("the hook was called"))
    assert asyncio.run(tools.call(name, args)) == {"status": "denied", "reason": reason}
    assert tools.side_effect_counter == 0


def test_the_call_limit_counts_all_tools_and_closing_refuses() -> None:
    async def main() -> list[str]:
        tools = ToolSet({"add": ADD}, allowlist={"add"}, call_limit=CallLimit(2))
        found = [await tools.call("add", {"a": 1, "b": 2}) for _ in range(3)]
        tools.close()
        found.append(await tools.call("add", {"a": 1, "b": 2}))
        return [one.get("reason", "ok") for one in found]

    assert asyncio.run(main()) == ["ok", "ok", "call_limit", "closed"]
    with pytest.raises(ValueError, match="negative"):
        CallLimit(-1)


# -- many at once --------------------------------------------------------------------------------


class Runs:
    """Counts coroutines that run, and how many did so at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.ended: list[int] = []

    async def one(self, number: int, seconds: float = 0.01, error: Exception | None = None) -> int:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(seconds)
            if error is not None:
                raise error
            return number
        finally:
            # Takes a moment, so that a loser that was only told to end would be caught running.
            await asyncio.sleep(0.01)
            self.now -= 1
            self.ended.append(number)


def test_bounded_gather_keeps_the_order_and_the_bound() -> None:
    runs = Runs()

    async def main() -> list[Any]:
        error = KeyError("two")
        work = [runs.one(number, error=error if number == 2 else None) for number in range(6)]
        return await bounded_gather(work, limit=2)

    found = asyncio.run(main())
    assert [one for one in found if not isinstance(one, KeyError)] == [0, 1, 3, 4, 5]
    assert isinstance(found[2], KeyError)
    assert runs.most == 2


def test_bounded_gather_ends_what_is_late() -> None:
    runs = Runs()

    async def main() -> list[Any]:
        work = [runs.one(0), runs.one(1, 60), runs.one(2, 60), runs.one(3)]
        found = await bounded_gather(work, limit=2, timeout=0.3)
        assert runs.now == 0
        return found

    found = asyncio.run(main())
    assert found[0] == 0
    assert [type(one) for one in found[1:]] == [TimeoutError] * 3
    gc.collect()  # a coroutine that was never awaited would be an error here


def test_cancelling_bounded_gather_ends_all() -> None:
    runs = Runs()

    async def main() -> None:
        work = asyncio.create_task(bounded_gather([runs.one(n, 60) for n in range(5)], limit=2))
        await asyncio.sleep(0.05)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert runs.now == 0
        assert sorted(runs.ended) == [0, 1]

    asyncio.run(main())
    gc.collect()


def test_bounded_gather_of_nothing_and_of_no_room() -> None:
    async def main() -> None:
        assert await bounded_gather([], limit=1) == []
        with pytest.raises(ValueError, match="at least 1"):
            await bounded_gather([Runs().one(1)], limit=0)

    asyncio.run(main())
    gc.collect()


@pytest.mark.parametrize("limit", [None, 2])
def test_first_success_takes_the_first_that_is_accepted_and_ends_the_others(limit: int | None) -> None:
    runs = Runs()

    async def main() -> int:
        work = [
            runs.one(0, 0.01, ValueError("no")),
            runs.one(1, 0.02),
            runs.one(2, 0.05),
            runs.one(3, 60),
            runs.one(4, 60),
        ]
        found = await first_success(work, limit=limit, accept=lambda number: number > 1)
        assert runs.now == 0
        return found

    assert asyncio.run(main()) == 2
    assert runs.most == (limit or 5)
    gc.collect()


def test_first_success_of_failures_and_of_nothing() -> None:
    async def main() -> None:
        for work in ([], [Runs().one(1, error=ValueError())]):
            with pytest.raises(RuntimeError, match="no acceptable result"):
                await first_success(work)
        with pytest.raises(ValueError, match="at least 1"):
            await first_success([Runs().one(1)], limit=0)

    asyncio.run(main())
    gc.collect()


def test_collect_results_awaits_in_order() -> None:
    assert asyncio.run(collect_results([Runs().one(1), 2, Runs().one(3)])) == [1, 2, 3]


# -- the rest ------------------------------------------------------------------------------------


def test_a_check_row_has_what_is_known() -> None:
    ran = ScoringExecResult(exit_code=1, stdout="out", stderr="err")
    assert not ran.ok
    assert evaluation_check(" build ", status="failed", score=0, exec_result=ran) == {
        "id": "build",
        "status": "failed",
        "score": 0.0,
        "exit_code": 1,
        "stdout": "out",
        "stderr": "err",
    }
    row = evaluation_check("x", title=" ", score=math.nan, exit_code=2, stdout=b"\xff", exec_result=ran)
    assert row == {"id": "x", "exit_code": 2, "stdout": "\ufffd", "stderr": "err"}
    with pytest.raises(ValueError, match="blank"):
        evaluation_check(" ")


def test_a_script_error_keeps_title_and_message() -> None:
    error = pickle.loads(pickle.dumps(ScriptError("gold_broken", "line 3")))
    assert (error.title, error.message, str(error)) == ("gold_broken", "line 3", "line 3")
    with pytest.raises(ValueError, match="title"):
        ScriptError(" ", "")
    with pytest.raises(TypeError, match="message"):
        ScriptError("title", None)  # type: ignore[arg-type]


def test_a_terminal_is_plain_data() -> None:
    assert RunTerminal.completed().to_dict() == {"kind": "completed", "reason": "ok"}
    assert RunTerminal.failed("tired").to_dict() == {"kind": "failed", "reason": "tired"}
    assert RunTerminal.failed({"a": 1}).to_dict()["reason"] == "{'a': 1}"  # type: ignore[arg-type]
