"""Drive `AcpExecutor` against a scripted agent in a real local box."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from http_kit import neutral

from ageval_boxes.local import LocalBox
from ageval_executors.acp import AcpExecutor
from pytest_ageval.box import WORKSPACE, BoxSpec
from pytest_ageval.executor import AgentResult, ModelSpec, Session

AGENTS = Path(__file__).parents[2] / "support" / "acp_agents"


@dataclass
class Log:
    """An activity scope and an event sink that remember."""

    steps: list[tuple[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.steps.append((name, (args, kwargs)))

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    @property
    def warnings(self) -> list[str]:
        rows = [event["raw"] for event in self.of_kind("opaque")]
        return [r["message"] for r in rows if isinstance(r, dict) and r.get("type") == "warning"]


@contextlib.asynccontextmanager
async def local_box(work: Path, isolation: str = "none") -> AsyncIterator[LocalBox]:
    spec = BoxSpec(
        kind="local",
        attempt_id="att-1",
        task_id="t",
        work_dir=work / "box",
        options={"isolation": isolation},
    )
    box = LocalBox(spec)
    try:
        await box.start()
        box.expose(AGENTS)
        yield box
    finally:
        await box.stop()


def agent_options(scenario: str, argument: str = "", **more: Any) -> dict[str, Any]:
    script = AGENTS / "raw_agent.py"
    return {"command": [sys.executable, "-u", str(script), scenario, argument], **more}


def make_session(box: LocalBox | None, log: Log, options: dict[str, Any], **more: Any) -> Session:
    async def nobody(request: Any) -> str | None:
        raise AssertionError("the policy did not say ask")

    fields: dict[str, Any] = {
        "session_id": "sess_solver_default_main_1",
        "role": "solver",
        "actor": None,
        "model": ModelSpec(),
        "base_url": None,
        "api_key": None,
        "api_key_name": None,
        "options": options,
        "box": box,
        "task_root": Path("/nonexistent"),
        "activity": log,
        "emit": lambda event: log.events.append(neutral(event)),
        "remaining": lambda: None,
        "ask": nobody,
    }
    return Session(**{**fields, **more})


@dataclass
class Played:
    result: AgentResult
    log: Log
    executor: AcpExecutor
    workspace: Path
    seconds: float


Act = Callable[[AcpExecutor], Coroutine[Any, Any, AgentResult]]


async def _one_prompt(executor: AcpExecutor) -> AgentResult:
    return await executor.invoke("do it")


def play(work: Path, scenario: str, argument: str = "", *, act: Act = _one_prompt, **more: Any) -> Played:
    """Open a session with one scripted agent, act (by default: one prompt), close."""
    isolation = more.pop("isolation", "none")
    options = more.pop("options", {})

    async def run() -> Played:
        log = Log()
        async with local_box(work, isolation) as box:
            chosen = options if "command" in options else agent_options(scenario, argument, **options)
            executor = AcpExecutor(make_session(box, log, chosen, **more))
            loop = asyncio.get_running_loop()
            try:
                await executor.open()
                started = loop.time()
                result = await asyncio.wait_for(act(executor), 60)
                seconds = loop.time() - started
            finally:
                await executor.close()
            await box.download(WORKSPACE, work / "workspace")
        return Played(result, log, executor, work / "workspace", seconds)

    return asyncio.run(run())
