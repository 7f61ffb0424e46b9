"""An agent of your own that asks a model, and keeps what the protocol asks of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pytest_ageval.executor import AgentResult, AgentStatus, Executor, Session, Usage, UsageGap

STATUS: dict[str, AgentStatus] = {"stop": "completed", "length": "limit", "content_filter": "refused"}


class AskingExecutor(Executor):
    """One POST of the whole conversation to ``<base_url>/chat/completions`` for each invoke."""

    kind = "asking"
    supported_model_fields = frozenset({"timeout"})
    requires_model = True
    default_api_key_name: ClassVar[str] = "OPENAI_API_KEY"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.history: list[dict[str, Any]] = []
        self.call: asyncio.Task[AgentResult] | None = None
        self.cancelled = self.closed = False
        self.step = 0

    async def invoke(
        self,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> AgentResult:
        """The answer to `prompt` after all that was said before. A failure is returned, never raised."""
        if self.closed:
            return AgentResult(ok=False, error="session_closed", status="crashed", infrastructure=True)
        await self.session.pace()
        left = self.session.remaining()
        if left == 0:
            return AgentResult(ok=False, error="wall_time_exceeded", status="timeout")
        question = {"role": "user", "content": writable(prompt)}
        self.step += 1
        self.session.activity.model_turn_started(self.step, delta_messages=[question])
        self.cancelled = False
        self.call = asyncio.ensure_future(self.ask([*self.history, question], left))
        try:
            result = await self.call
        except asyncio.CancelledError:
            self.call.cancel()
            self.session.activity.model_turn_aborted(self.step, reason="cancelled")
            if not self.cancelled:
                raise  # it is the caller that was cancelled
            usage = Usage(unavailable="lost_on_timeout")
            return AgentResult(ok=False, error="cancelled", status="cancelled", usage=usage)
        if not result.ok:
            self.session.activity.model_turn_aborted(self.step, reason=str(result.error))
            return result
        self.session.activity.model_turn_completed(self.step, text=result.text, usage=result.usage)
        self.session.emit({"kind": "text", "channel": "assistant", "text": result.text})
        answer = [{"role": "assistant", "content": result.text}] if result.text else []
        self.history += [question, *answer]
        return result

    async def ask(self, messages: list[dict[str, Any]], left: float | None) -> AgentResult:
        """One call. Every way in which it can fail is a token in `error`."""
        import aiohttp  # here: nobody who does not use this executor pays for the import

        limit = self.session.model.timeout or 600.0
        phase_ends = left is not None and left < limit
        body = {"model": self.session.model.id, "messages": messages}
        headers = {"authorization": f"Bearer {self.session.api_key}"}
        try:
            async with asyncio.timeout(left if phase_ends else limit):
                url = f"{self.session.base_url}/chat/completions"
                async with (
                    aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as client,
                    client.post(url, json=body, headers=headers, allow_redirects=False) as response,
                ):
                    status, content = response.status, await response.read()
                    wait = response.headers.get("retry-after", "")
        except TimeoutError:
            error = "wall_time_exceeded" if phase_ends else "model_timeout"
            return failure(error, "timeout", infrastructure=not phase_ends, transient=not phase_ends)
        except (aiohttp.ClientError, OSError) as error:
            # Its class, not its text: that may hold the address, or what the server sent.
            return failure(f"TransportError:{type(error).__name__}", transient=True)
        if status != 200:
            after = float(wait) if wait.isdecimal() else None
            passes = status in (408, 409, 429) or status >= 500
            return failure(f"HTTPError:{status}", transient=passes, retry_after=after)
        try:
            found = json.loads(content)
            choice = found["choices"][0]
            text = choice["message"]["content"] or ""
        except (ValueError, KeyError, TypeError, IndexError):
            return failure("ProtocolError", transient=True)
        reason = choice.get("finish_reason")
        return AgentResult(
            text=writable(text),
            usage=usage_of(found.get("usage") or {}),
            stop_reason=reason,
            status=STATUS.get(reason, "unknown"),
            model=found.get("model"),
        )

    async def cancel(self) -> None:
        """Drop the running call."""
        if self.call is not None and not self.call.done():
            self.cancelled = True
            self.call.cancel()

    async def close(self) -> None:
        """Nothing may run after it, and it may be called twice."""
        self.closed = True
        await self.cancel()


def writable(text: str) -> str:
    """`text` without halves of surrogate pairs, which JSON can carry and no encoder takes."""
    return text.encode("utf-8", "replace").decode()


def failure(
    error: str, status: AgentStatus = "crashed", *, infrastructure: bool = True, **more: Any
) -> AgentResult:
    """There is no answer."""
    return AgentResult(ok=False, error=error, status=status, infrastructure=infrastructure, **more)


def usage_of(row: Mapping[str, Any]) -> Usage:
    """What the provider reported; what it left out stays None, and never becomes zero."""
    prompt, completion = row.get("prompt_tokens"), row.get("completion_tokens")
    if prompt is None and completion is None:
        return Usage(unavailable="not_reported")
    gap: UsageGap | None = "partial" if None in (prompt, completion) else None
    return Usage(prompt_tokens=prompt, completion_tokens=completion, source="asking", unavailable=gap)


def pytest_ageval_executors() -> dict[str, type[Executor]]:
    """``--agent asking``."""
    return {AskingExecutor.kind: AskingExecutor}
