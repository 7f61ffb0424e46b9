"""A session for an executor under test, with everything it says kept for the test to read."""

from __future__ import annotations

import asyncio
import json
import re
import socketserver
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import contextmanager
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


# -- OpenAI's forms, and servers that answer any bytes --------------------------------------------

APIS = ("chat", "responses")


def told_for(model, api="chat", *, stream=True, **more) -> Told:
    spec = ModelSpec(id="m-1", api=api, **more.pop("spec", {}))
    return Told(model=spec, base_url=model.base_url, options={"stream": stream}, **more)


@contextmanager
def raw_server(*answers: bytes):
    """Answers each connection with the next bytes, whatever is asked; keeps the requests."""
    got: list[bytes] = []
    rows = iter(answers)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += self.rfile.readline()
            length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])
            got.append(head + self.rfile.read(length))
            self.wfile.write(next(rows))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1", got
        finally:
            server.shutdown()
            thread.join()


def sse(*rows, done=True) -> bytes:
    body = b"".join(b"data: %s\n\n" % (r if isinstance(r, bytes) else json.dumps(r).encode()) for r in rows)
    if done:
        body += b"data: [DONE]\n\n"
    return http(body, "text/event-stream")


def http(body: bytes, kind="application/json", status="200 OK", extra="") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{extra}"
    return head.encode() + b"connection: close\r\n\r\n" + body


def delta(stop=None, **fields) -> dict:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": stop}]}
