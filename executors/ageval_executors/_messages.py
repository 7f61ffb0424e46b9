"""Anthropic Messages: chat-style messages and tools translated there, and the answer back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ageval_executors._answer import Answer, RawCall
from ageval_executors._conversation import MessagesError, message_text, tool_function
from ageval_executors._failure import error_in_answer
from ageval_executors._text import parse_arguments
from ageval_executors._usage import anthropic_usage

if TYPE_CHECKING:
    from ageval_executors._conversation import Entry, Message
    from pytest_ageval.executor import AgentStatus, Usage

_STATUS: Mapping[str, AgentStatus] = {
    "end_turn": "completed",
    "stop_sequence": "completed",
    "tool_use": "completed",
    "max_tokens": "limit",
    "model_context_window_exceeded": "limit",
    "refusal": "refused",
}


def messages_body(entries: Sequence[Entry], tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """The request without the model and its parameters. Raises `MessagesError`.

    System messages move to the field of their own that this API has. Neighbours of one role become one
    message, results of tools first, since a result must stand right after its call.
    """
    system: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for entry in entries:
        role = entry.message["role"]
        if role in ("system", "developer"):
            system.append({"type": "text", "text": message_text(entry.message)})
            continue
        role, blocks = _blocks(entry)
        if found and found[-1]["role"] == role:
            found[-1]["content"] += blocks
        else:
            found.append({"role": role, "content": blocks})
    for message in found:
        if message["role"] == "user":
            message["content"].sort(key=lambda block: block.get("type") != "tool_result")
    body: dict[str, Any] = {"messages": found}
    if system:
        body["system"] = system
    if tools:
        body["tools"] = [_tool(tool_function(row)) for row in tools]
    return body


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    found = {"name": function["name"], "input_schema": schema}
    if function.get("description"):
        found["description"] = function["description"]
    return found


def _blocks(entry: Entry) -> tuple[str, list[dict[str, Any]]]:
    message = entry.message
    role = message["role"]
    if role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id", "")}
        return "user", [{**result, "content": message_text(message)}]
    if role == "user":
        return "user", _user_blocks(message)
    if role != "assistant":
        raise MessagesError(f"no role {role!r} in this API")
    if entry.native is not None:
        return "assistant", list(entry.native)
    blocks: list[dict[str, Any]] = []
    if text := message_text(message):
        blocks.append({"type": "text", "text": text})
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, Mapping):
            arguments = parse_arguments(arguments) or {}
        head = {"type": "tool_use", "id": call.get("id", ""), "name": function.get("name", "")}
        blocks.append({**head, "input": dict(arguments)})
    return "assistant", blocks


def _user_blocks(message: Message) -> list[dict[str, Any]]:
    content = message.get("content")
    if not isinstance(content, list):
        return [{"type": "text", "text": message_text(message)}]
    blocks: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "image_url":
            image = part.get("image_url")
            url = image.get("url", "") if isinstance(image, Mapping) else str(image)
            blocks.append({"type": "image", "source": _image(url)})
        elif isinstance(part, Mapping):
            blocks.append(dict(part))  # text is spelled the same here; the rest is this API's own
        else:
            raise MessagesError("a part of a message's content is an object")
    return blocks


def _image(url: str) -> dict[str, Any]:
    if url.startswith("data:") and ";base64," in url:
        media, data = url[5:].split(";base64,", 1)
        return {"type": "base64", "media_type": media, "data": data}
    return {"type": "url", "url": url}


class MessagesAnswer(Answer):
    """An answer of Messages."""

    def __init__(self) -> None:
        super().__init__()
        self._content: list[dict[str, Any]] = []
        self._open: dict[int, tuple[dict[str, Any], RawCall | None]] = {}
        self._whole = False

    def event(self, data: Mapping[str, Any]) -> bool:
        """See `Answer`. The end marker is ``message_stop``."""
        kind = data.get("type")
        if kind == "error" or data.get("error"):
            raise error_in_answer(data)
        if kind == "message_start":
            self._head(data.get("message") or {})
        elif kind == "content_block_start":
            self._start(data.get("index", 0), dict(data.get("content_block") or {}))
        elif kind == "content_block_delta":
            self._delta(data.get("index", 0), data.get("delta") or {})
        elif kind == "message_delta":
            delta = data.get("delta") or {}
            self.stop_reason = delta.get("stop_reason") or self.stop_reason
            self._count(data.get("usage"))
        elif kind == "message_stop":
            self._whole = True
            return True
        return False

    def document(self, data: Mapping[str, Any]) -> bool:
        """See `Answer`."""
        if data.get("error"):
            raise error_in_answer(data)
        content = data.get("content")
        if not isinstance(content, list):
            return False
        self._head(data)
        self.stop_reason = data.get("stop_reason")
        for index, block in enumerate(content):
            self._start(index, dict(block))
        self._whole = True
        return True

    def _head(self, message: Mapping[str, Any]) -> None:
        self.head(message)
        self._count(message.get("usage"))

    def _count(self, row: Any) -> None:
        """Counts are running totals: a later one takes the place of the earlier one."""
        if isinstance(row, Mapping):
            known = {key: value for key, value in row.items() if value is not None}
            self.usage_row = {**(self.usage_row or {}), **known}

    def _start(self, index: int, block: dict[str, Any]) -> None:
        call = None
        kind = block.get("type")
        if kind == "text":
            self.add("assistant", block.get("text"))
        elif kind == "thinking":
            self.add("thought", block.get("thinking"))
        elif kind == "tool_use":
            given = block.get("input")
            call = RawCall(str(block.get("id", "")), str(block.get("name", "")))
            call.arguments = json.dumps(given) if given else ""
            self.calls.append(call)
        self._content.append(block)
        self._open[index] = (block, call)

    def _delta(self, index: int, delta: Mapping[str, Any]) -> None:
        if index not in self._open:
            return
        block, call = self._open[index]
        kind = delta.get("type")
        if kind == "text_delta":
            self.add("assistant", delta.get("text"))
            block["text"] = block.get("text", "") + delta.get("text", "")
        elif kind == "thinking_delta":
            self.add("thought", delta.get("thinking"))
            block["thinking"] = block.get("thinking", "") + delta.get("thinking", "")
        elif kind == "signature_delta":
            block["signature"] = block.get("signature", "") + delta.get("signature", "")
        elif kind == "input_json_delta" and call is not None:
            call.arguments += delta.get("partial_json", "")

    def usage(self) -> Usage:
        """See `Answer`."""
        return anthropic_usage(self.usage_row, whole=self._whole)

    def status(self) -> AgentStatus:
        """See `Answer`."""
        return _STATUS.get(self.stop_reason or "", "unknown")

    def native(self) -> Any:
        """The blocks, signed thinking included, which must come back unchanged with results of tools."""
        for block, call in self._open.values():
            if call is not None:
                block["id"] = call.id
                block["input"] = parse_arguments(call.arguments) or {}
        # The API refuses the empty text that it sometimes sends itself.
        return [row for row in self._content if row.get("type") != "text" or row.get("text")]
