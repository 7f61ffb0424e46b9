"""A process that opens or takes over a box for the tests of the contract.

It reads one `Order`, pickled and in base64, from the first line of stdin, and answers with one line on
stdout: `MARK` and a JSON object. A box stays open until a further line or the end of stdin.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import importlib.util
import json
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pytest_ageval.box import Box, BoxSpec
from pytest_ageval.errors import BoxError

#: What the line of the answer begins with: a vendor's library may print to stdout too.
MARK = "ageval-box-contract:"

#: Seconds that the commands of `Order.running` get to begin.
BEGIN_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Order:
    """What the process is to do with the class of box that `module` (or `file`) has as `name`.

    ``own``: start a box, or take over the one of `handle`; run `commands` to their ends; start `running`
    and leave them. ``reap``: with the labels of `spec`.
    """

    path: list[str]
    module: str
    file: str | None
    name: str
    spec: BoxSpec
    action: Literal["own", "reap"] = "own"
    handle: Mapping[str, Any] | None = None
    commands: Sequence[Sequence[str]] = ()
    running: Sequence[Sequence[str]] = ()


class Owner:
    """The process, seen from a test. `handle` is that of its box."""

    def __init__(self, box_class: type[Box], spec: BoxSpec, *, patience: float, **what: Any) -> None:
        module = sys.modules[box_class.__module__]
        order = Order(
            list(sys.path), module.__name__, getattr(module, "__file__", None), box_class.__qualname__, spec,
            **what,
        )  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._timer = threading.Timer(patience, self._process.kill)
        self._timer.start()
        self._in.write(base64.b64encode(pickle.dumps(order)) + b"\n")
        self._in.flush()
        self.answer = self._answer()
        self.handle: dict[str, Any] = self.answer.get("handle", {})

    def _answer(self) -> dict[str, Any]:
        for line in self._out:
            if line.startswith(MARK.encode()):
                found: dict[str, Any] = json.loads(line.removeprefix(MARK.encode()))
                return found
        self.kill()
        raise AssertionError("the process that should hold a box died, or its time was up")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()

    def stop(self) -> None:
        """Let it stop its box, and wait for its end."""
        self._in.close()
        self._process.wait()
        self._close()

    def kill(self) -> None:
        """SIGKILL: it can clean up nothing. Idempotent."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._close()

    def _close(self) -> None:
        self._timer.cancel()
        self._in.close()
        self._out.close()


def _load(order: Order) -> type[Box]:
    sys.path[:] = order.path
    try:
        module = importlib.import_module(order.module)
    except ImportError:
        # A test module that pytest imported under a name of its own.
        spec = importlib.util.spec_from_file_location(order.module, order.file or "")
        if spec is None or spec.loader is None:
            raise
        module = importlib.util.module_from_spec(spec)
        sys.modules[order.module] = module
        spec.loader.exec_module(module)
    found: Any = module
    for name in order.name.split("."):
        found = getattr(found, name)
    box_class: type[Box] = found
    return box_class


async def _own(box: Box, order: Order, say: Callable[[dict[str, Any]], None]) -> None:
    try:
        if order.handle is None:
            await box.start()
        else:
            await box.attach(order.handle)
        for argv in order.commands:
            done = await box.exec(argv)
            if not done.ok:
                raise RuntimeError(f"{argv}: {done.exit_code}: {done.stderr}")
        tasks = [asyncio.ensure_future(box.exec(argv)) for argv in order.running]
        if tasks:
            await asyncio.sleep(BEGIN_SECONDS)
        say({"handle": box.handle()})
        await asyncio.to_thread(sys.stdin.readline)
    finally:
        await box.stop()


def main() -> None:
    """Do what stdin says."""
    order: Order = pickle.loads(base64.b64decode(sys.stdin.readline()))  # noqa: S301 - from our own test

    def say(answer: dict[str, Any]) -> None:
        sys.stdout.write(f"{MARK}{json.dumps(answer)}\n")
        sys.stdout.flush()

    box_class = _load(order)
    if order.action == "reap":
        say({"removed": box_class.reap(order.spec.labels)})
        return
    try:
        asyncio.run(_own(box_class(order.spec), order, say))
    except BoxError as error:
        say({"error": error.title, "message": error.message})
