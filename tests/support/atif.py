"""A strict reader of ATIF documents: unknown keys and broken references are errors, as for Harbor's own."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class _Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    pass


class Agent(_Strict):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None
    extra: dict[str, Any] | None = None


class ToolCall(_Strict):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class Result(_Strict):
    source_call_id: str | None = None
    content: str | None = None
    extra: dict[str, Any] | None = None


class Observation(_Strict):
    results: list[Result]


class Metrics(_Strict):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    extra: dict[str, Any] | None = None


class Totals(_Strict):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = None
    extra: dict[str, Any] | None = None


class Step(_Strict):
    step_id: int
    source: Literal["system", "user", "agent"]
    message: str
    timestamp: str | None = None
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    extra: dict[str, Any] | None = None


class Trajectory(_Strict):
    schema_version: Literal["ATIF-v1.8"]
    agent: Agent
    steps: list[Step]
    session_id: str | None = None
    trajectory_id: str | None = None
    final_metrics: Totals | None = None
    extra: dict[str, Any] | None = None


_OF_AGENTS = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")


def read(text: str) -> Trajectory:
    """The document. Raises `msgspec.ValidationError` or AssertionError."""
    found = msgspec.json.decode(text, type=Trajectory)
    assert found.steps
    assert [step.step_id for step in found.steps] == list(range(1, len(found.steps) + 1))
    for step in found.steps:
        if step.source != "agent":
            assert not any(getattr(step, name) for name in _OF_AGENTS)
        calls = {call.tool_call_id for call in step.tool_calls or ()}
        sources = {row.source_call_id for row in (step.observation.results if step.observation else ())}
        assert sources - {None} <= calls
    return found
