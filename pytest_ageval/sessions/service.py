"""Answers what a task's code asks of its agents: open, invoke, cancel, close, record an observation.

A refusal is data, not an exception: the task sees ``ok: false`` and a token in ``error``.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pytest_ageval import portal
from pytest_ageval.errors import AgevalError, ExecutorError
from pytest_ageval.evidence.recall import result_of
from pytest_ageval.executor import AgentResult
from pytest_ageval.sessions import continued
from pytest_ageval.sessions.build import prepare
from pytest_ageval.sessions.quota import Quota
from pytest_ageval.sessions.replay import unasked
from pytest_ageval.sessions.session import RoleSession
from pytest_ageval.sessions.stall import Stalls

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.box import Box
    from pytest_ageval.evidence import ActivityLog
    from pytest_ageval.executor import Executor

#: Answers ``scoring_exec``: an evaluator's command in the box.
Scoring = Callable[["Attempt", Mapping[str, Any]], Awaitable[dict[str, Any]]]


class JudgeBox(Protocol):
    """Finds the box of a judge; see `attempt.scoring.judge_box`."""

    def __call__(self, attempt: Attempt, name: str | None, *, needs_box: bool) -> Awaitable[Box | None]:
        """The box, or None for the agent's own."""
        ...


#: Seconds that closing one session may take before its processes are left to the box.
CLOSE_SECONDS = 10.0


def refusal(error: str, message: str = "") -> dict[str, Any]:
    """A reply that says no."""
    return {
        "ok": False,
        "error": error,
        "detail": message or None,
        "text": "",
        "structured": None,
        "tool_calls": [],
    }


