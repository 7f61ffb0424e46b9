"""Server-sent events, as model APIs use them.

A reader of our own, since it is small and the lines of `httpx` and of ``str.splitlines`` also end at
characters such as U+2028, which JSON may hold unescaped.
"""

from __future__ import annotations

from collections.abc import Iterator


class EventReader:
    """Bytes in, the data of whole events out. Comments and fields other than ``data`` are passed over."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The data of each event that `chunk` completes."""
        if b"\n" not in chunk:
            self._rest += chunk
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            yield from self._line(line.removesuffix(b"\r"))

    def flush(self) -> Iterator[str]:
        """The data of an event that the stream ended without closing."""
        yield from self._line(self._rest.removesuffix(b"\r"))
        self._rest = b""
        yield from self._line(b"")

    def _line(self, line: bytes) -> Iterator[str]:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            yield b"\n".join(self._data).decode("utf-8", "replace")
            self._data = []
