"""An agent that is a command: it gets the prompt on its standard input and works in the workspace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pytest_ageval.executor import AgentResult, Executor


class CommandOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`command`: the program and its arguments."""

    command: list[str] = msgspec.field(default_factory=lambda: ["sh"])


class CommandExecutor(Executor):
    """Runs the command once for each prompt. What it prints is the answer; another exit code than 0 is none."""

    kind = "lab"
    requires_box = frozenset({"exec"})
    Options = CommandOptions

    async def invoke(
        self,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> AgentResult:
        """One run of the command, at most as long as the phase still lasts."""
        assert self.session.box is not None  # requires_box says so
        done = await self.session.box.exec(
            self.options.command, stdin=prompt.encode(), timeout=self.session.remaining()
        )
        self.session.emit({"kind": "text", "channel": "assistant", "text": done.stdout})
        if done.timed_out:
            return AgentResult(text=done.stdout, ok=False, status="timeout", error="command_timeout")
        if not done.ok:
            error = f"command_failed:{done.exit_code}"
            return AgentResult(text=done.stderr, ok=False, status="crashed", error=error, infrastructure=True)
        return AgentResult(text=done.stdout)
