"""Reading an answer while it passes: usage, stop reason, whether it is whole. Never in its way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pytest_ageval.gateway.wires import GENERATING, Wire, unpacked

#: Bytes of one event, and of an answer that is not a stream, that are read.
MAX_EVENT = 16 * 1024 * 1024
MAX_DOCUMENT = 64 * 1024 * 1024

#: Characters of an error's text that are kept.
ERROR_TEXT = 500


class Reading:
    """Takes an answer's bytes after they were passed on. `feed` as they come, then `end` once.

    `failure` says what is wrong with an answer that came with a good status: ``garbage`` (not the
    API's), ``provider_error`` (an error within the stream), ``cut`` (no end marker), or None.
    """

    def __init__(self, wire: Wire, status: int, content_type: str, encoding: str | None) -> None:
        self.wire = wire
        self.status = status
        self.usage: dict[str, Any] | None = None
        self.stop_reason: str | None = None
        self.model: str | None = None
        self.failure: str | None = None
        self.error: str = ""
        self.whole = False
        self._stream = "event-stream" in content_type.lower()
        self._type = content_type
        self._encoding = encoding
        self._held = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._over = False
        self._broken = False
        self._events = 0

    # -- bytes -----------------------------------------------------------------------------------

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the body."""
        if self._over or (self.wire not in GENERATING and self.status < 400):
            return
        if not self._stream or self._encoding not in (None, "", "identity"):
            self._held += chunk
            self._over = len(self._held) > MAX_DOCUMENT
            return
        if b"\n" not in chunk:
            self._held += chunk
            if len(self._held) > MAX_EVENT:
                self._over = True
            return
        *lines, rest = (bytes(self._held) + chunk).split(b"\n")
        self._held = bytearray(rest)
        for line in lines:
            self._line(line.removesuffix(b"\r"))

    def _line(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._size += len(line)
            if self._size <= MAX_EVENT:
                self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            data, self._data, self._size = b"\n".join(self._data), [], 0
            self._event(data)

    def _event(self, data: bytes) -> None:
        self._events += 1
        if data.strip() == b"[DONE]":
            self.whole = True
            return
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            self._broken = True
            return
        if isinstance(found, Mapping):
            self._take(found)

    def end(self, *, cut: bool = False) -> None:
        """Nothing more comes; `cut`: the connection broke."""
        if self.wire not in GENERATING and self.status < 400:
            self.failure = "cut" if cut else None
            return
        if self._stream and self._encoding in (None, "", "identity") and self.status < 400:
            self._line(bytes(self._held).removesuffix(b"\r"))
            self._line(b"")
        else:
            self._document()
        if self.status >= 400:
            return
        if self.failure is None and not self.whole and not self._over:
            garbage = not cut and (self._broken or not self._stream or self._events == 0)
            self.failure = "garbage" if garbage else "cut"
            if garbage and not self.error:
                self.error = f"status {self.status} with {self._type or 'no type'}: not an answer of the API"

    def _document(self) -> None:
        """An answer in one piece, or an error's body."""
        try:
            body = unpacked(bytes(self._held), self._encoding)
        except ValueError:
            self._over = True
            return
        if self._stream and self.status < 400:  # a stream that came packed
            for line in body.split(b"\n"):
                self._line(line.removesuffix(b"\r"))
            self._line(b"")
            return
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            if self.status >= 400:
                self.error = body[: 4 * ERROR_TEXT].decode("utf-8", "replace").strip()[:ERROR_TEXT]
            return
        # streamGenerateContent without alt=sse is one array.
        for row in found if isinstance(found, list) else [found]:
            if isinstance(row, Mapping):
                self._take(row)

    # -- what it says ----------------------------------------------------------------------------

    def _take(self, row: Mapping[str, Any]) -> None:
        if self._failed(row):
            return
        if self.wire == "chat":
            self._chat(row)
        elif self.wire == "responses":
            self._responses(row)
        elif self.wire == "anthropic":
            self._anthropic(row)
        elif self.wire == "gemini":
            self._gemini(row)

    def _failed(self, row: Mapping[str, Any]) -> bool:
        """An error object, alone, in a stream, or in a failed response."""
        inner = row.get("response")
        error = row.get("error") or (inner.get("error") if isinstance(inner, Mapping) else None)
        kind = row.get("type")
        failed = kind in ("error", "response.failed") or row.get("status") == "failed"
        if not failed and not error:
            return False
        if isinstance(inner, Mapping):
            self._usage(inner.get("usage"))
        row = error if isinstance(error, Mapping) else row
        words = [row.get(name) for name in ("code", "type", "status", "message")]
        if isinstance(error, str):
            words = [error]
        text = ": ".join(dict.fromkeys(str(word) for word in words if word not in (None, "", "error")))
        self.error = text[:ERROR_TEXT]
        if self.status < 400:
            self.failure = "provider_error"
        return True

    def _usage(self, found: Any) -> None:
        if isinstance(found, Mapping):
            known = {name: value for name, value in found.items() if value is not None}
            self.usage = {**(self.usage or {}), **known}

    def _name(self, row: Mapping[str, Any], key: str = "model") -> None:
        if isinstance(row.get(key), str):
            self.model = row[key][:200]

    def _chat(self, row: Mapping[str, Any]) -> None:
        self._usage(row.get("usage"))
        self._name(row)
        choices = row.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, Mapping) and isinstance(choice.get("finish_reason"), str):
                self.stop_reason, self.whole = choice["finish_reason"][:80], True
            elif not self._stream and isinstance(choice, Mapping) and "message" in choice:
                self.whole = True

    def _responses(self, row: Mapping[str, Any]) -> None:
        inner = row.get("response")
        found = inner if isinstance(inner, Mapping) else row
        self._name(found)
        if row.get("type") not in (None, "response.completed", "response.incomplete"):
            return
        if isinstance(found.get("output"), list) or found.get("status") in ("completed", "incomplete"):
            self.whole = True
            self._usage(found.get("usage"))
            details = found.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, Mapping) else None
            self.stop_reason = str(reason or found.get("status") or "completed")[:80]

    def _anthropic(self, row: Mapping[str, Any]) -> None:
        kind = row.get("type")
        if kind == "message_start" and isinstance(row.get("message"), Mapping):
            self._usage(row["message"].get("usage"))
            self._name(row["message"])
        elif kind == "message_delta":
            self._usage(row.get("usage"))
            delta = row.get("delta")
            if isinstance(delta, Mapping) and isinstance(delta.get("stop_reason"), str):
                self.stop_reason = delta["stop_reason"][:80]
        elif kind == "message_stop":
            self.whole = True
        elif kind == "message" and isinstance(row.get("content"), list):
            self.whole = True
            self._usage(row.get("usage"))
            self._name(row)
            if isinstance(row.get("stop_reason"), str):
                self.stop_reason = row["stop_reason"][:80]

    def _gemini(self, row: Mapping[str, Any]) -> None:
        self._usage(row.get("usageMetadata"))
        self._name(row, "modelVersion")
        candidates = row.get("candidates")
        for candidate in candidates if isinstance(candidates, list) else ():
            if isinstance(candidate, Mapping) and isinstance(candidate.get("finishReason"), str):
                self.stop_reason, self.whole = candidate["finishReason"][:80], True
        blocked = row.get("promptFeedback")
        if isinstance(blocked, Mapping) and blocked.get("blockReason"):
            self.stop_reason, self.whole = str(blocked["blockReason"])[:80], True
