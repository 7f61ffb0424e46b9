"""One turn of the worker: its lines become events, steps, usage, and at the end a result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ageval_executors._text import bounded
from ageval_executors._usage import sum_usage
from ageval_executors.openhands.process import usage_figures
from pytest_ageval.executor import AgentResult, AgentStatus, Usage

if TYPE_CHECKING:
    from pytest_ageval.executor import Session

log = logging.getLogger("pytest_ageval")

#: Words in the class of an exception that mark a failure which may pass.
_PASSING = ("RateLimit", "Timeout", "Unavailable", "Connection", "InternalServer", "NoResponse", "BadGateway")

#: What the SDK calls the end of a turn for which it set a limit.
_LIMITS = frozenset({"MaxIterationsReached", "MaxBudgetReached"})

#: Tools that only look.
_READS = frozenset({"think", "task_tracker"})


class Turn:
    """Collects one turn. All methods are called from the event loop."""

    def __init__(self, session: Session, prompt: str, scrub: Callable[[str], str]) -> None:
        self._session = session
        self._scrub = scrub
        self._usage: list[Usage] = []
        self._open: dict[str, None] = {}
        self._texts: list[str] = []
        self.acted = False
        #: Why we ended it: ``cancelled``, ``model_timeout``, ``wall_time_exceeded``, ``budget``.
        self.stopped: str | None = None
        #: A budget refuses the next model call.
        self.refused = asyncio.Event()
        self.refusal: str | None = None
        self._budget = ""
        self.end: dict[str, Any] | None = None
        self.over = asyncio.Event()
        session.activity.model_turn_started(1, delta_messages=[{"role": "user", "content": prompt}])

    def ignored(
        self, tools: Sequence[Mapping[str, Any]] | None, messages: Sequence[Mapping[str, Any]] | None
    ) -> None:
        """Say that the task's tools and messages are not used."""
        if tools:
            self._warn("openhands_tools_ignored", "the OpenHands agent has tools of its own")
        if messages and len(messages) > 1:
            self._warn("openhands_messages_ignored", "the OpenHands agent keeps the conversation itself")

    def _warn(self, code: str, message: str) -> None:
        log.warning("%s: %s", code, message)
        self._session.emit({"kind": "opaque", "raw": {"type": "warning", "code": code, "message": message}})

    def stop(self, why: str) -> None:
        """We end it."""
        self.stopped = why

    def abort(self, reason: str) -> None:
        """Close the record of a turn that has no answer."""
        self._close_tools()
        self._session.activity.model_turn_aborted(1, reason=reason, partial_text="\n".join(self._texts))

    # -- lines -------------------------------------------------------------------------------------

    def take(self, line: Mapping[str, Any]) -> None:
        """One line of the worker."""
        word = line["is"]
        if word == "text":
            self._text(str(line.get("channel")), str(line.get("text")))
        elif word == "tool":
            self._tool(line)
        elif word == "result":
            self._result(line)
        elif word == "usage":
            self._count(line)
        elif word == "end":
            self.end = dict(line)
            self.over.set()
        else:
            self._session.emit({"kind": "opaque", "raw": dict(line)})

    def _text(self, channel: str, text: str) -> None:
        if channel == "assistant":
            self._texts.append(text)
        self._session.emit({"kind": "text", "channel": channel, "text": text})

    def _tool(self, line: Mapping[str, Any]) -> None:
        call_id, name, arguments = str(line.get("id")), str(line.get("name")), line.get("arguments")
        self.acted = self.acted or name not in _READS
        self._open[call_id] = None
        self._session.activity.tool_call_started(
            call_id, name=name, arguments=arguments, replay_safe=name in _READS
        )
        self._session.emit(
            {
                "kind": "tool",
                "phase": "start",
                "tool_call_id": call_id,
                "function_name": name,
                "args": arguments,
                "status": "in_progress",
            }
        )

    def _result(self, line: Mapping[str, Any]) -> None:
        call_id, content = str(line.get("id")), str(line.get("content"))
        code, failed = line.get("exit_code"), bool(line.get("failed"))
        self._open.pop(call_id, None)
        self._session.activity.tool_call_completed(
            call_id, outcome="error" if failed else "ok", content=content, exit_code=code
        )
        self._session.emit(
            {
                "kind": "tool",
                "phase": "update",
                "tool_call_id": call_id,
                "content": content,
                "raw_output": {"exit_code": code},
                "status": "failed" if failed else "completed",
            }
        )

    def _count(self, line: Mapping[str, Any]) -> None:
        figures = usage_figures(line)
        whole = {"prompt_tokens", "completion_tokens"} <= set(figures)
        gap = None if whole else "partial" if figures else "not_reported"
        usage = Usage(**figures, source="openhands", unavailable=gap)  # type: ignore[arg-type]
        self._usage.append(usage)
        self._session.called(usage)
        self._session.emit({"kind": "usage", "cumulative": False, **usage.as_dict()})
        reason = self._session.refuse_call()
        if reason is not None and self.refusal is None:
            self.refusal = "budget"
            self._budget = reason
            self.refused.set()

    def _close_tools(self) -> None:
        for call_id in self._open:
            self._session.activity.tool_call_completed(call_id, outcome="interrupted")
        self._open.clear()

    # -- what it came to ---------------------------------------------------------------------------

    def result(self, dead: str | None, *, stderr: str = "", repeatable: bool = False) -> AgentResult:
        """The result; `dead` says why the worker is gone."""
        found = self._outcome(dead)
        text = str((self.end or {}).get("text") or "") or (self._texts[-1] if self._texts else "")
        usage = sum_usage(self._usage) if self._usage else Usage(unavailable="not_reported")
        if found.status in ("cancelled", "timeout") or dead is not None:
            # A model call may have been under way, which may be charged.
            usage = replace(usage, unavailable="partial" if self._usage else "lost_on_timeout")
        metadata = {**found.metadata, "model_calls": len(self._usage)}
        if stderr:
            metadata["stderr"] = stderr
        if found.ok:
            self._close_tools()
            self._session.activity.model_turn_completed(
                1, text=text, usage=usage, stop_reason=found.stop_reason
            )
        else:
            self.abort(found.error or "")
        repeatable = repeatable or (not self.acted and dead is None and found.transient)
        return replace(
            found,
            text=text,
            usage=usage,
            model=self._session.model.id,
            repeatable=repeatable,
            metadata=metadata,
        )

    def _outcome(self, dead: str | None) -> AgentResult:
        if self.stopped == "budget":
            return AgentResult(status="limit", stop_reason="budget", metadata={"limit": self._budget})
        if self.stopped is not None:
            status: AgentStatus = "cancelled" if self.stopped == "cancelled" else "timeout"
            return AgentResult(ok=False, error=self.stopped, status=status)
        if self.end is None:
            error = f"openhands_ended: {dead}"
            return AgentResult(ok=False, error=error, status="crashed", infrastructure=True)
        status_word, error_row = str(self.end.get("status")), self.end.get("error")
        if isinstance(error_row, Mapping):
            return self._failed(status_word, error_row)
        known: Mapping[str, AgentStatus] = {"finished": "completed", "stuck": "limit"}
        return AgentResult(status=known.get(status_word, "unknown"), stop_reason=status_word)

    def _failed(self, status_word: str, row: Mapping[str, Any]) -> AgentResult:
        code, detail = str(row.get("code")), self._scrub(str(row.get("detail")))
        if code in _LIMITS:
            return AgentResult(status="limit", stop_reason=code, metadata={"limit": detail})
        if "ContentPolicy" in code:
            return AgentResult(status="refused", stop_reason=code, metadata={"message": detail})
        http = row.get("http_status")
        words = " ".join([code, *map(str, row.get("classes") or ())])
        transient = any(word in words for word in _PASSING)
        if isinstance(http, int) and not transient:
            transient = http in (408, 409, 425, 429) or http >= 500
        return AgentResult(
            ok=False,
            error=f"openhands_failed: {code}: {bounded(detail, 2000)}",
            status="crashed",
            stop_reason=status_word,
            infrastructure=True,
            transient=transient,
            retry_after=_seconds(row.get("retry_after")),
            metadata={"http_status": http} if http is not None else {},
        )


def _seconds(value: Any) -> float | None:
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if 0 <= found < 1e6 else None
