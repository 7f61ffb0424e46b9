"""Drive a loop executor in a real local box against the scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acp_kit import Log, local_box
from http_kit import KEY

from pytest_ageval.executor import AgentResult, Executor, ModelSpec, Session, Usage


@dataclass
class Bench:
    """One executor in one box. `called` are the usages that were told on the way."""

    kind: type[Executor]
    base_url: str
    work: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    log: Log = field(default_factory=Log)
    called: list[Usage] = field(default_factory=list)
    budget: Callable[[], str | None] = lambda: None
    remaining: Callable[[], float | None] = lambda: None
    isolation: str = "none"
    key: str = KEY

    def session(self, box: Any) -> Session:
        return Session(
            session_id="sess_solver_default_main_1",
            role="solver",
            actor=None,
            model=ModelSpec(id="m-1", **self.spec),
            base_url=self.base_url,
            api_key=self.key,
            api_key_name="TEST_KEY",
            options=dict(self.options),
            box=box,
            task_root=Path("/nowhere"),
            activity=self.log,
            emit=lambda event: self.log.events.append(dict(event)),
            remaining=self.remaining,
            ask=None,  # type: ignore[arg-type]
            refuse_call=self.budget,
            called=self.called.append,
        )

    def run(self, work: Callable[[Any, Any], Coroutine[Any, Any, Any]], seconds: float = 60) -> Any:
        """Open the executor in a box, let `work(executor, box)` use it, and close both."""

        async def main() -> Any:
            async with local_box(self.work, self.isolation) as box:
                await self.kind.prepare(self.session(box))
                executor = self.kind(self.session(box))
                await executor.open()
                try:
                    return await asyncio.wait_for(work(executor, box), seconds)
                finally:
                    await executor.close()

        return asyncio.run(main())

    def ask(self, *prompts: str) -> list[AgentResult]:
        """One invoke for each prompt."""

        async def work(executor: Executor, box: Any) -> list[AgentResult]:
            return [await executor.invoke(prompt) for prompt in prompts]

        return self.run(work)

    def file(self, name: str) -> Path:
        """A file of the workspace, while the box is open."""
        return self.work / "box" / "box" / "workspace" / name

    def outputs(self) -> list[str]:
        """What the commands gave back, in order."""
        rows = [event for event in self.log.of_kind("tool") if event["phase"] == "update"]
        return [str(event.get("content")) for event in rows]


async def until(found: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for something that happens in another process."""
    async with asyncio.timeout(seconds):
        while not found():  # noqa: ASYNC110 - nobody sets an event for us
            await asyncio.sleep(0.02)
