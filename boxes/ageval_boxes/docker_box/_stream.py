"""The streams of a command in a container: one connection to the engine that both sides speak on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable

from ageval_boxes.docker_box._engine import Engine, unreachable
from pytest_ageval.errors import BoxError

_HEAD = 64 * 1024
_CHUNK = 256 * 1024
_STDERR = 2


class ExecStream:
    """An ``exec`` that has been started: its stdin, and stdout and stderr in frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, engine: Engine, exec_id: str) -> ExecStream:
        """Start the exec `exec_id`. Raises BoxError with the engine's words when it refuses."""
        try:
            if engine.socket is not None:
                reader, writer = await asyncio.open_unix_connection(engine.socket, limit=_CHUNK)
            else:
                reader, writer = await asyncio.open_connection(*engine.address, ssl=engine.tls, limit=_CHUNK)
        except OSError as error:
            raise unreachable(engine.host, error) from error
        body = json.dumps({"Detach": False, "Tty": False}).encode()
        head = (
            f"POST /v{engine.version}/exec/{exec_id}/start HTTP/1.1\r\nHost: docker\r\n"
            "Content-Type: application/json\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        try:
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status = int(answer.split(None, 2)[1])
            if status not in (101, 200):
                text = await asyncio.wait_for(reader.read(_HEAD), 5)
                raise BoxError("environment_exec_failed", _words(text))
        except (OSError, asyncio.IncompleteReadError) as error:
            writer.close()
            raise unreachable(engine.host, error) from error
        except BaseException:
            writer.close()
            raise
        return cls(reader, writer)

    async def pump(
        self,
        stdout: Callable[[bytes], Awaitable[None] | None],
        stderr: Callable[[bytes], Awaitable[None] | None],
    ) -> None:
        """Give every frame to its stream, until the engine closes the connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self._reader.readexactly(8)
                take = stderr if head[0] == _STDERR else stdout
                left = int.from_bytes(head[4:], "big")
                while left:
                    data = await self._reader.read(min(left, _CHUNK))
                    if not data:
                        return
                    left -= len(data)
                    waiting = take(data)
                    if waiting is not None:
                        await waiting

    async def write(self, data: bytes) -> None:
        """Write all of `data` to stdin; BrokenPipeError when the other side is gone."""
        view = memoryview(data)
        try:
            while view:
                if self._writer.is_closing():
                    raise BrokenPipeError("the process is gone or its stdin was closed")
                self._writer.write(view[:_CHUNK])
                view = view[_CHUNK:]
                await self._writer.drain()
        except (ConnectionError, RuntimeError) as error:
            raise BrokenPipeError(str(error)) from error

    def close_stdin(self) -> None:
        """Say that no more stdin comes. Idempotent. (TLS cannot say it: there the stream is closed.)"""
        if self._writer.is_closing():
            return
        if self._writer.can_write_eof():
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.write_eof()
        else:
            self._writer.close()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        transport = self._writer.transport
        transport.abort()


def _words(text: bytes) -> str:
    body = text.decode("utf-8", "replace").strip()
    with contextlib.suppress(ValueError):
        return str(json.loads(body[body.index("{") : body.rindex("}") + 1])["message"])
    return body
