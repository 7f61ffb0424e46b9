"""Bytes to JSON-RPC messages: the part of the wire that must survive anything an agent prints."""

from __future__ import annotations

import json
from typing import Any

#: Longest accepted line, in bytes. Tool results can carry whole files, so it is generous.
MAX_LINE = 64 * 1024 * 1024

#: Levels of nesting that a message may have; whoever writes it down again must not run out of stack.
MAX_DEPTH = 200

#: Characters kept of one line that is not a message.
MAX_QUOTE = 500


class LineTooLongError(Exception):
    """A line exceeds the cap; `size` is how many bytes had arrived when that was seen."""

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(f"ACP message > {limit} bytes ({size} bytes without an end of line)")


class LineSplitter:
    r"""Splits a byte stream on b"\n" alone, wherever the pipe has cut it.

    Only new bytes are searched, so a long line costs linear time. Other characters that Python
    takes for line ends (U+2028, \x0b, ...) are legal inside JSON strings and are left alone.
    """

    def __init__(self, limit: int = MAX_LINE) -> None:
        self.limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without their ends. Raises `LineTooLongError`."""
        *ended, rest = chunk.split(b"\n")
        lines = []
        for piece in ended:
            self._add(piece)
            lines.append(b"".join(self._parts))
            self._parts, self._size = [], 0
        if rest:
            self._add(rest)
        return lines

    def flush(self) -> bytes:
        """What is left of a line that never ended."""
        rest = b"".join(self._parts)
        self._parts, self._size = [], 0
        return rest

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self.limit:
            raise LineTooLongError(self._size, self.limit)
        self._parts.append(piece)


def parse_message(line: bytes) -> dict[str, Any] | None:
    """The JSON-RPC message in `line`, or None if it is anything else (a banner, a log record, ``42``).

    Bytes that are not UTF-8 become U+FFFD, lone surrogates a question mark, NaN and infinities null,
    so that what is returned can be written anywhere.
    """
    text = line.decode("utf-8", "replace")
    try:
        found = json.loads(text, parse_constant=lambda _: None)
        if "\\ud" in text or "\\uD" in text:
            found = _without_surrogates(found)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or _too_deep(found, text):
        return None
    return found if _is_request(found) or _is_response(found) else None


def _too_deep(value: object, text: str) -> bool:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not inner:
            return False
        level = inner
    return True


def _is_request(message: dict[str, Any]) -> bool:
    return isinstance(message.get("method"), str) and _is_id(message.get("id"))


def _is_response(message: dict[str, Any]) -> bool:
    if "method" in message or "id" not in message or not _is_id(message["id"]):
        return False
    if "error" in message and not isinstance(message["error"], dict):
        # Keep a malformed error as an error: the request that waits for it must end.
        message["error"] = {"code": -32603, "message": str(message["error"])}
    return "result" in message or "error" in message


def _is_id(value: object) -> bool:
    return value is None or (isinstance(value, int | str | float) and not isinstance(value, bool))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


def quote(line: bytes) -> str:
    """`line` for a log or an error message: text, cut to `MAX_QUOTE` characters."""
    text = line[: 4 * MAX_QUOTE].decode("utf-8", "replace").strip()
    return text if len(text) <= MAX_QUOTE else text[:MAX_QUOTE] + "..."
