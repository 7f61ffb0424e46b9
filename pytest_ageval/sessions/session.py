"""One session of one role: the executor behind it, its turns, and their evidence."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_ageval import portal
from pytest_ageval.accounting import CallMeter
from pytest_ageval.accounting.meter import UNCOUNTED, add
from pytest_ageval.attempt.checkpoint import go_to, keep
from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence import plain, structured
from pytest_ageval.evidence.activity import digest
from pytest_ageval.evidence.history import reply_of
from pytest_ageval.executor import AgentResult, Event, Executor, Recorded, Usage
from pytest_ageval.sessions.build import (
    CurrentScope,
    holding_for,
    link_for,
    session_for,
    settle,
    stall_seconds,
)
from pytest_ageval.sessions.replay import asked
from pytest_ageval.sessions.stall import Backoff

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.box import Box
    from pytest_ageval.evidence import InvocationRecord
    from pytest_ageval.gateway.link import Link
    from pytest_ageval.pacing import Holding
    from pytest_ageval.sessions.service import AgentService

log = logging.getLogger("pytest_ageval")

#: Seconds that a cancelled turn gets to end by itself.
CANCEL_GRACE = 6.0


class RoleSession:
    """A session that run.py opened. One turn at a time; `service` decides whether it may start."""

    def __init__(
        self,
        service: AgentService,
        session_id: str,
        role: str,
        actor: str | None,
        environment: str | None = None,
    ) -> None:
        self.service = service
        self.attempt: Attempt = service.attempt
        self.session_id = session_id
        self.role = role
        self.actor = actor
        #: The box that the script asked for by name, and the scoring box that this is, or None.
        self.environment = environment
        self.box: Box | None = None
        self.binding = self.attempt.locked.bindings[role]
        #: Counts the model calls of this session, and says when no further one may be made.
        self.calls = CallMeter(
            self.attempt.meter, service.phase, self.binding.model.id, self.binding.base_url
        )
        self.turn = 0
        self.closed = False
        self._token: dict[str, Any] | None = None
        #: Of a turn that another process had begun: it is counted already (`again`), starts from nothing
        #: (`fresh`), and a model call of it was on its way (`lost`).
        self.again, self.fresh, self.lost = False, True, False
        self.executor: Executor | None = None
        #: Held for a whole turn: a session has one at a time.
        self.turns = asyncio.Lock()
        self.records: dict[str, InvocationRecord] = {}
        self._scope = CurrentScope()
        self._record: InvocationRecord | None = None
        self._running: asyncio.Task[AgentResult] | None = None
        #: How its model calls go out.
        self._link: Link | None = None
        #: What holds them back.
        self._holding: Holding | None = None

    @property
    def info(self) -> dict[str, Any]:
        """The value that the open and close slots pass along."""
        return {
            "session_id": self.session_id,
            "profile_id": self.role,
            "executor": self.binding.executor,
            "executor_plugin": self.binding.executor,
            "actor_id": self.actor,
        }

    # -- open and close --------------------------------------------------------------------------

    async def open(self, *, recorded: Recorded | None = None, token: Mapping[str, Any] | None = None) -> None:
        """Make and open the executor. Raises AgevalError.

        `recorded` is what another process had done of its first turn, `token` by what it goes on.
        """
        await self._slot("before_agent_open", self.info)
        try:
            await portal.guard(self._open_executor(recorded, token))
        except AgevalError as error:
            failed = AgentResult(
                ok=False, error=f"{error.title}: {error.message}", infrastructure=True, status="crashed"
            )
            self.service.ended(self, failed)
            raise
        self._log_open()
        await self._slot("after_agent_open", self.info)

    async def _open_executor(self, recorded: Recorded | None, token: Mapping[str, Any] | None) -> None:
        link = self._link = await link_for(
            self.attempt, self.role, self.session_id, self.service.phase, self.box
        )
        holding = self._holding = holding_for(self.attempt, self.binding, self.service.stalls)
        if link.route is not None:
            link.route.holding = holding
        session = session_for(
            self.attempt,
            self.role,
            session_id=self.session_id,
            actor=self.actor,
            activity=self._scope,
            emit=self._emit,
            raw_dir=self.attempt.evidence.raw_dir(self.session_id, self.service.phase),
            box=self.box,
            calls=self.calls,
            link=link,
            holding=holding,
        )
        session = replace(session, recorded=recorded)
        if self._works_here:
            session = replace(
                session,
                checkpoint=lambda: keep(self.attempt, step=True),
                restore=lambda number: go_to(self.attempt, number),
            )
        link.bind(session)
        if self.attempt.executor_factory is not None:
            self.executor = self.attempt.executor_factory(session)
        else:
            self.executor = await self._slot("executor", session)
        if self.executor is None:
            raise AgevalError("executor_missing", f"no executor for role {self.role!r}")
        if self.box is not None:
            await self.service.prepare(self, type(self.executor), self.box)
        if token is None:
            await self.executor.open()
        else:
            await self.executor.resume(token)

    @property
    def _works_here(self) -> bool:
        """It works in the agent's box, in the phase in which that is kept."""
        kind = self.attempt.registry.executor(self.binding.executor)
        return self.box is None and self.service.phase == "run" and bool(kind.requires_box)

    def _log_open(self) -> None:
        self.service.activity.append(
            "session",
            "completed",
            self.session_id,
            {
                "session_id": self.session_id,
                "profile_id": self.role,
                "actor_id": self.actor,
                "environment": self.environment,
                "executor_kind": self.binding.executor,
                "native_session_id": getattr(self.executor, "native_session_id", None),
            },
        )

    def _keep_token(self) -> None:
        """Write down how another process could go on after this turn."""
        token = None if self.executor is None else self.executor.resume_token()
        if token is None and self._token is None:
            return
        previous, self._token = self._token, {"turn_index": self.turn, "resume_token": token}
        self.attempt.evidence.write_session(
            self.session_id,
            self.service.phase,
            {
                "schema": "ageval.session/1",
                "session_id": self.session_id,
                "profile_id": self.role,
                "actor_id": self.actor,
                "executor_kind": self.binding.executor,
                **self._token,
                # For a process that is killed before the turn stands in the step log.
                "previous": previous,
            },
        )

    async def close(self) -> None:
        """End the turn that runs, then the executor. Idempotent."""
        if self.closed:
            return
        self.closed = True
        await self.cancel()
        try:
            await self._close_executor()
        finally:
            if self._link is not None:
                await self._link.close()
            if (held := self._held()) > 0:
                detail = {"session_id": self.session_id, "seconds": round(held, 1)}
                self.attempt.fact("model_calls_held_back", detail)

    async def _close_executor(self) -> None:
        if self.executor is None:
            return
        try:
            await self._slot("before_agent_close", self.info)
            await portal.guard(self.executor.close())
            await self._slot("after_agent_close", self.info)
        except Exception as error:  # the other sessions must still be closed
            self.attempt.fact(
                "agent_close_failed",
                {"session_id": self.session_id, "error": f"{type(error).__name__}: {error}"},
            )

    async def cancel(self) -> None:
        """End the running turn; it then returns with status ``cancelled``."""
        running = self._running
        if running is None or running.done():
            return
        if self.executor is not None:
            try:
                await asyncio.wait_for(portal.guard(self.executor.cancel()), CANCEL_GRACE)
            except Exception as error:  # the task itself is cancelled next
                self.attempt.fact(
                    "agent_cancel_failed",
                    {"session_id": self.session_id, "error": f"{type(error).__name__}: {error}"},
                )
            await settle(running, CANCEL_GRACE)
        running.cancel()
        await settle(running, CANCEL_GRACE)

    async def _slot(self, name: str, value: Any) -> Any:
        return await self.attempt.slot(name, value, role=self.role)

    # -- a turn ----------------------------------------------------------------------------------

    async def invoke(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """One turn, from the prompt to the reply that the task's code sees."""
        self.turn += 1
        request = str(payload.get("request_id") or f"req_{self.session_id}_turn_{self.turn}")
        invocation = f"inv_{secrets.token_hex(8)}"
        prompt = await self._slot("before_agent_invoke", str(payload.get("prompt") or ""))
        record = self._begin(request, invocation, prompt, payload)
        started = time.monotonic() - self._held()
        try:
            result = await self._attempts(prompt, payload)
        except asyncio.CancelledError:
            # The phase is over. What the agent had reported by then is all there will be.
            elapsed = (time.monotonic() - self._held() - started) * 1000
            cut = self._cancelled()
            record.finish(cut, elapsed)
            self._end(request, invocation, cut, elapsed, cut=True)
            raise
        elapsed = (time.monotonic() - self._held() - started) * 1000
        result = await self._slot("after_agent_invoke", result)
        result = await self._slot("normalize_agent_result", result)
        record.finish(result, elapsed)
        checkpoint = await keep(self.attempt) if self._works_here else self.attempt.checkpoint_seq
        self._keep_token()
        # Whoever ends the agents also ends this turn; unless the run was over then, it has come to nothing.
        broken_off = self.service.sealed and not result.ok
        self._end(request, invocation, result, elapsed, checkpoint, cut=broken_off)
        return self._reply(invocation, result)

    def _begin(
        self, request: str, invocation: str, prompt: str, payload: Mapping[str, Any]
    ) -> InvocationRecord:
        evidence, phase = self.attempt.evidence, self.service.phase
        record = evidence.invocation(
            profile_id=self.role,
            session_id=self.session_id,
            executor_kind=self.binding.executor,
            prompt=prompt,
            surface=phase,
            model=self.binding.model.id,
            invocation_id=invocation,
            request_id=request,
            turn=self.turn,
        )
        self.records[invocation] = self._record = record
        self._scope.scope = evidence.scope(self.session_id, request, phase)
        self.service.activity.append(
            "invoke",
            "in_flight",
            request,
            {
                "session_id": self.session_id,
                "turn_index": self.turn,
                "prompt": prompt,
                **asked(payload),
                "fresh": self.fresh,
                "explicit_messages": payload.get("messages") is not None,
                "invocation_id": invocation,
            },
        )
        self.again, self.fresh = False, True
        return record

    async def _attempts(self, prompt: str, payload: Mapping[str, Any]) -> AgentResult:
        """Call the executor; while its provider is down and nothing was done, wait and call again."""
        backoff = Backoff(stall_seconds(self.attempt, self.binding))
        used = [Usage(unavailable="partial")] if self.lost else []
        self.lost = False
        while True:
            result = await self._counted(prompt, payload)
            used.append(result.usage)
            if len(used) > 1:
                result = replace(result, usage=add(used))
            if result.ok or not (result.infrastructure and result.transient and result.repeatable):
                return result
            if result.retry_after is not None and self._holding is not None:
                self._holding.pace.hold(result.retry_after)  # it is said to one, and meant for all
            wait = backoff.next(result.retry_after)
            if wait is None or self.service.sealed or self.closed:
                self._stalled(result, backoff, "budget_exhausted")
                return result
            self._stalled(result, backoff, "wait", wait)
            with self.service.stalls.waiting():
                await asyncio.sleep(wait)
            if self.calls.refuse() is not None:
                return self._over_budget(result)

    async def _counted(self, prompt: str, payload: Mapping[str, Any]) -> AgentResult:
        """One call of the executor, counted against the budgets however it ends."""
        self.calls.begin()
        try:
            result = await self._once(prompt, payload)
        except asyncio.CancelledError:
            self._count(self._cancelled())
            raise
        self._count(result)
        return result if self.calls.refused is None else self._over_budget(result)

    def _count(self, result: AgentResult) -> None:
        record = self._record
        usage = result.usage if record is None else record.usage_with(result)
        self.calls.settle(usage, answered=result.ok, model=result.model)
        if self.attempt.meter.uncounted:
            self.attempt.flag(UNCOUNTED)

    @staticmethod
    def _over_budget(result: AgentResult) -> AgentResult:
        """A call was refused: how the agent took that is not a failure of its machinery."""
        return replace(result, status="limit", infrastructure=False, transient=False)

    def _stalled(
        self, result: AgentResult, backoff: Backoff, outcome: str, wait: float | None = None
    ) -> None:
        detail = {
            "session_id": self.session_id,
            "reason": result.error,
            "try_count": backoff.tries,
            "waited_seconds": round(backoff.waited, 1),
            "outcome": outcome,
        }
        self.attempt.fact("upstream_stall", detail)
        if wait is not None:
            log.warning(
                "%s: %s; trying again in %.0f s (the clock stands still)",
                self.attempt.task_id,
                self.attempt.redactor.text(str(result.error)),
                wait,
            )

    async def _once(self, prompt: str, payload: Mapping[str, Any]) -> AgentResult:
        """Call the executor; where its model calls pass the gateway, they say how that went."""
        link = self._link
        if link is None:
            return await self._call(prompt, payload)
        link.begin()
        return link.measure(await link.judge(await self._call(prompt, payload)))

    async def _call(self, prompt: str, payload: Mapping[str, Any]) -> AgentResult:
        assert self.executor is not None  # open() came first
        assert self._holding is not None
        turn = self.executor.invoke(prompt, tools=payload.get("tools"), messages=payload.get("messages"))
        self._running = asyncio.ensure_future(portal.guard(turn))
        ceiling = self.service.turn_seconds
        try:
            if not await self._holding.ends_within(self._running, ceiling):
                await self.cancel()
                return self._after_timeout(ceiling)
            return self._running.result()
        except asyncio.CancelledError:
            if self._running.cancelled() and not _cancelling():
                return self._cancelled()
            await self.cancel()
            raise
        except AgevalError as error:
            return AgentResult(
                ok=False, error=f"{error.title}: {error.message}", status="crashed",
                infrastructure=True, repeatable=False,
            )  # fmt: skip
        except Exception as error:  # a bug of an executor is not the agent's failure
            # The traceback may quote the key: a logger's own handlers know nothing of that.
            trace = self.attempt.redactor.text(traceback.format_exc())
            log.error("executor %s failed\n%s", self.binding.executor, trace)
            return AgentResult(
                ok=False, error=f"{type(error).__name__}: {error}", status="crashed",
                infrastructure=True, repeatable=False,
            )  # fmt: skip

    def _held(self) -> float:
        return 0.0 if self._holding is None else self._holding.seconds()

    def _after_timeout(self, ceiling: float | None) -> AgentResult:
        """What a turn that was ended for its time came to."""
        return replace(
            self._told(), ok=False, status="timeout", error=f"invoke_timeout:{ceiling:g}",
            infrastructure=False, transient=False,
        )  # fmt: skip

    def _cancelled(self) -> AgentResult:
        late = self.attempt.limit is not None
        cut = replace(
            self._told(),
            ok=False,
            status="timeout" if late else "cancelled",
            error="wall_time_exceeded" if late else "invoke_cancelled",
            infrastructure=False,
            transient=False,
        )
        return cut if self._link is None else self._link.measure(cut)

    def _told(self) -> AgentResult:
        """What the turn had come to when it was ended; what it reported is kept."""
        running = self._running
        ended = running is not None and running.done() and not running.cancelled()
        if running is not None and ended and running.exception() is None:
            return running.result()
        return AgentResult(usage=Usage(unavailable="lost_on_timeout"))

    def _end(
        self,
        request: str,
        invocation: str,
        result: AgentResult,
        elapsed: float,
        checkpoint: int | None = None,
        *,
        cut: bool = False,
    ) -> None:
        """The turn is complete as soon as this stands in the step log. `cut`: it was broken off."""
        self.service.ended(self, result)
        row: dict[str, Any] = {
            "session_id": self.session_id,
            "turn_index": self.turn,
            "ok": result.ok,
            "text": result.text,
            "structured": structured(result.text),
            "tool_calls": tool_rows(result),
            "usage": result.usage.as_dict(),
            "error": result.error,
            "checkpoint_seq": checkpoint,
            "elapsed_ms": round(elapsed),
            "invocation_id": invocation,
            "stop_reason": result.stop_reason,
            "status": result.status,
            "model": result.model,
            "infrastructure": result.infrastructure,
            "transient": result.transient,
            "metadata": plain(result.metadata),
            "remaining_after": self.service.quota.left,
            "cut": cut,
        }
        row["reply_digest"] = digest(plain(reply_of(row)))
        self.service.activity.append("invoke", "completed", request, row)

    def _reply(self, invocation: str, result: AgentResult) -> dict[str, Any]:
        record = self.records[invocation]
        return {
            "ok": result.ok,
            "text": result.text,
            "structured": structured(result.text),
            "provider_session_handle": None,
            "turn": self.turn,
            "error": result.error,
            "invocation_id": invocation,
            "evidence_relative": str(record.directory.relative_to(self.attempt.evidence.root)),
            "tool_calls": tool_rows(result),
            "usage": result.usage.as_dict(),
            "model": result.model,
            "stop_reason": result.stop_reason,
            "status": result.status,
            "remaining_after": self.service.quota.left,
        }

    def _emit(self, event: Event) -> None:
        if self._record is not None:
            self._record.emit(event)


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def tool_rows(result: AgentResult) -> list[dict[str, Any]]:
    """Tool calls as the task's code and the evidence see them."""
    return [
        {"id": call.id, "name": call.name, "arguments": dict(call.arguments)} for call in result.tool_calls
    ]
