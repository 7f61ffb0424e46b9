"""OpenAI Responses: the request in items, and the answer from events or from a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ageval_executors._answer import Answer, RawCall
from ageval_executors._conversation import message_text, tool_function
from ageval_executors._failure import error_in_answer
from ageval_executors._usage import openai_usage

if TYPE_CHECKING:
    from ageval_executors._conversation import Entry, Message
    from pytest_ageval.executor import AgentStatus, Usage


def responses_body(
    entries: Sequence[Entry], tools: Sequence[Mapping[str, Any]] | None, *, stream: bool
) -> dict[str, Any]:
    """The request without the model and its parameters. Raises `MessagesError`."""
    items: list[Any] = []
    for entry in entries:
        items += entry.native if entry.native is not None else _items(entry.message)
    body: dict[str, Any] = {"input": items}
    if tools:
        body["tools"] = [{"type": "function", **tool_function(row)} for row in tools]
    if stream:
        body["stream"] = True
    return body


def _items(message: Message) -> list[dict[str, Any]]:
    role = message["role"]
    if role == "tool":
        call_id = message.get("tool_call_id", "")
        text = message_text(message)
        return [{"type": "function_call_output", "call_id": call_id, "output": text}]
    items: list[dict[str, Any]] = []
    content = message.get("content")
    if content:
        kept = content if isinstance(content, str) else _parts(content, role)
        items.append({"type": "message", "role": role, "content": kept})
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        items.append(
            {
                "type": "function_call",
                "call_id": call.get("id", ""),
                "name": function.get("name", ""),
                "arguments": function.get("arguments", ""),
            }
        )
    if not items and role != "assistant":
        items.append({"type": "message", "role": role, "content": ""})
    return items


def _parts(content: Sequence[Any], role: str) -> list[Any]:
    """Parts of a chat message under the names that this API has for them; unknown ones as they are."""
    kind = "output_text" if role == "assistant" else "input_text"
    found: list[Any] = []
    for part in content:
        if isinstance(part, Mapping) and part.get("type") == "text":
            found.append({**part, "type": kind})
        elif isinstance(part, Mapping) and part.get("type") == "image_url":
            image = part.get("image_url") or {}
            url = image.get("url") if isinstance(image, Mapping) else image
            found.append({"type": "input_image", "image_url": url})
        else:
            found.append(part)
    return found


class ResponsesAnswer(Answer):
    """An answer of Responses. The closing event holds the whole of it, which is what counts."""

    def __init__(self) -> None:
        super().__init__()
        self._output: list[Any] = []
        self._incomplete: str | None = None

    def event(self, data: Mapping[str, Any]) -> bool:
        """See `Answer`. Deltas are kept for the case that the closing event never comes."""
        kind = data.get("type")
        if kind in ("response.completed", "response.incomplete"):
            return self.document(data.get("response") or {})
        if kind == "response.failed":
            raise error_in_answer(data.get("response") or {})
        if kind == "error" or data.get("error"):
            raise error_in_answer(data)
        if kind == "response.created":
            self._head(data.get("response") or {})
        elif kind in ("response.output_text.delta", "response.refusal.delta"):
            self.add("assistant", data.get("delta"))
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            self.add("thought", data.get("delta"))
        elif kind == "response.output_item.done" and data.get("item"):
            self._output.append(data["item"])
        return False

    def document(self, data: Mapping[str, Any]) -> bool:
        """See `Answer`."""
        if data.get("error"):
            raise error_in_answer(data)
        output = data.get("output")
        if not isinstance(output, list):
            return False
        # Some servers leave the output of the closing event empty and rely on the items before it.
        self._output = output or self._output
        self.segments.clear()
        self.calls.clear()
        for item in self._output:
            if isinstance(item, Mapping):
                self._item(item)
        self._head(data)
        self.stop_reason = data.get("status")
        details = data.get("incomplete_details")
        if isinstance(details, Mapping) and details.get("reason"):
            self._incomplete = str(details["reason"])
            self.stop_reason = self._incomplete
        return True

    def _head(self, data: Mapping[str, Any]) -> None:
        self.head(data)
        self.usage_row = data.get("usage") or self.usage_row

    def _item(self, item: Mapping[str, Any]) -> None:
        kind = item.get("type")
        if kind == "message":
            for part in item.get("content") or []:
                if part.get("type") == "refusal":
                    self.refused = True
                self.add("assistant", part.get("text") or part.get("refusal"))
        elif kind == "reasoning":
            for part in item.get("summary") or item.get("content") or []:
                self.add("thought", part.get("text"))
        elif kind == "function_call":
            call_id = str(item.get("call_id") or item.get("id") or "")
            arguments = str(item.get("arguments") or "")
            self.calls.append(RawCall(call_id, str(item.get("name", "")), arguments))

    def usage(self) -> Usage:
        """See `Answer`."""
        return openai_usage(self.usage_row, "openai-responses")

    def status(self) -> AgentStatus:
        """See `Answer`."""
        if self._incomplete == "max_output_tokens":
            return "limit"
        if self._incomplete == "content_filter":
            return "refused"
        return "completed" if self.stop_reason in ("completed", None) else "unknown"

    def native(self) -> Any:
        """The items, reasoning included: models that reason want theirs back."""
        return self._output
