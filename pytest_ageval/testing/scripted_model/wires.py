"""The wires of OpenAI and Anthropic: an answer as a document, and as a stream of server-sent events."""

from __future__ import annotations

import abc
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_ageval.testing.scripted_model.request import Api, Request
    from pytest_ageval.testing.scripted_model.tools import WireCall
    from pytest_ageval.testing.scripted_model.turns import Stop, Tokens

Json = dict[str, Any]

#: The name of events and fields that no client knows.
UNKNOWN = "scripted_unknown"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer whose tools are chosen: what goes onto the wire."""

    text: str
    thought: str
    calls: Sequence[WireCall]
    stop: Stop
    tokens: Tokens


class Wire(abc.ABC):
    """Writes one answer, as a document or as the events of a stream.

    A stream is `start`, `thought`, `text`, `calls`, `finish`, in that order.
    """

    def __init__(self, request: Request, tokens: Tokens) -> None:
        self.request = request
        self.tokens = tokens
        self.id = f"scripted_{request.number}"
        self.model = request.model or "scripted-model"

    @abc.abstractmethod
    def document(self, reply: Reply) -> Json:
        """The answer to a request that does not stream."""

    @abc.abstractmethod
    def start(self) -> Iterator[bytes]:
        """What comes before the first delta."""

    @abc.abstractmethod
    def thought(self, pieces: Sequence[str]) -> Iterator[bytes]:
        """Reasoning; one event a piece is the delta."""

    @abc.abstractmethod
    def text(self, pieces: Sequence[str]) -> Iterator[bytes]:
        """Text; one event a piece is the delta."""

    @abc.abstractmethod
    def calls(self, calls: Sequence[WireCall]) -> Iterator[bytes]:
        """Tool calls."""

    @abc.abstractmethod
    def finish(self, stop: Stop) -> Iterator[bytes]:
        """The rest of the text's frame, usage, and the end marker."""

    @abc.abstractmethod
    def usage(self) -> Json:
        """The usage object of this wire."""

    def unknown(self) -> bytes:
        """An event that no client knows, in the middle of a stream."""
        return b": a comment\n\n" + frame({"type": UNKNOWN, "payload": [1, {"a": None}]}, UNKNOWN)

    def error(self, message: str, code: str) -> Json:
        """The body of an HTTP error."""
        return {"error": {"message": message, "type": code, "param": None, "code": code}}

    def failure(self, message: str, code: str) -> bytes:
        """An error within a stream."""
        return frame(self.error(message, code))


def frame(data: Any, event: str | None = None) -> bytes:
    """One server-sent event. Lone surrogates go out as JSON escapes."""
    head = f"event: {event}\n" if event else ""
    body = data if isinstance(data, str) else json.dumps(data)
    return f"{head}data: {body}\n\n".encode()


def known(row: Json) -> Json:
    """The row without the figures that are None."""
    return {key: value for key, value in row.items() if value is not None}


def total(tokens: Tokens) -> int | None:
    """Input and output together; None when one of them is left out."""
    both = tokens.input, tokens.output
    return None if None in both else sum(filter(None, both))


def halves(text: str) -> list[str]:
    """`text` in two pieces, without empty ones."""
    middle = len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


