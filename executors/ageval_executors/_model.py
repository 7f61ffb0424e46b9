"""What the executors that call a model over HTTP have in common: the turn, its evidence, its failures."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ageval_executors._conversation import Entry, MessagesError, history_token, next_turn, read_history
from ageval_executors._failure import CallFailedError
from ageval_executors._http import ModelClient, is_loopback
from ageval_executors._text import bounded, encode_json, masked
from pytest_ageval.errors import ExecutorError
from pytest_ageval.executor import AgentResult, AgentStatus, Executor, ToolCall, Usage

if TYPE_CHECKING:
    from ageval_executors._answer import Answer
    from ageval_executors._conversation import Turn
    from pytest_ageval.executor import Session

#: Seconds that one call may take when the model's ``timeout`` is not set.
DEFAULT_TIMEOUT = 600.0

#: Characters of the provider's own usage object that are kept beside the figures made of it.
USAGE_LIMIT = 2000


class ModelExecutor(Executor):
    """Calls a model once for each invoke, from the host. The task runs the tools that the model calls.

    The conversation of the session is kept here, whole. A failed call leaves it as it was, so that the
    session service can send the same prompt again; nothing is repeated here.
    """

    concurrent_sessions = True
    resumable = True
    replays = True
    supported_model_fields = frozenset({"reasoning_effort", "timeout", "watchdog", "extra"})
    #: Used when the profile names no URL or no model.
    default_base_url: ClassVar[str]
    default_model: ClassVar[str]
    #: The variable in which this provider's users keep their key.
    default_api_key_name: ClassVar[str]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.base_url = session.base_url or self.default_base_url
        try:
            self.client = ModelClient(self.endpoint())
        except ValueError as error:
            raise ExecutorError("base_url_invalid", f"{self.base_url!r}: {error}") from error
        self._history: tuple[Entry, ...] = ()
        self._recorded = session.recorded
        self._step = 0 if session.recorded is None else session.recorded.last_step
        self._call: asyncio.Task[None] | None = None
        self._cancelled = False
        self._closed = False

    @classmethod
    def provider_url(cls, options: Mapping[str, Any], model: str | None) -> str | None:
        """The API's own address."""
        return cls.default_base_url

    # -- what an API is ---------------------------------------------------------------------------

    @abc.abstractmethod
    def endpoint(self) -> str:
        """The URL that is posted to."""

    @abc.abstractmethod
    def headers(self, key: str | None) -> dict[str, str]:
        """The headers of the API, the credential among them."""

    @abc.abstractmethod
    def body(self, entries: Sequence[Entry], tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
        """The request. Raises `MessagesError`."""

    @abc.abstractmethod
    def answer(self) -> Answer:
        """An empty answer, to be filled."""

    # -- the protocol -----------------------------------------------------------------------------

    def resume_token(self) -> dict[str, Any] | None:
        """The history itself, as it went over the wire; None if the key stands in it."""
        if not self._history:
            return None
        token = history_token(self._history)
        key = self.session.api_key
        return None if key and key in encode_json(token).decode() else token

    async def resume(self, token: Mapping[str, Any]) -> None:
        """Take over the history. See `Executor.resume`."""
        self._history = read_history(token)

    async def invoke(
        self,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> AgentResult:
        """One call of the model. See `Executor.invoke` and `next_turn`."""
        problem = self._state_problem() or self._credential_problem()
        if problem is not None:
            return problem
        try:
            turn = next_turn(self._history, prompt, messages)
            body = self.body(turn.entries, tools)
        except MessagesError as error:
            return self._refused("messages_invalid", str(error))
        if self._recorded is not None and self._recorded.answers:
            return self._replayed(turn, self._recorded.answers.pop(0))
        self._step += 1
        self.session.activity.model_turn_started(self._step, delta_messages=turn.new)
        answer = self.answer()
        try:
            await self._run(body, answer)
        except CallFailedError as failure:
            return self._failed(failure, answer)
        except asyncio.CancelledError:
            result = self._ended(answer)
            task = asyncio.current_task()
            if not self._cancelled or (task is not None and task.cancelling()):
                raise  # it is the caller that was cancelled
            return result
        return self._done(turn, answer)

    async def cancel(self) -> None:
        """Drop the running call; `invoke` returns with status ``cancelled``."""
        if self._call is not None and not self._call.done():
            self._cancelled = True
            self._call.cancel()

    async def close(self) -> None:
        """Drop the running call and close the connection. Idempotent."""
        self._closed = True
        await self.cancel()
        await self.client.close()

    # -- one call ---------------------------------------------------------------------------------

    async def _run(self, body: Mapping[str, Any], answer: Answer) -> None:
        self._cancelled = False
        self._call = asyncio.ensure_future(self._post(body, answer))
        try:
            await self._call
        finally:
            self._call.cancel()

    async def _post(self, body: Mapping[str, Any], answer: Answer) -> None:
        await self.session.pace()
        limit, left = self.session.model.timeout or DEFAULT_TIMEOUT, self.session.remaining()
        if left is not None and left < limit:
            await self._send(body, answer, max(0.0, left), _phase_over())
        else:
            message = f"no whole answer within {limit:g} seconds"
            over = CallFailedError("model_timeout", True, message, status="timeout", gap="lost_on_timeout")
            await self._send(body, answer, limit, over)

    async def _send(
        self, body: Mapping[str, Any], answer: Answer, limit: float, over: CallFailedError
    ) -> None:
        # Without a stream nothing arrives until the whole answer does: silence then means nothing.
        silence = self.session.model.watchdog if body.get("stream") else None
        try:
            async with asyncio.timeout(limit):
                headers = self.headers(self.session.api_key)
                await self.client.post(encode_json(body), headers, answer, silence=silence)
        except TimeoutError as error:
            raise over from error

    def _state_problem(self) -> AgentResult | None:
        if self._closed:
            return self._refused("session_closed", "the session is closed")
        left = self.session.remaining()
        if left is not None and left <= 0:
            return replace(self._refused("wall_time_exceeded", ""), status="timeout", infrastructure=False)
        return None

    def _credential_problem(self) -> AgentResult | None:
        key, name = self.session.api_key, self.session.api_key_name or self.default_api_key_name
        if not key and not is_loopback(self.base_url):
            message = f"no key for {self.kind}: set api_key: ${{{name}}} and the variable {name}"
            return self._refused("missing_credential", message)
        # Said here: the HTTP library's own message for such a header shows the header.
        if key and not (key.isascii() and key.isprintable() and " " not in key):
            message = f"{name} holds characters that no key has (a line end?)"
            return self._refused("credential_invalid", message)
        return None

    @staticmethod
    def _refused(error: str, message: str) -> AgentResult:
        """Nothing was sent, and nothing would change if it were tried again."""
        return AgentResult(
            ok=False,
            error=error,
            status="crashed",
            infrastructure=True,
            metadata={"message": message},
        )

    # -- what came of it --------------------------------------------------------------------------

    def _done(self, turn: Turn, answer: Answer) -> AgentResult:
        calls, broken = answer.tool_calls(self._step)
        text, usage = answer.joined("assistant"), answer.usage()
        self._emit_text(answer)
        self._emit_calls(calls)
        metadata = self._scrubbed(self._metadata(answer, broken))
        status: AgentStatus = "refused" if answer.refused else answer.status()
        model, message, native = answer.model or self.model_id, answer.message(), answer.native()
        self.session.activity.model_turn_completed(
            self._step,
            text=text,
            thought=answer.joined("thought"),
            tool_calls=calls,
            usage=usage,
            stop_reason=answer.stop_reason,
            answer={
                "calls": message.get("tool_calls"),
                "native": native,
                "status": status,
                "model": model,
                "metadata": metadata,
            },
        )
        # An empty answer is not kept: providers refuse a conversation that holds one.
        self._history = (*turn.entries, *((Entry(message, native),) if text or calls else ()))
        return AgentResult(
            text=text,
            tool_calls=calls,
            usage=usage,
            stop_reason=answer.stop_reason,
            status=status,
            model=model,
            metadata=metadata,
        )

    def _replayed(self, turn: Turn, row: Mapping[str, Any]) -> AgentResult:
        """An answer that another process got, as if it had arrived just now."""
        answer, text = row["answer"], str(row["assistant_text"] or "")
        calls = [ToolCall(c["id"], c["name"], dict(c["arguments"])) for c in row["tool_calls"] or ()]
        for channel, said in (("thought", row["thought"]), ("assistant", text)):
            if said:
                self.session.emit({"kind": "text", "channel": channel, "text": said})
        self._emit_calls(calls)
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if answer["calls"]:
            message["tool_calls"] = [_call(call) for call in answer["calls"]]
        self._history = (*turn.entries, *((Entry(message, answer["native"]),) if text or calls else ()))
        return AgentResult(
            text=text,
            tool_calls=calls,
            usage=Usage(**row["usage"]),
            stop_reason=row["stop_reason"],
            status=answer["status"],
            model=answer["model"],
            metadata=answer["metadata"],
        )

    def _emit_calls(self, calls: Sequence[ToolCall]) -> None:
        for call in calls:
            self.session.emit(
                {
                    "kind": "tool",
                    "phase": "start",
                    "tool_call_id": call.id,
                    "function_name": call.name,
                    "args": dict(call.arguments),
                    "status": "pending",
                }
            )

    def _metadata(self, answer: Answer, broken: Mapping[str, str]) -> dict[str, Any]:
        metadata: dict[str, Any] = {"api": self.session.model.api or "chat"}
        if answer.id:
            metadata["response_id"] = bounded(answer.id, 200)
        if answer.usage_row is not None and len(repr(answer.usage_row)) <= USAGE_LIMIT:
            metadata["usage_reported"] = answer.usage_row
        if broken:
            metadata["invalid_arguments"] = dict(broken)
        return metadata

    def _failed(self, failure: CallFailedError, answer: Answer) -> AgentResult:
        partial = answer.joined("assistant")
        message = self._scrubbed(failure.message)
        error = self._scrubbed(failure.error)
        self.session.activity.model_turn_aborted(
            self._step, reason=f"{error}: {message}" if message else error, partial_text=partial
        )
        return AgentResult(
            text=partial,
            ok=False,
            error=error,
            usage=_usage_of_a_part(answer.usage(), Usage(unavailable=failure.gap)),
            status=failure.status,
            model=answer.model or self.model_id,
            infrastructure=failure.infrastructure,
            transient=failure.transient,
            retry_after=failure.retry_after,
            metadata=self._scrubbed({**failure.metadata, "message": message}),
        )

    def _ended(self, answer: Answer) -> AgentResult:
        """The call was cancelled: nobody will send it again, so that its part is the answer's record."""
        partial = answer.joined("assistant")
        self._emit_text(answer)
        self.session.activity.model_turn_aborted(self._step, reason="cancelled", partial_text=partial)
        return AgentResult(
            text=partial,
            ok=False,
            error="cancelled",
            usage=_usage_of_a_part(answer.usage(), Usage(unavailable="lost_on_timeout")),
            status="cancelled",
            model=answer.model or self.model_id,
        )

    def _emit_text(self, answer: Answer) -> None:
        """Text goes out once it is final: a call that is repeated must not show its text twice."""
        for channel, text in answer.told():
            self.session.emit({"kind": "text", "channel": channel, "text": text})

    @property
    def model_id(self) -> str:
        """The model that is asked for."""
        return self.session.model.id or self.default_model

    def _scrubbed(self, value: Any) -> Any:
        return masked(value, self.session.api_key, self.session.api_key_name)


def _call(row: Mapping[str, Any]) -> dict[str, Any]:
    """In the order in which it was sent, so that the conversation has the same bytes as before."""
    function = {name: row["function"][name] for name in ("name", "arguments")}
    return {"id": row["id"], "type": row["type"], "function": function}


def _phase_over() -> CallFailedError:
    """The phase's time is up. That is no fault of the provider's, and nothing to be repeated."""
    return CallFailedError(
        "wall_time_exceeded",
        False,
        "the time of the phase is up",
        status="timeout",
        gap="lost_on_timeout",
        infrastructure=False,
    )


def _usage_of_a_part(found: Usage, none: Usage) -> Usage:
    known = found.prompt_tokens is not None or found.completion_tokens is not None
    return replace(found, unavailable="partial") if known else none
