"""The executor ``acp-oneshot``: a coding agent over ACP that is started anew for every invoke."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ageval_executors.acp import AcpExecutor
from ageval_executors.acp.launch import resolve_key
from ageval_executors.acp.peer import require_library
from ageval_executors.acp.results import dead_result, over_result
from pytest_ageval.errors import ExecutorError
from pytest_ageval.executor import AgentResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_ageval.executor import Session


class AcpOneshotExecutor(AcpExecutor):
    """As ``acp``, with a new process and a new native session for each turn.

    An agent knows nothing of earlier turns but what is in the workspace and in its HOME. That suits
    tasks which ask many independent questions, and agents that leak or slow down over a long session.
    The start counts into the turn's time.
    """

    kind: ClassVar[str] = "acp-oneshot"
    resumable: ClassVar[bool] = False
    conversational: ClassVar[bool] = False

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._inner: AcpExecutor | None = None
        self._opening: asyncio.Task[None] | None = None
        self._count = 0
        self._closed = False

    async def open(self) -> None:
        """Refuse what every turn would refuse; nothing is started."""
        require_library()
        self._check_policy()
        resolve_key(self.session, self.entry)
        await self._ensure_runtime(may_install=False)

    def resume_token(self) -> dict[str, Any] | None:
        """None: a turn leaves nothing that could be continued."""
        return None

    async def resume(self, token: Mapping[str, Any]) -> None:
        """Not possible: ExecutorError ``resume_unsupported``."""
        raise ExecutorError("resume_unsupported", f"sessions of {self.kind} cannot be continued")

    async def invoke(
        self,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> AgentResult:
        """Start the agent, one prompt turn, end the agent."""
        if self._closed:
            return dead_result("the session is closed")
        self._count += 1
        raw = self.session.raw_dir
        session = self.session if raw is None else replace(self.session, raw_dir=raw / f"turn-{self._count}")
        inner = self._inner = AcpExecutor(session)
        try:
            failed = await self._open(inner)
            return failed or await inner.invoke(prompt, tools=tools, messages=messages)
        finally:
            self._inner = None
            await inner.close()

    async def _open(self, inner: AcpExecutor) -> AgentResult | None:
        """None: it is open. An agent that does not start is a failure of the turn, not of the session."""
        left = self.session.remaining()
        if left is not None and left <= 0:
            return over_result()
        self._opening = opening = asyncio.ensure_future(inner.open())
        try:
            await opening
        except ExecutorError as error:
            return replace(
                dead_result(error.message), error=f"{error.title}: {error.message}", repeatable=True
            )
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return AgentResult(ok=False, error="acp_cancelled", status="cancelled")
        finally:
            self._opening = None
        return None

    async def cancel(self) -> None:
        """End the running turn, or its agent's start."""
        if self._opening is not None:
            self._opening.cancel()
        elif self._inner is not None:
            await self._inner.cancel()

    async def close(self) -> None:
        """End the running turn and its agent. Idempotent."""
        self._closed = True
        await self.cancel()
        if self._inner is not None:
            await self._inner.close()
