"""Sessions with the agents that the configuration binds to a task's roles.

The agent itself, its credentials and every limit stay with the parent process; the objects here ask
for turns and hand back what came of them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_ageval.sdk import _channel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

#: How many sessions were asked for, by the common part of their ids. For the whole process, because
#: a task may make as many `Agent` objects as it likes.
_asked: dict[str, int] = {}


def _next_session_id(profile_id: str, actor_id: str | None, environment: str | None) -> str:
    # Counted by the text and not by its parts: role "a" with actor "b_c" and role "a_b" with actor
    # "c" have the same text and must not get the same id.
    stem = f"sess_{profile_id}_{actor_id or 'default'}_{environment or 'main'}"
    _asked[stem] = _asked.get(stem, 0) + 1
    return f"{stem}_{_asked[stem]}"


@dataclass
class AgentSession:
    """One conversation with one role. Use it as ``async with agent.session("solver") as session``.

    It is opened by its first `invoke`. After `max_turns` invokes the session refuses more.
    """

    attempt_id: str
    profile_id: str
    max_turns: int = 8
    actor_id: str | None = None
    environment: str | None = None
    session_id: str = ""
    _turns: int = field(default=0, repr=False)
    _opened: bool = field(default=False, repr=False)
    _closed: bool = field(default=False, repr=False)
    _last_invocation: str | None = field(default=None, repr=False)
    _gate: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    #: Always None: a provider's own session cannot be taken over.
    provider_session_handle: None = None

    def __post_init__(self) -> None:
        if not self.session_id:
            self.session_id = _next_session_id(self.profile_id, self.actor_id, self.environment)

    async def invoke(
        self,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        request_id: str | None = None,
        **overrides: object,
    ) -> dict[str, Any]:
        """Take one turn and wait for its end.

        `tools` are function schemas in OpenAI's form; the task makes the calls. `messages` replaces
        the session's own history for this turn; the prompt goes out in any case. `request_id` names
        the turn across a resume; the default counts.

        Returns a dict with ``ok``, ``text`` (whole), ``structured`` (the text as JSON, or None),
        ``error``, ``tool_calls`` (``id``, ``name``, ``arguments``), ``invocation_id``, ``turn``,
        ``usage``. A refusal or an agent's failure is ``ok`` False with a token in ``error``, not an
        exception.

        Raises RuntimeError on a closed session and after `max_turns`, ValueError for other keyword
        arguments, TypeError for what is not JSON. Cancelling the caller cancels the turn.
        """
        if overrides:
            raise ValueError(
                f"invoke does not take {', '.join(sorted(overrides))}: the configuration decides"
            )
        if not isinstance(prompt, str):
            raise TypeError(f"the prompt must be text, not {type(prompt).__name__}")
        async with self._gate:
            turn = self._next_turn()
            refusal = await self._open()
        if refusal is not None:
            return self._reply(refusal, turn)
        named = request_id.strip() if isinstance(request_id, str) else ""
        request = named or f"req_{self.session_id}_turn_{turn}"
        payload = {
            "session_id": self.session_id,
            "request_id": request,
            "prompt": prompt,
            "tools": None if tools is None else list(tools),
            "messages": None if messages is None else list(messages),
            "turn": turn,
        }
        try:
            reply = await _channel.call("invoke", payload)
        except asyncio.CancelledError:
            cancel = {"session_id": self.session_id, "request_id": request}
            await asyncio.shield(_channel.call("cancel", cancel))
            raise
        self._last_invocation = reply.get("invocation_id") or self._last_invocation
        return self._reply(reply, turn)

    async def record_observation(
        self,
        tool_call_id: str,
        *,
        content: str,
        raw_output: Any = None,
        function_name: str | None = None,
        error: bool = False,
        invocation_id: str | None = None,
    ) -> dict[str, Any]:
        """Put what a tool of the task returned into the trajectory.

        It belongs to the last invoke, or to `invocation_id`. It asks no model and costs no turn.
        Returns ``{"ok", "error"}``. Raises RuntimeError on a closed session.
        """
        if self._closed:
            raise RuntimeError("session closed")
        if not self._opened:
            return {"ok": False, "error": "agent_session_unbound"}
        return await _channel.call(
            "record_observation",
            {
                "session_id": self.session_id,
                "tool_call_id": tool_call_id,
                "content": content,
                "error": bool(error),
                "invocation_id": invocation_id or self._last_invocation,
                "function_name": function_name,
                "raw_output": raw_output,
            },
        )

    async def close(self) -> None:
        """End the session. Calling it again does nothing."""
        async with self._gate:
            if self._closed:
                return
            self._closed = True
        if self._opened:
            await _channel.call("close", {"session_id": self.session_id})

    async def __aenter__(self) -> AgentSession:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _next_turn(self) -> int:
        if self._closed:
            raise RuntimeError("session closed")
        if self._turns >= self.max_turns:
            raise RuntimeError(
                f"this session was opened with max_turns={self.max_turns}; raise it in run.py, and "
                "limits.agent_invocations in task.yaml if need be"
            )
        self._turns += 1
        return self._turns

    async def _open(self) -> dict[str, Any] | None:
        """Open the session if it is not yet; the parent's refusal, or None."""
        if self._opened:
            return None
        reply = await _channel.call(
            "open",
            {
                "session_id": self.session_id,
                "profile_id": self.profile_id,
                "actor_id": self.actor_id,
                "environment": self.environment,
            },
        )
        if not reply.get("ok"):
            return {**reply, "error": reply.get("error") or "agent_session_unbound"}
        self._opened = True
        return None

    def _reply(self, reply: Mapping[str, Any], turn: int) -> dict[str, Any]:
        """The parent's reply, with every key that tasks rely on."""
        return {
            **reply,
            "ok": bool(reply.get("ok")),
            "text": reply.get("text") or "",
            "structured": reply.get("structured"),
            "error": reply.get("error"),
            "tool_calls": list(reply.get("tool_calls") or []),
            "invocation_id": reply.get("invocation_id"),
            "evidence_relative": reply.get("evidence_relative"),
            "usage": reply.get("usage"),
            "turn": turn,
            "provider_session_handle": None,
        }


@dataclass
class Agent:
    """Where a script gets its sessions: ``ctx.agent`` in run.py, ``inputs["agent"]`` in evaluator.py."""

    attempt_id: str

    def session(
        self,
        profile_id: str,
        *,
        max_turns: int = 8,
        actor_id: str | None = None,
        environment: str | None = None,
    ) -> AgentSession:
        """A new session with the role `profile_id`.

        The order of these calls names the sessions, so it should be the same each time the script
        runs. `actor_id` tells apart several who play one role; `environment` names the scoring box
        that a judge with hands works in (evaluate phase).
        Raises ValueError for a blank `profile_id`.
        """
        if not isinstance(profile_id, str) or not profile_id.strip():
            raise ValueError("profile_id must be text and not blank")
        actor = str(actor_id).strip() if actor_id is not None else ""
        box = str(environment).strip() if environment is not None else ""
        return AgentSession(
            attempt_id=self.attempt_id,
            profile_id=profile_id,
            max_turns=max_turns,
            actor_id=actor or None,
            environment=box or None,
        )
