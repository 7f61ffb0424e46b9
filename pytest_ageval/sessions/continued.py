"""Sessions of an attempt that is continued: answered from the past as far as it reaches, then live again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pytest_ageval.attempt.checkpoint import go_to
from pytest_ageval.errors import ExecutorError
from pytest_ageval.evidence.history import History, PastInvoke
from pytest_ageval.evidence.recall import INTERRUPTED, result_of, usage_of
from pytest_ageval.executor import Recorded
from pytest_ageval.sessions.replay import check_aligned

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.executor import Executor
    from pytest_ageval.sessions.service import AgentService
    from pytest_ageval.sessions.session import RoleSession


def history_of(attempt: Attempt, phase: Literal["run", "evaluate"]) -> History:
    """What other processes asked of the agents in `phase`."""
    if attempt.past is None:
        return History()
    if phase == "run":
        return attempt.past.run
    # A judge that works in a box worked in one that is gone: it is asked again.
    judges = attempt.past.judges
    for name in [name for name, session in judges.sessions.items() if not _remote(attempt, session.opened)]:
        del judges.sessions[name]
    return judges


def _remote(attempt: Attempt, opened: Mapping[str, Any]) -> bool:
    binding = attempt.locked.bindings.get(str(opened.get("profile_id")))
    return binding is not None and not attempt.registry.executor(binding.executor).requires_box


def begins_in_the_past(session: RoleSession) -> bool:
    """The first turn of the session was begun by another process: its agent is started when it must be."""
    past = session.service.history.sessions.get(session.session_id)
    return past is not None and 1 in past.invokes


def _invoke(session: RoleSession) -> PastInvoke | None:
    past = session.service.history.sessions.get(session.session_id)
    return None if past is None else past.invokes.get(session.turn + 1)


def completed(session: RoleSession) -> PastInvoke | None:
    """The session's next turn, if another process had completed it."""
    found = _invoke(session)
    live = session.executor is not None or session.closed
    return None if live or found is None or found.completed is None else found


def unasked(service: AgentService) -> list[PastInvoke]:
    """Completed turns of the past that nobody has asked for."""
    found: list[PastInvoke] = []
    for name, past in service.history.sessions.items():
        session = service.sessions.get(name)
        done = 0 if session is None else session.turn
        found += [each for turn, each in past.invokes.items() if turn > done and each.completed is not None]
    return found


async def answer(session: RoleSession, past: PastInvoke, payload: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a turn that is past; the box's files become what they were after it.

    Raises `AgevalError` ``session_alignment_mismatch``.
    """
    attempt, done = session.attempt, past.completed
    assert done is not None
    _check(session, past, payload)
    session.turn += 1
    if session.service.phase == "run":
        await go_to(attempt, done.get("checkpoint_seq"))
        await attempt.after_turn()
    result = result_of(done)
    session.service.ended(session, result)
    record = next(
        (each for each in attempt.evidence.invocations if each.info.invocation_id == done["invocation_id"]),
        None,
    )
    if record is not None:
        session.records[record.info.invocation_id] = record
    limit, left = session.service.quota.invocations, done.get("remaining_after")
    return {
        "ok": result.ok,
        "text": result.text,
        "structured": done.get("structured"),
        "provider_session_handle": None,
        "turn": session.turn,
        "error": result.error,
        "invocation_id": done["invocation_id"],
        "evidence_relative": None
        if record is None
        else str(record.directory.relative_to(attempt.evidence.root)),
        "tool_calls": list(done.get("tool_calls") or ()),
        "usage": result.usage.as_dict(),
        "model": result.model,
        "stop_reason": result.stop_reason,
        "status": result.status,
        "remaining_after": None if limit is None else left,
    }


def _check(session: RoleSession, past: PastInvoke, payload: Mapping[str, Any]) -> None:
    volatile = check_aligned(past, payload, session.attempt.redactor)
    if volatile:
        session.attempt.fact(
            "session_alignment_volatile",
            {"session_id": session.session_id, "turn": past.turn, "differ": volatile},
        )


async def go_live(session: RoleSession, payload: Mapping[str, Any]) -> None:
    """Start the session's agent where the past ends, with what it knew, in the files that it had.

    Raises `AgevalError` ``session_alignment_mismatch`` and what `Executor.resume` does.
    """
    service, attempt = session.service, session.attempt
    executor = attempt.registry.executor(session.binding.executor)
    past = service.history.sessions[session.session_id]
    broken = _invoke(session)
    recorded = None
    if broken is not None:
        session.again = True
        if executor.replays:
            if broken.answers or broken.calls:
                _check(session, broken, payload)
            recorded = broken.recorded(past.last_step)
            _supersede(session, broken)
            session.calls.replays(usage_of(row) for row in broken.answers)
            session.fresh = False
            session.lost = broken.calling
        _abort(session, broken)
    elif executor.replays:
        recorded = Recorded(last_step=past.last_step)
    if service.phase == "run":
        await go_to(attempt, service.history.checkpoint)
        await attempt.after_turn()
    session.box = await service.box_for(session, executor)
    token = _token(session, executor) if session.turn else None
    await session.open(recorded=recorded, token=token)


def _supersede(session: RoleSession, broken: PastInvoke) -> None:
    """The record is made anew, from what is replayed."""
    for record in list(session.attempt.evidence.invocations):
        if record.info.request_id == broken.request_id and record.info.surface == session.service.phase:
            session.attempt.evidence.supersede(record)


def _abort(session: RoleSession, broken: PastInvoke) -> None:
    """Close in the step log what was in flight."""
    log = session.service.activity
    common = {"session_id": session.session_id, "invoke_request_id": broken.request_id}
    if broken.calling:
        step = broken.last_step
        log.append(
            "model_turn",
            "aborted",
            f"mt_{broken.request_id}_{step}",
            {**common, "step_index": step, "reason": INTERRUPTED},
        )
    for call_id in broken.started_calls:
        log.append(
            "tool_call",
            "aborted",
            f"tool_{session.session_id}_{call_id}",
            {**common, "tool_call_id": call_id, "reason": INTERRUPTED},
        )


def _token(session: RoleSession, executor: type[Executor]) -> Mapping[str, Any] | None:
    """By what the executor goes on after the turns that are past; None: they are nothing to the next one."""
    if not executor.conversational:
        return None
    document = session.attempt.evidence.read_session(session.session_id, session.service.phase) or {}
    for found in (document, document.get("previous") or {}):
        if found.get("turn_index") == session.turn and found.get("resume_token") is not None:
            token: Mapping[str, Any] = found["resume_token"]
            return token
    raise ExecutorError(
        "resume_unsupported",
        f"{session.session_id} has {session.turn} completed turns, and {executor.kind} left nothing by which "
        "the session could be continued; run this attempt anew",
    )
