"""A session for an executor under test, with everything it says kept for the test to read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pytest_ageval.evidence import events
from pytest_ageval.executor import AgentResult, Executor, ModelSpec, Session

T = TypeVar("T")
KEY = "sk-test-0123456789abcdef"


def neutral(event: Mapping[str, Any]) -> dict[str, Any]:
    """`event`, which must be one of ``ageval.trajectory.event/1``."""
    events.check(dict(event))
    return dict(event)


class Steps:
    """An activity scope that keeps its calls: ``(name, step, arguments)``."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        def keep(step: Any, **more: Any) -> None:
            self.calls.append((name, step, more))

        return keep

    def named(self, name: str) -> list[dict[str, Any]]:
        return [more for found, _, more in self.calls if found == name]


class Told:
    """A session with what was emitted and logged."""

    def __init__(self, **given: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.steps = Steps()
        fields: dict[str, Any] = {
            "session_id": "sess_solver_default_main_1",
            "role": "solver",
            "actor": None,
            "model": ModelSpec(id="m-1"),
            "base_url": None,
            "api_key": KEY,
            "api_key_name": "TEST_KEY",
            "options": {},
            "box": None,
            "task_root": Path("/nowhere"),
            "remaining": lambda: None,
            "ask": None,
        }
        self.session = Session(
            activity=self.steps,
            emit=lambda event: self.events.append(neutral(event)),
            **{**fields, **given},
        )

    @property
    def text(self) -> str:
        """Everything that left the executor, as one text: a secret must not be in it."""
        return json.dumps([self.events, self.steps.calls], default=repr)


def drive(
    kind: type[Executor],
    work: Callable[[Any], Coroutine[Any, Any, T]],
    told: Told,
) -> T:
    """Open an executor, let `work` use it, and close it."""

    async def run() -> T:
        executor = kind(told.session)
        await executor.open()
        try:
            return await asyncio.wait_for(work(executor), 20)
        finally:
            await executor.close()

    return asyncio.run(run())


def ask(kind: type[Executor], told: Told, prompt: str = "hello", **more: Any) -> AgentResult:
    """One invoke."""

    async def work(executor: Executor) -> AgentResult:
        return await executor.invoke(prompt, **more)

    return drive(kind, work, told)


def leaks(key: str, told: Told, *results: AgentResult) -> bool:
    """The key stands in something that goes into evidence."""
    return key in told.text or any(key in repr(result) for result in results)


ADD: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
