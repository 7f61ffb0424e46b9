"""A budget of tokens: when the run has used it up, no further attempt starts.

Copy this file beside your data set's ageval.yaml, then:

    AGEVAL_TOKEN_BUDGET=2000000 pytest my-dataset --agent codex

What runs is not stopped; what has not begun is skipped with a reason. With `-n` each worker has a
budget of its own, and the summary has the sum. Turns whose usage is unknown are counted as nothing,
and said in the summary.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_ageval.executor import AgentResult

VARIABLE = "AGEVAL_TOKEN_BUDGET"


class Meter:
    """Tokens of this process. Hooks run in threads, so counting takes a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.budget = 0
        self.tokens = 0
        self.unknown_turns = 0

    def add(self, result: AgentResult) -> None:
        """Count one turn."""
        usage = result.usage
        with self.lock:
            if usage.prompt_tokens is None and usage.completion_tokens is None:
                self.unknown_turns += 1
            self.tokens += (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)


METER = Meter()


def pytest_configure() -> None:
    """Read the budget; 0 is none."""
    text = os.environ.get(VARIABLE) or "0"
    if not text.isdecimal():
        raise pytest.UsageError(f"{VARIABLE}: expected a whole number of tokens, found {text!r}")
    METER.budget = int(text)


@pytest.hookimpl(wrapper=True)
def pytest_ageval_after_agent_invoke(
    attempt: Any, value: AgentResult
) -> Generator[None, AgentResult, AgentResult]:
    """Count, and pass the result on as it is."""
    result = yield
    METER.add(result)
    return result


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip an attempt that would start over budget."""
    if METER.budget and METER.tokens >= METER.budget and item.get_closest_marker("ageval"):
        pytest.skip(f"the budget of {METER.budget} tokens is used up ({METER.tokens} used)")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of a distributed run tells the controller, which prints the summary."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["token_budget"] = [METER.tokens, METER.unknown_turns]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended (pytest-xdist)."""
    tokens, unknown = getattr(node, "workeroutput", {}).get("token_budget", (0, 0))
    METER.tokens += tokens
    METER.unknown_turns += unknown


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was used."""
    if METER.tokens or METER.unknown_turns:
        unknown = f", {METER.unknown_turns} turns of unknown usage" if METER.unknown_turns else ""
        limit = f" of {METER.budget}" if METER.budget else ""
        terminalreporter.write_line(f"tokens used: {METER.tokens}{limit}{unknown}")
