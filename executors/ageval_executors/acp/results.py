"""The `AgentResult` of a turn, from how it ended and what was seen of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ageval_executors._text import masked
from ageval_executors.acp.journal import read_journal
from ageval_executors.acp.outcome import (
    RpcFailure,
    declared_failure,
    looks_like_error,
    stop_status,
)
from ageval_executors.acp.turn import Turn, bounded
from pytest_ageval.executor import AgentResult, AgentStatus, Session, Usage

if TYPE_CHECKING:
    from ageval_executors.acp.native import NativeSession

#: Characters of an error that are kept.
ERROR_LIMIT = 4000


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """Exactly one of: the prompt's `result`, a JSON-RPC `error`, or the connection was `lost`.

    `stopped` says that we ended the turn, and why: ``acp_cancelled``, ``acp_timeout``,
    ``acp_idle_timeout``, ``wall_time_exceeded``.
    """

    result: dict[str, Any] | None = None
    error: RpcFailure | None = None
    lost: str | None = None
    stopped: str | None = None


def over_result() -> AgentResult:
    """No turn was begun: the time of the phase is up."""
    return AgentResult(ok=False, error="wall_time_exceeded", status="timeout")


def dead_result(why: str) -> AgentResult:
    """A turn of a session whose agent is gone."""
    return AgentResult(
        ok=False,
        error=f"acp_session_ended: {why}"[:ERROR_LIMIT],
        status="crashed",
        infrastructure=True,
        repeatable=False,
    )


async def build_result(session: Session, native: NativeSession, turn: Turn, end: TurnEnd) -> AgentResult:
    """Close the turn's record and say what it came to."""
    metadata = _metadata(native, turn)
    if end.stopped is not None:
        found = _stopped(turn, end)
    elif end.result is not None:
        found = await _answered(native, turn, end.result, metadata)
    elif end.error is not None:
        found = _rpc_failed(turn, end.error, metadata)
    else:
        found = _lost(turn, end.lost or "acp_unexpected_eof")
        metadata["stderr"] = native.wire.stderr.last_lines(20)
    if found.ok:
        turn.complete(found.usage, found.stop_reason)
    else:
        turn.abort(hidden(session, found.error or ""))
    metadata["usage_raw"] = native.usage.raw
    kept = {key: value for key, value in metadata.items() if value not in (None, {}, 0, "")}
    return AgentResult(
        text=turn.text,
        ok=found.ok,
        error=hidden(session, found.error)[:ERROR_LIMIT] if found.error else None,
        usage=found.usage,
        stop_reason=found.stop_reason,
        status=found.status,
        model=session.model.id,
        infrastructure=found.infrastructure,
        transient=found.transient,
        repeatable=turn.read_only and native.dead is None,
        retry_after=found.retry_after,
        metadata=hidden(session, kept),
    )


def hidden(session: Session, value: Any) -> Any:
    """`value` without the key: agents repeat their provider's message, and what they print."""
    return masked(value, session.api_key, session.api_key_name)


def _stopped(turn: Turn, end: TurnEnd) -> AgentResult:
    """We ended it. The usage is what had been told by then."""
    idle = end.stopped == "acp_idle_timeout"
    status: AgentStatus = "cancelled" if end.stopped == "acp_cancelled" else "timeout"
    result = end.result or {}
    literal = stop_status(result)[0] if end.result is not None else None
    usage = turn.usage.finish(result) if result.get("usage") else turn.usage.lost()
    return AgentResult(
        ok=False,
        error=end.stopped,
        status=status,
        stop_reason=literal,
        usage=usage,
        # Silence is a provider or a machine that hangs; a long turn is the agent's own doing.
        infrastructure=idle,
        transient=idle,
    )


async def _answered(
    native: NativeSession, turn: Turn, result: dict[str, Any], metadata: dict[str, Any]
) -> AgentResult:
    literal, status = stop_status(result)
    usage = turn.usage.finish(result)
    failure = turn.agent_failure
    if (declared := declared_failure(result.get("_meta"))) is not None:
        # An agent's own word is no proof that its provider failed: the evaluator decides, and the
        # reader of the result is told.
        metadata["declared_failure"] = bounded(declared, 10**9, 4096)
        metadata["agent_error_suspected"] = True
    told_as_refusal = native.entry.failure_text
    if failure is None and status == "refused" and told_as_refusal and told_as_refusal.match(turn.text):
        failure = turn.text[:2000]
    if failure is None and native.entry.journal is not None:
        journal = await read_journal(native)
        failure, usage = journal.error, journal.usage or usage
    if failure is None:
        if looks_like_error(turn.text, len(turn.tools)):
            metadata["agent_error_suspected"] = True
        return AgentResult(stop_reason=literal, status=status, usage=usage)
    # The agent said end_turn, but its machinery failed: what it shows as text is not an answer.
    metadata["agent_error_suspected"] = True
    told = failure if failure != "systemError" else f"systemError: {turn.text[-1000:]}"
    return AgentResult(
        ok=False,
        error=f"acp_agent_failed: {told}",
        stop_reason=literal,
        status="crashed",
        usage=usage,
        infrastructure=True,
        transient=RpcFailure("acp_agent_failed", told).transient,
    )


def _rpc_failed(turn: Turn, failure: RpcFailure, metadata: dict[str, Any]) -> AgentResult:
    metadata["rpc_error"] = bounded(failure.as_dict(), 10**9, 16_384)
    return AgentResult(
        ok=False,
        error=f"{failure.title}: {failure.text}",
        status="crashed",
        usage=_partial(turn),
        infrastructure=True,
        transient=failure.transient,
        retry_after=failure.retry_after,
    )


def _lost(turn: Turn, why: str) -> AgentResult:
    return AgentResult(ok=False, error=why, status="crashed", usage=_partial(turn), infrastructure=True)


def _partial(turn: Turn) -> Usage:
    found = turn.usage.lost()
    return Usage(unavailable="not_reported") if found.unavailable == "lost_on_timeout" else found


def _metadata(native: NativeSession, turn: Turn) -> dict[str, Any]:
    info = native.agent.get("agentInfo")
    wire = native.wire
    return {
        "entry": native.entry.name,
        "native_session_id": native.id,
        "agent": info if isinstance(info, dict) else None,
        "updates": turn.updates,
        "late_updates": turn.late_updates,
        "unknown_updates": turn.unknown_kinds,
        "foreign_updates": native.foreign_updates,
        "client_requests": dict(native.peer.requests),
        "skipped_lines": wire.noise_count,
        "first_skipped_line": wire.first_noise(),
        "replayed_updates": native.replayed,
        "text_truncated": turn.text_truncated or None,
    }
