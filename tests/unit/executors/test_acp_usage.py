"""What the token counts of each agent mean."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from acp_kit import play

from ageval_executors.acp.entries import ENTRIES
from ageval_executors.acp.journal import last_turn
from ageval_executors.acp.usage import UsageRule, UsageTracker

if TYPE_CHECKING:
    from pathlib import Path


def counts(i: int, o: int, total: int | None = None, **more: int) -> dict[str, int]:
    names = {"read": "cachedReadTokens", "write": "cachedWriteTokens", "thought": "thoughtTokens"}
    found = {"inputTokens": i, "outputTokens": o, **{names[k]: v for k, v in more.items()}}
    return found if total is None else {**found, "totalTokens": total}


def one_turn(rule: UsageRule, result: dict[str, Any]) -> Any:
    tracker = UsageTracker(rule)
    tracker.start()
    return tracker.finish(result)


@pytest.mark.parametrize(
    ("reported", "prompt", "completion"),
    [
        # Inclusive and exclusive, told apart by the total, or because the cache is larger than the input.
        (counts(113415, 990, 114405, read=112224), 113415, 990),
        (counts(1191, 990, read=112224), 113415, 990),
        (counts(1191, 990, 114405, read=112224), 113415, 990),
        (counts(1600, 100, 2100, read=400, write=0), 2000, 100),
        (counts(802, 40, 1052, read=200, thought=10), 1002, 50),
        (counts(2403, 150, 3153, read=600, thought=30), 3003, 150),
        (counts(10, 5), 10, 5),
        (counts(10, 5, 999), 10, 5),
    ],
)
def test_an_unknown_agents_figures_are_read_by_their_total(
    reported: dict[str, int], prompt: int, completion: int
) -> None:
    usage = one_turn(UsageRule(), {"usage": reported})

    assert (usage.prompt_tokens, usage.completion_tokens) == (prompt, completion)
    assert usage.unavailable is None
    assert usage.source == "prompt_response.usage"


@pytest.mark.parametrize(
    "reported",
    [
        counts(3000, 100, read=600),  # no total
        counts(3000, 100, 9999, read=600),  # a total that fits nothing
        counts(1000, 300, 1400, read=100, thought=100),  # a total that fits two readings
    ],
)
def test_what_cannot_be_told_is_not_guessed(reported: dict[str, int]) -> None:
    tracker = UsageTracker(UsageRule())
    tracker.start()

    usage = tracker.finish({"usage": reported})

    assert usage.unavailable == "ambiguous"
    assert usage.prompt_tokens is None
    assert tracker.raw["prompt_response"] == reported


@pytest.mark.parametrize(
    ("result", "gap"),
    [({}, "not_reported"), ({"usage": None}, "not_reported"), ({"usage": "many"}, "parse_failed"),
     ({"usage": {"inputTokens": -1, "outputTokens": True}}, "parse_failed")],
)  # fmt: skip
def test_what_is_missing_is_not_zero(result: dict[str, Any], gap: str) -> None:
    usage = one_turn(UsageRule(), result)

    assert (usage.prompt_tokens, usage.unavailable) == (None, gap)


def test_claude_counts_a_turn_without_its_cache() -> None:
    usage = one_turn(ENTRIES["claude-code"].usage, {"usage": counts(3003, 150, 3843, read=600, write=90)})

    assert (usage.prompt_tokens, usage.completion_tokens) == (3693, 150)
    assert (usage.cached_tokens, usage.cache_write_tokens) == (600, 90)


def test_opencode_counts_its_last_call_only() -> None:
    usage = one_turn(ENTRIES["opencode"].usage, {"usage": counts(802, 40, 1052, read=200, thought=10)})

    assert (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens) == (1002, 50, 10)
    assert usage.unavailable == "partial"


def test_gemini_reports_in_meta() -> None:
    quota = {"quota": {"token_count": {"input_tokens": 3003, "output_tokens": 150}}}

    usage = one_turn(UsageRule(), {"_meta": quota})

    assert (usage.prompt_tokens, usage.completion_tokens) == (3003, 150)
    assert usage.source == "prompt_response._meta.quota"


@pytest.mark.parametrize(("scope", "first", "second"), [("session", 100, 250), ("turn", 100, 150)])
def test_two_turns_add_up_to_what_was_used(tmp_path: Path, scope: str, first: int, second: int) -> None:
    seen = []

    async def act(executor):
        first, last = await executor.invoke("p"), await executor.invoke("p")
        seen.extend(result.usage.prompt_tokens for result in (first, last))
        return last

    plan = [[], {"usage": counts(first, 0, first)}, [], {"usage": counts(second, 0, second)}]
    play(tmp_path, "usage", json.dumps(plan), options={"usage": scope}, act=act)

    assert seen == [100, 150]


def test_cost_is_the_turns_share_of_the_sessions(tmp_path: Path) -> None:
    seen = []

    async def act(executor):
        first, last = await executor.invoke("p"), await executor.invoke("p")
        seen.extend(result.usage.cost_usd for result in (first, last))
        return last

    plan = [
        [{"used": 1, "size": 9, "cost": {"amount": 0.25, "currency": "USD"}}], {},
        [{"used": 2, "size": 9, "cost": {"amount": 0.75, "currency": "USD"}}], {},
    ]  # fmt: skip
    played = play(tmp_path, "usage", json.dumps(plan), act=act)

    assert seen == [0.25, 0.5]
    assert [event["cost_usd"] for event in played.log.of_kind("usage")] == [0.25, 0.75]
    assert all(event["cumulative"] for event in played.log.of_kind("usage"))


def test_a_hung_turn_keeps_what_was_last_told(tmp_path: Path) -> None:
    async def act(executor):
        turn = asyncio.create_task(executor.invoke("p"))
        await asyncio.sleep(0.4)
        await executor.cancel()
        return await turn

    plan = [[counts(100, 0, 100), counts(250, 0, 250)], "hang"]
    usage = play(tmp_path, "usage", json.dumps(plan), act=act).result.usage

    assert (usage.prompt_tokens, usage.unavailable, usage.source) == (250, "partial", "usage_update")


# -- pi's journal ----------------------------------------------------------------------------------


def journal(*messages: dict[str, Any]) -> str:
    return "\n".join(json.dumps({"type": "message", "message": message}) for message in messages)


ANSWER = {
    "role": "assistant",
    "stopReason": "stop",
    "usage": {"input": 800, "output": 50, "cacheRead": 200, "reasoning": 10, "cost": {"total": 0}},
}


def test_a_journal_gives_the_sum_of_the_last_turn() -> None:
    user, tool = {"role": "user"}, {"role": "toolResult"}

    found = last_turn('{"torn' + "\n" + journal(user, ANSWER, user, ANSWER, tool, ANSWER))

    assert found.error is None
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (2000, 100)
    assert (found.usage.cost_usd, found.usage.unavailable) == (None, None)


def test_a_journal_that_begins_within_the_turn_is_partial() -> None:
    found = last_turn(journal(ANSWER))

    assert found.usage is not None
    assert found.usage.unavailable == "partial"


def test_a_journal_tells_of_a_failure() -> None:
    failed = {"role": "assistant", "stopReason": "error", "errorMessage": "401: bad key"}

    found = last_turn(journal({"role": "user"}, failed))

    assert (found.error, found.usage) == ("401: bad key", None)


# -- figures beside the updates, and under other names ----------------------------------------------


def call_of_qwen(i: int, o: int) -> dict[str, Any]:
    usage = {
        "inputTokens": i,
        "outputTokens": o,
        "totalTokens": i + o,
        "thoughtTokens": 10,
        "cachedReadTokens": 200,
    }
    update = {"sessionUpdate": "agent_message_chunk", "_meta": {"usage": usage}}
    return {"sessionId": "s", "update": update}


def test_calls_that_are_reported_one_by_one_are_summed() -> None:
    tracker = UsageTracker(ENTRIES["qwen-code"].usage)
    for _ in range(2):  # a second turn counts its own calls only
        tracker.start()
        for _ in range(3):
            tracker.noted(call_of_qwen(1000, 50))
        usage = tracker.finish({"stopReason": "end_turn"})
        assert (usage.prompt_tokens, usage.completion_tokens) == (3000, 150)
        assert (usage.cached_tokens, usage.reasoning_tokens) == (600, 30)
        assert (usage.source, usage.unavailable) == ("update._meta.usage", None)
    assert len(tracker.raw["calls"]) == 3


def test_calls_of_a_turn_that_was_lost_are_partial() -> None:
    tracker = UsageTracker(ENTRIES["qwen-code"].usage)
    tracker.start()
    tracker.noted(call_of_qwen(1000, 50))
    usage = tracker.lost()
    assert (usage.prompt_tokens, usage.unavailable) == (1000, "partial")


def metrics_of_openhands(i: int, o: int, cost: float = 0.0) -> dict[str, Any]:
    metrics = {
        "input_tokens": i,
        "output_tokens": o,
        "cache_read_tokens": 200,
        "reasoning_tokens": 10,
        "cost": cost,
    }
    return {"sessionId": "s", "update": {}, "_meta": {"field_meta": {"openhands.dev/metrics": metrics}}}


def test_figures_of_a_session_are_counted_from_the_last_turn() -> None:
    tracker = UsageTracker(ENTRIES["openhands"].usage)
    tracker.start()
    tracker.noted(metrics_of_openhands(1000, 50))
    tracker.noted(metrics_of_openhands(3000, 150))
    first = tracker.finish({})
    tracker.start()
    tracker.noted(metrics_of_openhands(4000, 200, cost=0.25))
    second = tracker.finish({})
    assert (first.prompt_tokens, first.completion_tokens, first.cost_usd) == (3000, 150, None)
    assert (second.prompt_tokens, second.completion_tokens, second.cost_usd) == (1000, 50, 0.25)


def test_the_turns_figures_of_grok_build() -> None:
    raw = {"inputTokens": 4000, "outputTokens": 200, "totalTokens": 4200, "cachedReadTokens": 800}
    raw |= {"cacheCreationTokens": 0, "reasoningTokens": 40, "modelCalls": 4}
    usage = one_turn(ENTRIES["grok-build"].usage, {"stopReason": "end_turn", "_meta": {"usage": raw}})
    assert (usage.prompt_tokens, usage.completion_tokens) == (4000, 200)
    assert (usage.cached_tokens, usage.reasoning_tokens) == (800, 40)
    assert usage.source == "prompt_response._meta.usage"


def test_the_turns_figures_of_codex_behind_its_app_server() -> None:
    usage = one_turn(
        ENTRIES["codex-app-server"].usage, {"usage": counts(2403, 150, 3153, read=600, thought=30)}
    )
    assert (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens) == (3003, 150, 30)
