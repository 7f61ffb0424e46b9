"""The record of an invocation of another process, as it lies in the evidence."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pytest_ageval.evidence.files import read_jsonl, repair_tail
from pytest_ageval.evidence.invocation import InvocationInfo, InvocationRecord, Pricer
from pytest_ageval.evidence.layout import INVOCATION_EVENTS, Surface
from pytest_ageval.executor import AgentResult, ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_ageval.evidence.history import PastInvoke
    from pytest_ageval.evidence.redact import Redactor

#: The error of an invocation whose process was killed.
INTERRUPTED = "process_interrupted"


def recalled(
    directory: Path,
    metadata: Mapping[str, Any],
    surface: Surface,
    invoke: PastInvoke,
    redactor: Redactor,
    price: Pricer | None,
) -> InvocationRecord:
    """The record in `directory`. One that did not end has the error ``process_interrupted``."""
    info = InvocationInfo(
        seq=int(metadata["seq"]),
        invocation_id=str(metadata["invocation_id"]),
        attempt_id=str(metadata["attempt_id"]),
        profile_id=str(metadata["profile_id"]),
        session_id=str(metadata["session_id"]),
        executor_kind=str(metadata["executor_kind"]),
        surface=surface,
        prompt=str(invoke.begun.get("prompt") or ""),
        model=metadata.get("model"),
        request_id=metadata.get("request_id"),
        turn=int(metadata.get("turn") or 1),
    )
    events = directory / INVOCATION_EVENTS
    repair_tail(events)
    completed = invoke.completed if info.invocation_id == invoke.invocation_id else None
    result = interrupted() if completed is None else result_of(completed)
    return InvocationRecord.again(info, directory, redactor, metadata, read_jsonl(events), result, price)


def interrupted() -> AgentResult:
    """What an invoke has come to whose process was killed: nobody knows whether its last call is charged."""
    return AgentResult(
        ok=False,
        error=INTERRUPTED,
        status="crashed",
        usage=Usage(unavailable="partial"),
        repeatable=False,
    )


def usage_of(payload: Mapping[str, Any]) -> Usage:
    """The usage in a line of the step log."""
    known = {each.name for each in fields(Usage)}
    return Usage(**{name: value for name, value in (payload.get("usage") or {}).items() if name in known})


def result_of(payload: Mapping[str, Any]) -> AgentResult:
    """The result of an invoke, from the end of it in the step log."""
    calls = [ToolCall(row["id"], row["name"], row["arguments"]) for row in payload.get("tool_calls") or ()]
    return AgentResult(
        text=payload.get("text") or "",
        ok=bool(payload.get("ok")),
        error=payload.get("error"),
        tool_calls=calls,
        usage=usage_of(payload),
        stop_reason=payload.get("stop_reason"),
        status=payload.get("status") or "unknown",
        model=payload.get("model"),
        infrastructure=bool(payload.get("infrastructure")),
        transient=bool(payload.get("transient")),
        metadata=payload.get("metadata") or {},
    )
