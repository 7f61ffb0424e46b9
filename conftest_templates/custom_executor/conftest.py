"""An agent of your own: a Python function, called once for each turn.

Copy this file beside your data set's ageval.yaml, put your agent in place of `agent`, then:

    pytest my-dataset --agent function

It plays every role of every task. Tasks that expect files in the box need an executor that works
there: `self.session.box` is the box. `pytest_ageval.executor.Executor` is the protocol.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_ageval.executor import AgentResult, Executor, Usage


def agent(messages: Sequence[Mapping[str, str]]) -> str:
    """Your agent: the conversation so far, last the message to answer. This one halves an interval.

    It solves first-bad-build of the quickstart data set.
    """
    said = "\n".join(message["content"] for message in messages if message["role"] == "user")
    last = re.search(r"Builds 1 to (\d+)", said)
    if last is None:
        return "I only know how to look for bad builds."
    good = max(map(int, re.findall(r"Build (\d+) is good\.", said)), default=1)
    bad = min(map(int, re.findall(r"Build (\d+) is bad\.", said)), default=int(last[1]))
    return f"FOUND {bad}" if bad - good == 1 else f"TEST {(good + bad) // 2}"


class FunctionExecutor(Executor):
    """One session with `agent`."""

    kind = "function"

    async def open(self) -> None:
        """Begin an empty conversation."""
        self.history: list[dict[str, Any]] = []

    async def invoke(
        self,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> AgentResult:
        """One turn. What the function raises is a failure of the agent's machinery: an ERROR."""
        self.history.append({"role": "user", "content": prompt})
        try:
            # In a thread: nothing may block the event loop.
            text = await asyncio.to_thread(agent, list(self.history))
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            return AgentResult(ok=False, error=problem, status="crashed", infrastructure=True)
        self.history.append({"role": "assistant", "content": text})
        self.session.emit({"kind": "text", "channel": "assistant", "text": text})
        return AgentResult(text=text, usage=Usage(unavailable="not_reported"))


def pytest_ageval_executors() -> dict[str, type[Executor]]:
    """`executor: function` in a profiles.yaml, and `--agent function`."""
    return {FunctionExecutor.kind: FunctionExecutor}
