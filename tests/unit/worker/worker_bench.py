"""A bench for scripts: writes a task into a directory, runs its script in a real worker."""

from __future__ import annotations

import asyncio
import textwrap
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pytest_ageval.worker.client import Handler, ScriptSpec, Worker, WorkerOutcome, WorkerPool


@dataclass
class Bench:
    """A data set with one task in `task`; `calls` are the operations that the default handler got."""

    root: Path
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def task(self) -> Path:
        return self.root / "tasks" / "t"

    @property
    def workspace(self) -> Path:
        return self.root / "box" / "workspace"

    @property
    def artifacts(self) -> Path:
        return self.root / "box" / "artifacts"

    def write(self, name: str, source: str) -> Path:
        path = self.task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return path

    def spec(self, source: str | None, kind: Literal["run", "evaluate"] = "run", **more: Any) -> ScriptSpec:
        name = "run.py" if kind == "run" else "evaluator.py"
        script = self.task / name if source is None else self.write(name, source)
        for directory in (self.workspace, self.artifacts):
            directory.mkdir(parents=True, exist_ok=True)
        values: dict[str, Any] = {
            "kind": kind,
            "script": script,
            "function": kind,
            "task_root": self.task,
            "dataset_root": self.root,
            "workspace": self.workspace,
            "artifacts": self.artifacts,
            "stdout": self.root / "box" / "stdout.txt",
            "stderr": self.root / "box" / "stderr.txt",
            "attempt_id": "attempt_1",
            "trial_id": "trial_1",
            "run_id": "run_1",
        }
        return ScriptSpec(**{**values, **more})

    async def handler(self, op: str, payload: dict[str, Any]) -> dict[str, Any]:
        """An agent that repeats the prompt."""
        self.calls.append((op, payload))
        if op == "scoring_exec":
            return {"exit_code": 3, "stdout": " ".join(payload["argv"]), "stderr": "", "truncated": False}
        if op != "invoke":
            return {"ok": True}
        return {
            "ok": True,
            "text": payload["prompt"],
            "structured": None,
            "error": None,
            "tool_calls": [],
            "invocation_id": f"inv_{len(self.calls)}",
        }

    def run(
        self,
        source: str | None,
        kind: Literal["run", "evaluate"] = "run",
        *,
        handler: Handler | None = None,
        **more: Any,
    ) -> WorkerOutcome:
        """Run a script to its end."""
        spec = self.spec(source, kind, **more)

        async def one(pool: WorkerPool) -> WorkerOutcome:
            worker = await pool.start(spec, handler or self.handler)
            return await worker.wait()

        return self.with_pool(one)

    def value(self, source: str | None, kind: Literal["run", "evaluate"] = "evaluate", **more: Any) -> Any:
        """What a script returned; fails when it did not return."""
        outcome = self.run(source, kind, **more)
        assert outcome.status == "returned", outcome
        return outcome.value

    def with_pool(self, body: Callable[[WorkerPool], Awaitable[Any]]) -> Any:
        """Run a coroutine function with a pool that is closed afterwards."""

        async def main() -> Any:
            pool = WorkerPool()
            try:
                return await asyncio.wait_for(body(pool), 60)
            finally:
                await pool.close()

        return asyncio.run(main())

    async def until_written(self, name: str, worker: Worker | None = None) -> str:
        """Wait until the script has written this file of the workspace."""
        path = self.workspace / name
        deadline = time.monotonic() + 10
        while not (path.is_file() and path.read_text()):
            assert time.monotonic() < deadline, (name, worker and (self.root / "box/stderr.txt").read_text())
            await asyncio.sleep(0.01)
        return path.read_text()


def is_running(pid: int) -> bool:
    """A process that has not ended (a zombie has)."""
    with suppress(FileNotFoundError, ProcessLookupError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