class ChatWire(Wire):
    """OpenAI Chat Completions."""

    _stops: Mapping[Stop, str] = {"end": "stop", "limit": "length", "refused": "content_filter"}

    def usage(self) -> Json:
        """See `Wire`."""
        t = self.tokens
        return known(
            {
                "prompt_tokens": t.input,
                "completion_tokens": t.output,
                "total_tokens": total(t),
                "prompt_tokens_details": known({"cached_tokens": t.cached}) or None,
                "completion_tokens_details": known({"reasoning_tokens": t.reasoning}) or None,
                "cost": t.cost,
            }
        )

    def _base(self, kind: str, **more: Any) -> Json:
        return {
            "id": f"chatcmpl-{self.id}",
            "object": kind,
            "created": 1,
            "model": self.model,
            **more,
        }

    def document(self, reply: Reply) -> Json:
        """See `Wire`."""
        message: Json = {"role": "assistant", "content": reply.text or None}
        if reply.thought:
            message["reasoning_content"] = reply.thought
        if reply.calls:
            message["tool_calls"] = [self._call(call) for call in reply.calls]
        stop = "tool_calls" if reply.calls else self._stops[reply.stop]
        choice = {"index": 0, "message": message, "finish_reason": stop}
        found = self._base("chat.completion", choices=[choice])
        return {**found, "usage": self.usage()} if self.tokens.reported else found

    @staticmethod
    def _call(call: WireCall) -> Json:
        if call.kind == "custom":
            inner = {"name": call.name, "input": call.arguments}
            return {"id": call.id, "type": "custom", "custom": inner}
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": call.id, "type": "function", "function": function}

    def _delta(self, delta: Json, stop: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": stop}
        return frame(self._base("chat.completion.chunk", choices=[choice]))

    def start(self) -> Iterator[bytes]:
        """See `Wire`."""
        self._called = False
        yield self._delta({"role": "assistant", "content": ""})

    def thought(self, pieces: Sequence[str]) -> Iterator[bytes]:
        """See `Wire`."""
        for piece in pieces:
            yield self._delta({"reasoning_content": piece})

    def text(self, pieces: Sequence[str]) -> Iterator[bytes]:
        """See `Wire`."""
        for piece in pieces:
            yield self._delta({"content": piece})

    def calls(self, calls: Sequence[WireCall]) -> Iterator[bytes]:
        """See `Wire`."""
        for index, call in enumerate(calls):
            self._called = True
            if call.kind == "custom":
                yield self._delta({"tool_calls": [{"index": index, **self._call(call)}]})
                continue
            for number, piece in enumerate(halves(call.arguments) or [""]):
                row: Json = {"index": index, "function": {"arguments": piece}}
                if number == 0:
                    row.update(id=call.id, type="function")
                    row["function"]["name"] = call.name
                yield self._delta({"tool_calls": [row]})

    def finish(self, stop: Stop) -> Iterator[bytes]:
        """See `Wire`."""
        yield self._delta({}, "tool_calls" if self._called else self._stops[stop])
        asked = (self.request.body.get("stream_options") or {}).get("include_usage")
        if self.tokens.reported and asked:
            yield frame(self._base("chat.completion.chunk", choices=[], usage=self.usage()))
        yield frame("[DONE]")


class ResponsesWire(Wire):
    """OpenAI Responses."""

    def usage(self) -> Json:
        """See `Wire`."""
        t = self.tokens
        return known(
            {
                "input_tokens": t.input,
                "input_tokens_details": known({"cached_tokens": t.cached}) or None,
                "output_tokens": t.output,
                "output_tokens_details": known({"reasoning_tokens": t.reasoning}) or None,
                "total_tokens": total(t),
            }
        )

    def _response(self, status: str, output: list[Json], stop: Stop = "end") -> Json:
        found: Json = {
            "id": f"resp_{self.id}",
            "object": "response",
            "created_at": 1,
            "model": self.model,
            "status": status,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "usage": None,
        }
        if status == "in_progress":
            return found
        if stop != "end":
            reason = "max_output_tokens" if stop == "limit" else "content_filter"
            found.update(status="incomplete", incomplete_details={"reason": reason})
        if self.tokens.reported:
            found["usage"] = self.usage()
        return found

    def document(self, reply: Reply) -> Json:
        """See `Wire`."""
        output: list[Json] = []
        if reply.thought:
            output.append(self._reasoning(reply.thought))
        if reply.text:
            output.append(self._message(reply.text))
        output += [self._call(call) for call in reply.calls]
        return self._response("completed", output, reply.stop)

    def _message(self, text: str, status: str = "completed") -> Json:
        parts = [{"type": "output_text", "text": text, "annotations": []}] if text else []
        head = {"type": "message", "id": f"msg_{self.id}", "role": "assistant"}
        return {**head, "status": status, "content": parts}

    def _reasoning(self, thought: str) -> Json:
        parts = [{"type": "summary_text", "text": thought}] if thought else []
        return {"type": "reasoning", "id": f"rs_{self.id}", "summary": parts}

    @staticmethod
    def _call(call: WireCall) -> Json:
        if call.kind == "custom":
            item: Json = {"type": "custom_tool_call", "id": f"ctc_{call.id}"}
            item.update(name=call.name, input=call.arguments)
        elif call.kind == "local_shell":
            action = {"type": "exec", "command": ["bash", "-lc", call.arguments], "env": {}}
            item = {"type": "local_shell_call", "id": f"lsh_{call.id}", "action": action}
        else:
            item = {"type": "function_call", "id": f"fc_{call.id}"}
            item.update(name=call.name, arguments=call.arguments)
            if call.namespace is not None:
                item["namespace"] = call.namespace
        return {**item, "call_id": call.id, "status": "completed"}

    def _event(self, kind: str, **more: Any) -> bytes:
        self._sequence += 1
        return frame({"type": kind, "sequence_number": self._sequence - 1, **more}, kind)

    def start(self) -> Iterator[bytes]:
        """See `Wire`."""
        self._sequence = 0
        self._output: list[Json] = []
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response("in_progress", []))

    def _open(self, item: Json) -> bytes:
        return self._event("response.output_item.added", output_index=len(self._output), item=item)

    def _done(self, item: Json) -> bytes:
        self._output.append(item)
        index = len(self._output) - 1
        return self._event("response.output_item.done", output_index=index, item=item)

    def thought(self, pieces: Sequence[str]) -> Iterator[bytes]:
        """See `Wire`."""
        if not pieces:
            return
        whole = self._reasoning("".join(pieces))
        yield self._open(self._reasoning(""))
        where = {"item_id": whole["id"], "output_index": len(self._output), "summary_index": 0}
        part = {"type": "summary_text", "text": ""}
        yield self._event("response.reasoning_summary_part.added", **where, part=part)
        for piece in pieces:
            yield self._event("response.reasoning_summary_text.delta", **where, delta=piece)
        text = "".join(pieces)
        yield self._event("response.reasoning_summary_text.done", **where, text=text)
        yield self._done(whole)

    def text(self, pieces: Sequence[str]) -> Iterator[bytes]:
        """See `Wire`."""
        if not pieces:
            return
        whole = self._message("".join(pieces))
        yield self._open(self._message("", "in_progress"))
        where = {"item_id": whole["id"], "output_index": len(self._output), "content_index": 0}
        part = {"type": "output_text", "text": "", "annotations": []}
        yield self._event("response.content_part.added", **where, part=part)
        for piece in pieces:
            yield self._event("response.output_text.delta", **where, delta=piece)
        yield self._event("response.output_text.done", **where, text="".join(pieces))
        yield self._event("response.content_part.done", **where, part=whole["content"][0])
        yield self._done(whole)

    def calls(self, calls: Sequence[WireCall]) -> Iterator[bytes]:
        """See `Wire`."""
        for call in calls:
            item = self._call(call)
            field = {"function_call": "arguments", "custom_tool_call": "input"}.get(item["type"])
            blank = {} if field is None else {field: ""}
            yield self._open({**item, "status": "in_progress", **blank})
            if field is not None:
                word = "function_call_arguments" if field == "arguments" else "custom_tool_call_input"
                where = {"item_id": item["id"], "output_index": len(self._output)}
                for piece in halves(call.arguments):
                    yield self._event(f"response.{word}.delta", **where, delta=piece)
                rest = {field: call.arguments}
                yield self._event(f"response.{word}.done", **where, **rest)
            yield self._done(item)

    def finish(self, stop: Stop) -> Iterator[bytes]:
        """See `Wire`."""
        kind = "response.completed" if stop == "end" else "response.incomplete"
        yield self._event(kind, response=self._response("completed", self._output, stop))

    def failure(self, message: str, code: str) -> bytes:
        """See `Wire`."""
        response = self._response("in_progress", self._output)
        response.update(status="failed", error={"code": code, "message": message})
        return self._event("response.failed", response=response)


