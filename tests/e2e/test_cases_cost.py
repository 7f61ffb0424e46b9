"""What agents on the protocol report of tokens and money, in the ways in which they differ."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from plugin.conftest import DataSet

KIT = Path(__file__).parents[1] / "support" / "acp_agents" / "agentkit.py"

PROFILES = """
format: ageval.profiles/1
environment: local
agent_profiles:
  "*":
    executor: acp
    options: {usage: %s, command: %s}
"""
RUN = """
async def run(ctx):
    session = ctx.agent.session("solver")
    for turn in range(ctx.params["turns"]):
        await session.invoke(ctx.params["says"])
"""
EVALUATOR = """
def evaluate(inputs):
    return {"status": "PASS"}
"""
MORE = """
limits: {wall_time_seconds: 60, agent_invocations: 5}
parameters: {says: %s, turns: %d, agent_timeout_seconds: 5}
"""

#: One session for the first token of the prompt; the figures are what such agents really send.
AGENT = """
handshake()
turn = 0
while True:
    request = prompt()
    turn += 1
    mode = request["params"]["prompt"][0]["text"]
    if mode == "inclusive":
        end(request, usage={"inputTokens": 113415, "cachedReadTokens": 112224, "outputTokens": 990,
                            "totalTokens": 114405})
    elif mode == "exclusive":
        end(request, usage={"inputTokens": 1191, "cachedReadTokens": 112224, "outputTokens": 990})
    elif mode == "ambiguous":
        end(request, usage={"inputTokens": 1000, "cachedReadTokens": 200, "outputTokens": 50})
    elif mode == "cumulative":
        total = {1: 100, 2: 250}[turn]
        update("usage_update", inputTokens=total, outputTokens=0, totalTokens=total)
        end(request, usage={"inputTokens": total, "outputTokens": 0, "totalTokens": total})
    elif mode == "per-turn":
        found = {1: 100, 2: 150}[turn]
        end(request, usage={"inputTokens": found, "outputTokens": 0, "totalTokens": found})
    elif mode == "hangs":
        update("usage_update", inputTokens=100, outputTokens=0, totalTokens=100)
        update("usage_update", inputTokens=250, outputTokens=0, totalTokens=250)
        idle()
    elif mode == "price":
        update("usage_update", used=5, size=9, cost={"amount": 0.25 * turn, "currency": "USD"})
        end(request, usage={"inputTokens": 10, "outputTokens": 1, "totalTokens": 11})
"""
TABLE = """
format: ageval.prices/1
date: "2026-11-30"
models: [{match: "*", input: 1, output: 2, cache_read: 0.1}]
"""


@pytest.fixture
def demo(pytester: pytest.Pytester) -> DataSet:
    (pytester.path / "prices.yaml").write_text(TABLE)
    return DataSet(pytester, pytester.path / "datasets" / "demo")


def agent(demo: DataSet, scope: str, **turns: int) -> None:
    command = [sys.executable, "-u", "-c", f"{KIT.read_text()}\n{AGENT}"]
    demo.profiles(PROFILES % (scope, json.dumps(command)))
    for mode, count in turns.items():
        name = mode.replace("_", "-")
        demo.task(name, EVALUATOR, RUN, ("solver",), MORE % (name, count))


def usages(demo: DataSet) -> dict[str, dict[str, object]]:
    return {str(row["task_id"]): row["usage"] for row in demo.results()}  # type: ignore[misc]


def test_cached_tokens_are_counted_once_whichever_way_they_are_told(demo: DataSet) -> None:
    agent(demo, "turn", inclusive=1, exclusive=1, ambiguous=1)
    demo.pytest("datasets", "--ageval-prices=prices.yaml").assert_outcomes(passed=3)
    found = usages(demo)
    for name in ("inclusive", "exclusive"):
        usage = found[name]
        assert usage["prompt_tokens"] + usage["completion_tokens"] == 114405  # type: ignore[operator]
        assert usage["cached_tokens"] == 112224
        assert usage["cost_unavailable"] == ["model_unknown"], "the agent does not say which one it calls"
    assert found["ambiguous"]["cost_usd"] is None
    assert found["ambiguous"]["prompt_tokens"] is None
    assert found["ambiguous"]["cost_unavailable"] == ["ambiguous"]
    raw = {path.read_text() for path in demo.root.glob(".ageval/runs/*/trajectory.jsonl")}
    assert sum('"cachedReadTokens":200' in text.replace(" ", "") for text in raw) == 1, (
        "what was told is kept"
    )


def test_figures_that_go_on_counting_are_not_added_again(demo: DataSet) -> None:
    agent(demo, "session", cumulative=2)
    demo.pytest("datasets").assert_outcomes(passed=1)
    assert usages(demo)["cumulative"]["prompt_tokens"] == 250
    agent(demo, "turn", **{"per-turn": 2})
    demo.pytest("datasets", "-k", "per-turn").assert_outcomes(passed=1)
    assert usages(demo)["per-turn"]["prompt_tokens"] == 250


def test_a_cost_that_goes_on_counting_is_that_of_each_turn(demo: DataSet) -> None:
    agent(demo, "turn", price=3)
    result = demo.pytest("datasets", "--max-cost=0.6", "--ageval-prices=prices.yaml")
    result.assert_outcomes(passed=1)
    found = usages(demo)["price"]
    assert (found["cost_usd"], found["cost_source"]) == (pytest.approx(0.75), "reported")
    result.stdout.fnmatch_lines(["budget: $0.7500 of $0.6000"])


def test_what_was_told_before_the_time_was_up_is_kept_and_marked(demo: DataSet) -> None:
    """Twice in one process: what ends the first agent must not keep the second one from being ended."""
    demo.pytester.makeconftest(
        """
        import signal
        def pytest_runtest_setup(item):
            item.before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        def pytest_runtest_teardown(item):
            assert item.before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        """
    )
    agent(demo, "session", hangs=1)
    demo.task("hangs-too", EVALUATOR, RUN, ("solver",), MORE % ("hangs", 1))
    result = demo.pytest("datasets", "--max-tokens-per-attempt=1000")
    result.assert_outcomes(passed=2)
    for found in demo.results():
        usage = found["usage"]
        assert (usage["prompt_tokens"], usage["partial"]) == (250, True)  # type: ignore[index]
        assert found["agent_status"] == "timeout"
        assert found["timing"]["run"] < 20_000  # type: ignore[index]
        assert "budget_uncounted" in found["flags"]  # type: ignore[operator]
    result.stdout.fnmatch_lines(["demo *500+ *", "+ at least: a part of the usage is not known"])
