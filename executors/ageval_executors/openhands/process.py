"""The worker in the box as JSON lines: what it says goes to one handler, what it prints is kept in part."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

from ageval_executors._text import encode_json, mend_json
from ageval_executors.acp.frames import LineSplitter, LineTooLongError
from ageval_executors.acp.wire import HeadTail, describe_exit
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_ageval.box import StdioTransport

#: Bytes of one line. An observation can carry a whole file.
MAX_LINE = 16 * 1024 * 1024


class WorkerProcess:
    """One worker. `on_line` is called for each of its lines, in order; `ended` is set when it is over."""

    def __init__(self, transport: StdioTransport, on_line: Callable[[dict[str, Any]], None]) -> None:
        self._transport = transport
        self._on_line = on_line
        self._stderr = HeadTail()
        #: Why nothing more comes.
        self.why = ""
        self.ended = asyncio.Event()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_stderr())]

    async def send(self, do: str, **fields: Any) -> None:
        """One line to the worker. One that is gone takes none; `ended` says so."""
        with contextlib.suppress(BrokenPipeError, ConnectionError, BoxError):
            await self._transport.write(encode_json({"do": do, **fields}) + b"\n")

    async def _read(self) -> None:
        splitter = LineSplitter(MAX_LINE)
        try:
            while chunk := await self._transport.read():
                for line in splitter.feed(chunk):
                    self._take(line)
            code = await self._transport.wait(5.0)
            self.why = f"the worker ended ({describe_exit(code)})"
        except LineTooLongError as error:
            self.why = str(error).replace("ACP message", "a line of the worker")
        except BoxError as error:
            self.why = str(error)
        finally:
            self.ended.set()

    def _take(self, line: bytes) -> None:
        try:
            found = json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return  # the worker's own lines are JSON: somebody else found the descriptor
        if isinstance(found, dict) and isinstance(found.get("is"), str):
            self._on_line(mend_json(found))

    async def _read_stderr(self) -> None:
        with contextlib.suppress(BoxError):
            while chunk := await self._transport.read_stderr():
                self._stderr.add(chunk)

    def last_lines(self) -> str:
        """What it printed last."""
        return self._stderr.last_lines(20)

    def printed(self) -> str:
        """What it printed, without its middle if that was much."""
        return self._stderr.text()

    async def stop(self) -> None:
        """End it and all that it started. Idempotent."""
        await self._transport.terminate()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.ended.set()


def usage_figures(row: Mapping[str, Any]) -> dict[str, int]:
    """The figures of a model call; the SDK has 0 for what the provider did not say."""
    names = {
        "prompt_tokens": "prompt_tokens",
        "completion_tokens": "completion_tokens",
        "cache_read_tokens": "cached_tokens",
        "cache_write_tokens": "cache_write_tokens",
        "reasoning_tokens": "reasoning_tokens",
    }
    return {
        ours: value
        for theirs, ours in names.items()
        if isinstance(value := row.get(theirs), int) and not isinstance(value, bool) and value > 0
    }
