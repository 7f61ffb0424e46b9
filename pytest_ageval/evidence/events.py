"""The types of the neutral events that every executor emits: ``ageval.trajectory.event/1``.

Further keys are allowed, and kept. What an executor has no neutral form for is ``opaque``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

FORMAT = "ageval.trajectory.event/1"

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Id = Annotated[str, msgspec.Meta(min_length=1)]


class Stamped(msgspec.Struct, kw_only=True, tag_field="kind"):
    """What the recorder adds to an event; `late` is set when it came after its turn had ended."""

    schema: Literal["ageval.trajectory.event/1"] | None = None
    seq: Annotated[int, msgspec.Meta(ge=1)] | None = None
    at: str | None = None
    session_id: str | None = None
    source: str | None = None
    late: bool | None = None


class TextEvent(Stamped, kw_only=True, tag="text"):
    """A piece of what the agent said or thought."""

    channel: Literal["assistant", "thought"]
    text: str


class ToolEvent(Stamped, kw_only=True, tag="tool"):
    """A call of a tool: it began, or more is known of it. A later value takes the place of an earlier one."""

    phase: Literal["start", "update"]
    tool_call_id: _Id
    function_name: str | None = None
    title: str | None = None
    tool_kind: str | None = None
    args: Any = None
    content: Any = None
    raw_output: Any = None
    status: str | None = None


class PermissionEvent(Stamped, kw_only=True, tag="permission"):
    """The agent asked for a permission, and what it was answered."""

    outcome: str
    option_id: str | None = None
    policy: str | None = None
    options: Any = None
    tool_call_id: str | None = None
    title: str | None = None
    tool_kind: str | None = None


class UsageFigures(msgspec.Struct, kw_only=True):
    """Tokens and cost, as `pytest_ageval.executor.Usage` counts them."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    cached_tokens: _Count | None = None
    cache_write_tokens: _Count | None = None
    reasoning_tokens: _Count | None = None
    cost_usd: Annotated[float, msgspec.Meta(ge=0)] | None = None


class UsageEvent(Stamped, kw_only=True, tag="usage"):
    """Figures that arrive on the way. `cumulative`: they count from the beginning of the session.

    `tokens` are the agent's own figures under its own names, `context_tokens` how full its context is.
    """

    cumulative: bool | None = None
    usage: UsageFigures | None = None
    cost_usd: Annotated[float, msgspec.Meta(ge=0)] | None = None
    tokens: dict[str, Any] | None = None
    context_tokens: _Count | None = None
    context_size: _Count | None = None


class OpaqueEvent(Stamped, kw_only=True, tag="opaque"):
    """Something that has no neutral form, as it came."""

    raw: Any


class TruncatedEvent(Stamped, kw_only=True, tag="truncated"):
    """The recorder left events out: there was too much."""

    dropped_events: _Count
    dropped_bytes: _Count


#: Any event of the format.
AnyEvent = TextEvent | ToolEvent | PermissionEvent | UsageEvent | OpaqueEvent | TruncatedEvent


def check(event: Any) -> AnyEvent:
    """`event` as its type. Raises `msgspec.ValidationError`."""
    found: AnyEvent = msgspec.convert(event, AnyEvent)
    return found
