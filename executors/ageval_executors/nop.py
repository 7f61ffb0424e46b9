"""The executor ``nop``: does nothing. A task that passes with it measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_ageval.executor import AgentResult, Executor, Usage


class NopExecutor(Executor):
    """Answers every prompt with an empty text and calls no tool. Needs no box and no model.

    Its usage has no figures and the source ``none``: no model was called, so there is nothing to count.
    """

    kind = "nop"
    calls_model = False
    conversational = False

    async def invoke(
        self,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> AgentResult:
        """An empty answer, whatever was asked."""
        del prompt, tools, messages
        return AgentResult(usage=Usage(source="none", unavailable="not_reported"))