class AgentService:
    """The sessions of one phase of one attempt. Judges of the evaluate phase have no quota."""

    def __init__(
        self,
        attempt: Attempt,
        phase: Literal["run", "evaluate"],
        scoring: Scoring | None = None,
        judge_box: JudgeBox | None = None,
    ) -> None:
        self.attempt = attempt
        self.phase = phase
        self.sealed = False
        #: How the last turn ended.
        self.last: AgentResult | None = None
        self.stalls = Stalls(lambda: attempt.clock.freeze(), attempt.held_back)
        self._failures: dict[tuple[str, str | None], AgentResult] = {}
        self._scoring = scoring
        self._judge_box = judge_box
        #: Agents that are ready in a scoring box, and the lock for making one so.
        self._prepared: set[tuple[str, Box]] = set()
        self._preparing = asyncio.Lock()
        self._invoking: set[asyncio.Task[Any]] = set()
        self.sessions: dict[str, RoleSession] = {}
        limits = attempt.locked.limits
        self.quota = Quota(limits.agent_invocations if phase == "run" else None, limits.agent_concurrency)
        #: What other processes asked of the agents in this phase.
        self.history = continued.history_of(attempt, phase)
        self.quota.used = len(self.history.invokes())
        self._ops: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]] = {
            "open": self._open,
            "invoke": self._invoke,
            "cancel": self._cancel,
            "close": self._close,
            "record_observation": self._record_observation,
            "publish": self._publish,
        }

    async def handle(self, op: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one request of the child."""
        if op == "scoring_exec" and self._scoring is not None:
            return await self._scoring(self.attempt, payload)
        answer = self._ops.get(op)
        return refusal("unknown_op", op) if answer is None else await answer(payload)

    # -- what sessions ask of the service --------------------------------------------------------

    @property
    def activity(self) -> ActivityLog:
        """The step log; that of the judges is kept apart, since their prompts hold gold."""
        return self.attempt.evidence.activity_for(self.phase)

    @property
    def turn_seconds(self) -> float | None:
        """The ceiling of one invoke: the task's ``agent_timeout_seconds``; the phase's clock is apart."""
        value = self.attempt.locked.parameters.get("agent_timeout_seconds")
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            return None
        return float(value)

    # -- the operations --------------------------------------------------------------------------

    async def _open(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        role, session_id = str(payload["profile_id"]), str(payload["session_id"])
        if self.sealed:
            return refusal("solver_writers_stopped")
        if role not in self.attempt.locked.bindings:
            # A slip of the task's author, not an answer of an agent: it must not become a score.
            known = sorted(self.attempt.locked.bindings)
            close = difflib.get_close_matches(role, known, 1)
            raise AgevalError(
                "unknown_profile",
                f"the task asks for the role {role!r}; task.yaml declares: {', '.join(known) or 'none'}"
                + (f"; did you mean {close[0]!r}?" if close else ""),
            )
        if session_id in self.sessions:
            return refusal("session_exists", session_id)
        environment = payload.get("environment")
        others = [s for s in self.sessions.values() if s.role == role and not s.closed]
        session = RoleSession(self, session_id, role, payload.get("actor_id"), environment)
        executor = self.attempt.registry.executor(session.binding.executor)
        if others and not executor.concurrent_sessions:
            return refusal("executor_not_concurrent", session.binding.executor)
        self.sessions[session_id] = session
        if continued.begins_in_the_past(session):
            return {"ok": True, "session_id": session_id}
        # An exception from here is ours or the author's: as data it could become a score.
        session.box = await self.box_for(session, executor)
        try:
            await session.open()
        except AgevalError as error:  # a refusal: run.py gets it as data and decides
            self.attempt.fact("agent_open_failed", {"session_id": session_id, **error.as_dict()})
            await session.close()
            return refusal(error.title, error.message)
        return {"ok": True, "session_id": session_id}

    async def box_for(self, session: RoleSession, executor: type[Executor]) -> Box | None:
        """The scoring box of a judge's session; None: the agent's box."""
        if self._judge_box is not None:
            needs_box = bool(executor.requires_box)
            return await self._judge_box(self.attempt, session.environment, needs_box=needs_box)
        if session.environment not in (None, "main"):
            raise AgevalError(
                "unknown_evaluate_environment",
                f"{session.environment!r}; in the run phase there is the agent's box only",
            )
        return None

    async def prepare(self, session: RoleSession, executor: type[Executor], box: Box) -> None:
        """Make the agent ready in a scoring box: it was not there in the environment phase. Once for each."""
        async with self._preparing:
            if (session.role, box) not in self._prepared:
                await prepare(self.attempt, session.role, box, executor)
                self._prepared.add((session.role, box))

    def ended(self, session: RoleSession, result: AgentResult) -> None:
        """A turn has ended. A later answer for the same role and actor shows that the failure is over."""
        self.note_end((session.role, session.actor), result)

    def note_end(self, who: tuple[str, str | None], result: AgentResult) -> None:
        """A turn of this role and actor came to `result`."""
        self.last = result
        if result.ok:
            self._failures.pop(who, None)
        elif result.infrastructure:
            self._failures[who] = result

    async def _invoke(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        session = self.sessions.get(str(payload["session_id"]))
        if session is None:
            return refusal("unknown_session", str(payload["session_id"]))
        # The turn before the slot: a turn that waits for its session must not hold up the others.
        async with session.turns, self.quota.slots:
            if (past := continued.completed(session)) is not None:
                return await continued.answer(session, past, payload)
            if session.executor is None and not session.closed and not self.sealed:
                await continued.go_live(session, payload)
            refused = self._refuse_invoke(session)
            if refused is not None:
                return refusal(refused)
            with self._busy(), self.stalls.invoke():
                # What run.py changes it sees in the agent's box; a judge elsewhere works on copies.
                works_in_box = (
                    session.executor is not None
                    and bool(session.executor.requires_box)
                    and session.box is None
                )
                if works_in_box:
                    await self.attempt.before_turn()
                # An exception from here is a hook's or ours: it ends the script and fails the phase.
                # As data it would look to run.py like an answer of the agent.
                reply = await session.invoke(payload)
                if works_in_box:
                    await self.attempt.after_turn()
                self._heed(session)
        return reply

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """The current task is an invoke; `seal` waits for it to write its end."""
        task = asyncio.current_task()
        assert task is not None
        self._invoking.add(task)
        try:
            yield
        finally:
            self._invoking.discard(task)

    def _refuse_invoke(self, session: RoleSession) -> str | None:
        if self.sealed:
            return "solver_writers_stopped"
        if session.closed or session.executor is None:
            return "session_closed"
        left = self.attempt.clock.remaining()
        if left is not None and left <= 0:
            return "wall_time_exceeded"
        if (refused := self._refuse_call(session)) is not None:
            return refused
        if not session.again and not self.quota.take():
            self.attempt.note_limit("agent_invocations")
            return "agent_invocation_limit"
        return None

    def _refuse_call(self, session: RoleSession) -> str | None:
        """The attempt's limit that forbids another call. Raises ExecutorError when it is the run's."""
        session.calls.begin()
        return None if session.calls.refuse() is None else self._heed(session)

    def _heed(self, session: RoleSession) -> str | None:
        """A budget refused a call. The attempt's own is a limit: the work is judged as it is.

        That the run's budget is used up says nothing of this agent, so there must be no verdict.
        """
        refused = session.calls.refused
        if refused is None:
            return None
        if refused.whole_run:
            raise ExecutorError("budget_exhausted", f"{refused.message}; the attempt was broken off")
        self.attempt.note_limit(refused.limit)
        return refused.limit

    async def _cancel(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        session = self.sessions.get(str(payload["session_id"]))
        if session is None:
            return refusal("unknown_session", str(payload["session_id"]))
        await session.cancel()
        return {"ok": True}

    async def _close(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        session = self.sessions.get(str(payload["session_id"]))
        if session is not None:
            await session.close()
            await self.attempt.after_turn()
        return {"ok": True}

    async def _record_observation(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The task executed a tool call itself: its result belongs to the trajectory."""
        session = self.sessions.get(str(payload["session_id"]))
        if session is None:
            return refusal("unknown_session", str(payload["session_id"]))
        invocation = payload.get("invocation_id") or next(reversed(session.records), None)
        record = session.records.get(str(invocation))
        if record is None:
            return refusal("no_invocation" if invocation is None else "invocation_mismatch")
        if not payload.get("tool_call_id"):
            return refusal("missing_tool_call_id")
        if record.has_result_of(str(payload["tool_call_id"])):
            return {"ok": True}
        record.emit(
            {
                "kind": "tool",
                "phase": "update",
                "tool_call_id": str(payload["tool_call_id"]),
                "function_name": payload.get("function_name"),
                "content": payload.get("content"),
                "raw_output": payload.get("raw_output"),
                "status": "failed" if payload.get("error") else "completed",
                "source": "ageval",
            }
        )
        return {"ok": True}

    async def _publish(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        self.attempt.published[str(payload["id"])] = str(payload.get("path") or "")
        return {"ok": True}

    # -- an attempt that is continued --------------------------------------------------------------

    def recall(self) -> None:
        """The sessions are over: how their turns ended is as it was."""
        for invoke in self.history.invokes():
            if invoke.completed is not None:
                opened = self.history.sessions[invoke.session_id].opened
                who = (str(opened.get("profile_id")), opened.get("actor_id"))
                self.note_end(who, result_of(invoke.completed))

    def refuse_unasked(self) -> None:
        """Raise AgevalError when the script has ended without asking for what it had asked for before."""
        left = continued.unasked(self)
        if left:
            raise unasked(left)

    # -- the end ---------------------------------------------------------------------------------

    async def seal(self) -> None:
        """No further invoke starts; the running ones are cancelled; every session is closed."""
        self.sealed = True
        closing = [asyncio.ensure_future(portal.guard(session.close())) for session in self.sessions.values()]
        if not closing:
            return
        _, pending = await asyncio.wait(closing, timeout=CLOSE_SECONDS)
        for task in pending:
            task.cancel()
        if pending:
            self.attempt.fact("agent_close_timeout", {"sessions": len(pending)})
            await asyncio.wait(pending, timeout=1)
        if self._invoking:
            await asyncio.wait(self._invoking, timeout=CLOSE_SECONDS)

    @property
    def failure(self) -> AgentResult | None:
        """The infrastructure failure of a role that never recovered from it."""
        return next(iter(self._failures.values()), None)