class AnthropicWire(Wire):
    """Anthropic Messages."""

    _stops: Mapping[Stop, str] = {"end": "end_turn", "limit": "max_tokens", "refused": "refusal"}

    def usage(self) -> Json:
        """See `Wire`."""
        t = self.tokens
        fresh = None if t.input is None else t.input - (t.cached or 0) - (t.cache_write or 0)
        return known(
            {
                "input_tokens": fresh,
                "cache_creation_input_tokens": t.cache_write,
                "cache_read_input_tokens": t.cached,
                "output_tokens": t.output,
            }
        )

    def _message(self, content: list[Json], stop: str | None) -> Json:
        found: Json = {"id": f"msg_{self.id}", "type": "message", "role": "assistant"}
        found.update(model=self.model, content=content, stop_reason=stop, stop_sequence=None)
        return found

    def document(self, reply: Reply) -> Json:
        """See `Wire`."""
        content: list[Json] = []
        if reply.thought:
            thinking = {"type": "thinking", "thinking": reply.thought, "signature": "scripted"}
            content.append(thinking)
        if reply.text:
            content.append({"type": "text", "text": reply.text})
        content += [{**self._call(call), "input": call.object or {}} for call in reply.calls]
        stop = "tool_use" if reply.calls else self._stops[reply.stop]
        found = self._message(content, stop)
        return {**found, "usage": self.usage()} if self.tokens.reported else found

    @staticmethod
    def _call(call: WireCall) -> Json:
        return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}

    def _event(self, kind: str, **more: Any) -> bytes:
        return frame({"type": kind, **more}, kind)

    def start(self) -> Iterator[bytes]:
        """See `Wire`."""
        self._index = 0
        self._called = False
        message = self._message([], None)
        if self.tokens.reported:
            begun = {} if self.tokens.output is None else {"output_tokens": 1}
            message["usage"] = {**self.usage(), **begun}
        yield self._event("message_start", message=message)
        yield self._event("ping")

    def _block(self, block: Json, deltas: Sequence[Json]) -> Iterator[bytes]:
        yield self._event("content_block_start", index=self._index, content_block=block)
        for delta in deltas:
            yield self._event("content_block_delta", index=self._index, delta=delta)
        yield self._event("content_block_stop", index=self._index)
        self._index += 1

    def thought(self, pieces: Sequence[str]) -> Iterator[bytes]:
        """See `Wire`."""
        if pieces:
            deltas: list[Json] = [{"type": "thinking_delta", "thinking": p} for p in pieces]
            deltas.append({"type": "signature_delta", "signature": "scripted"})
            yield from self._block({"type": "thinking", "thinking": "", "signature": ""}, deltas)

    def text(self, pieces: Sequence[str]) -> Iterator[bytes]:
        """See `Wire`."""
        if pieces:
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
            yield from self._block({"type": "text", "text": ""}, deltas)

    def calls(self, calls: Sequence[WireCall]) -> Iterator[bytes]:
        """See `Wire`."""
        for call in calls:
            self._called = True
            pieces = ["", *halves(call.arguments)]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
            yield from self._block(self._call(call), deltas)

    def finish(self, stop: Stop) -> Iterator[bytes]:
        """See `Wire`."""
        word = "tool_use" if self._called else self._stops[stop]
        usage = {"usage": self.usage()} if self.tokens.reported else {}
        delta = {"stop_reason": word, "stop_sequence": None}
        yield self._event("message_delta", delta=delta, **usage)
        yield self._event("message_stop")

    def error(self, message: str, code: str) -> Json:
        """See `Wire`."""
        return {"type": "error", "error": {"type": code, "message": message}}

    def failure(self, message: str, code: str) -> bytes:
        """See `Wire`."""
        return frame(self.error(message, code), "error")


WIRES: Mapping[Api, type[Wire]] = {
    "chat": ChatWire,
    "responses": ResponsesWire,
    "anthropic": AnthropicWire,
}

_CODES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def error_code(status: int) -> str:
    """The machine's word that fits an HTTP status."""
    return _CODES.get(status, "api_error" if status >= 500 else "invalid_request_error")
