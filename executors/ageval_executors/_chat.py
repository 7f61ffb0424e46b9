"""OpenAI Chat Completions: the request, and the answer from deltas or from a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ageval_executors._answer import Answer, RawCall
from ageval_executors._conversation import tool_function
from ageval_executors._failure import error_in_answer, protocol_error
from ageval_executors._text import encode_json
from ageval_executors._usage import openai_usage

if TYPE_CHECKING:
    from ageval_executors._conversation import Entry
    from pytest_ageval.executor import AgentStatus, Usage

_STATUS: Mapping[str, AgentStatus] = {
    "stop": "completed",
    "tool_calls": "completed",
    "function_call": "completed",
    "length": "limit",
    "content_filter": "refused",
}


def chat_body(
    entries: Sequence[Entry], tools: Sequence[Mapping[str, Any]] | None, *, stream: bool
) -> dict[str, Any]:
    """The request without the model and its parameters. Raises `MessagesError`."""
    body: dict[str, Any] = {
        "messages": [dict(entry.native or entry.message) for entry in entries],
    }
    if tools:
        body["tools"] = [{"type": "function", "function": tool_function(row)} for row in tools]
    if stream:
        body.update(stream=True, stream_options={"include_usage": True})
    return body


class ChatAnswer(Answer):
    """An answer of Chat Completions."""

    def __init__(self) -> None:
        super().__init__()
        self._at: dict[int, RawCall] = {}
        self._chosen = False

    def event(self, data: Mapping[str, Any]) -> bool:
        """See `Answer`. The end marker is ``[DONE]``; usage comes in a piece without choices."""
        if data.get("type") == "[DONE]":
            if not self._chosen:
                raise protocol_error("the stream holds no choice")
            return True
        self._head(data)
        for choice in data.get("choices") or []:
            if choice.get("index", 0) == 0:
                self._chosen = True
                self._part(choice.get("delta") or {})
                self.stop_reason = choice.get("finish_reason") or self.stop_reason
        return False

    def ended(self) -> bool:
        """See `Answer`. Servers that send no marker still give a reason to stop."""
        return self.stop_reason is not None

    def document(self, data: Mapping[str, Any]) -> bool:
        """See `Answer`."""
        self._head(data)
        choices = data.get("choices")
        if not isinstance(choices, list) or not choices:
            return False
        self._part(choices[0].get("message") or {})
        self.stop_reason = choices[0].get("finish_reason")
        return True

    def _head(self, data: Mapping[str, Any]) -> None:
        if data.get("error"):
            raise error_in_answer(data)
        self.head(data)
        self.usage_row = data.get("usage") or self.usage_row

    def _part(self, part: Mapping[str, Any]) -> None:
        # Two names for the same thing; a server that sends both sends the same text twice.
        self.add("thought", part.get("reasoning_content") or part.get("reasoning"))
        content = part.get("content")
        for row in content if isinstance(content, list) else [content]:
            self._content(row)
        if part.get("refusal"):
            self.refused = True
            self.add("assistant", part["refusal"])
        for number, row in enumerate(part.get("tool_calls") or []):
            self._call(row, number)

    def _content(self, row: Any) -> None:
        if isinstance(row, str):
            self.add("assistant", row)
        elif isinstance(row, Mapping):
            self.add("assistant", row.get("text"))
            thinking = row.get("thinking")
            for inner in thinking if isinstance(thinking, list) else [{"text": thinking}]:
                self.add("thought", inner.get("text"))

    def _call(self, row: Mapping[str, Any], number: int) -> None:
        index = row.get("index")
        if not isinstance(index, int):
            # Without an index a new id means a new call, and none means more of the last one.
            fresh = bool(row.get("id")) or not self._at
            index = max(self._at, default=-1) + 1 if fresh else max(self._at)
        call = self._at.get(index)
        if call is None:
            call = self._at[index] = RawCall()
            self.calls.append(call)
        function = row.get("function") or {}
        call.id = str(row.get("id") or call.id)
        call.name = str(function.get("name") or call.name)
        known = ("index", "id", "type", "function")
        call.extra.update({key: value for key, value in row.items() if key not in known})
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping):
            call.arguments = encode_json(arguments).decode()
        elif isinstance(arguments, str):
            call.arguments += arguments

    def usage(self) -> Usage:
        """See `Answer`."""
        return openai_usage(self.usage_row, "openai-chat")

    def status(self) -> AgentStatus:
        """See `Answer`."""
        return _STATUS.get(self.stop_reason or "", "unknown")

    def native(self) -> Any:
        """The chat message with the fields of its calls that only this server knows."""
        if not any(call.extra for call in self.calls):
            return None
        message = self.message()
        rows = zip(message["tool_calls"], self.calls, strict=True)
        return {**message, "tool_calls": [{**call.extra, **row} for row, call in rows]}
