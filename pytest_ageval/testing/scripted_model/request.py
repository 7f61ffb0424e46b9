"""Reading a request of any of the wires into one shape: who said what, which tools, which step."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pytest_ageval.testing.scripted_model.turns import Answer, Fault

Api = Literal["responses", "chat", "anthropic", "gemini"]

#: Headers whose value is a credential: kept out of `Request.headers`.
CREDENTIALS = frozenset(
    {"authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "proxy-authorization"}
)

_KEYS = ("x-api-key", "api-key", "x-goog-api-key")

#: Headers by which agents name their session; part of what tells two conversations apart.
_SESSION_HEADERS = ("session_id", "x-session-id", "conversation_id", "x-claude-code-session-id")

# What agents add to a user's message, or send as one, without the user having said it.
_ADDED = re.compile(
    r"<(system-reminder|environment_context|user_instructions|permissions instructions)>.*?</\1>",
    re.DOTALL,
)
_CWD = re.compile(r"(?:<cwd>|working (?:in the )?directory(?: is)?:\s*)(/[^\s<\"]*)", re.IGNORECASE)
# What some agents let the model have said, before anyone asked anything.
_PLANTED = frozenset({"Got it. Thanks for the context!"})
_CALL_ID = re.compile(r"_s(\d+)n\d+_")
# Gemini names the model and the kind of answer in the path.
_MODEL_IN_PATH = re.compile(r"/models/([^/:?]+):(?:stream)?[gG]enerateContent")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool on offer. `kind` is ``function``, or the type of a tool that has no schema."""

    name: str
    kind: str
    schema: Mapping[str, Any]
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of a conversation: the user's words, a tool's result, or what the model said."""

    kind: Literal["user", "result", "model"]
    text: str = ""
    call_id: str = ""


@dataclass(slots=True, eq=False)
class Request:
    """One request that the scripted model got, and what became of it.

    `prompt` is the last thing the user said, without what agents add to it. `step` counts the
    model's answers that the conversation holds, `exchange_step` those since `prompt`. `tools` are
    the names on offer. `headers` have lower-case names and no credentials; `api_key` is the key
    that was sent. `turn` is what was answered (None: a line of text that is not in the script),
    `status` the HTTP status, `completed` whether all of it was written to the connection.
    """

    number: int
    api: Api
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any] = field(repr=False)
    api_key: str | None = field(default=None, repr=False)
    items: tuple[Item, ...] = field(default=(), repr=False)
    offered: Mapping[str, Tool] = field(default_factory=dict, repr=False)
    prompt: str = ""
    step: int = 0
    exchange_step: int = 0
    stream: bool = False
    turn: Answer | Fault | None = None
    status: int | None = None
    completed: bool = False

    @property
    def tools(self) -> list[str]:
        """The names of the tools on offer, in the request's order."""
        return list(self.offered)

    @property
    def model(self) -> str | None:
        """The model that was asked for."""
        named = _MODEL_IN_PATH.search(self.path)
        return named.group(1) if named else self.body.get("model")

    @property
    def cwd(self) -> str | None:
        """The working directory that the agent names in its prompt."""
        for text in strings(self.body):
            if found := _CWD.search(text):
                return found.group(1)
        return None

    @property
    def results(self) -> list[str]:
        """What the tools answered so far, oldest first."""
        return [item.text for item in self.items if item.kind == "result"]

    @property
    def conversation(self) -> tuple[str, ...]:
        """What tells this conversation and step from others; a repeated request has the same."""
        session = [self.headers.get(name, "") for name in _SESSION_HEADERS]
        return (*session, self.prompt, str(self.step))


def read_request(
    number: int, api: Api, path: str, headers: Mapping[str, str], body: Mapping[str, Any]
) -> Request:
    """The request as the script sees it. Unknown items of a conversation are passed over."""
    lower = {name.lower(): value for name, value in headers.items()}
    items = tuple(_READERS[api](body))
    step, exchange_step, prompt = _count(items)
    return Request(
        number=number,
        api=api,
        path=path,
        headers={name: value for name, value in lower.items() if name not in CREDENTIALS},
        body=body,
        api_key=_api_key(lower),
        items=items,
        offered=_tools(api, body),
        prompt=prompt,
        step=step,
        exchange_step=exchange_step,
        stream=bool(body.get("stream")) or ":streamGenerateContent" in path,
    )


def strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


def _api_key(headers: Mapping[str, str]) -> str | None:
    bearer = headers.get("authorization", "")
    if bearer.lower().startswith("bearer "):
        return bearer[7:]
    return next((headers[name] for name in _KEYS if headers.get(name)), None)


def _count(items: Iterable[Item]) -> tuple[int, int, str]:
    """Count the model's answers. Calls of one answer share the step in their id."""
    step = exchange = 0
    prompt = ""
    answering = False
    seen: set[str] = set()
    for item in items:
        if item.kind != "model":
            answering = False
            said = _ADDED.sub("", item.text).strip() if item.kind == "user" else ""
            if said:
                prompt, exchange = said, 0
            continue
        if item.text.strip() in _PLANTED:
            continue
        mark = _CALL_ID.search(item.call_id)
        known = mark is not None and mark.group(1) in seen
        if mark is not None:
            seen.add(mark.group(1))
        if not answering and not known:
            step += 1
            exchange += 1
        answering = True
    return step, exchange, prompt


def _text(content: Any) -> str:
    """The text of a message's content in any wire: a string, or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return _text(content.get("text") or content.get("content") or "")
    if isinstance(content, list):
        return "\n".join(text for part in content if (text := _text(part)))
    return ""


def call_text(part: Mapping[str, Any]) -> str:
    """What a function of Gemini's wire answered, as text: its only field, or the whole object."""
    response = (part.get("functionResponse") or {}).get("response")
    if isinstance(response, dict) and len(response) == 1:
        (value,) = response.values()
        return value if isinstance(value, str) else json.dumps(value)
    return json.dumps(response)


def _read_chat(body: Mapping[str, Any]) -> Iterator[Item]:
    for message in body.get("messages") or []:
        role = message.get("role")
        if role == "user":
            yield Item("user", _text(message.get("content")))
        elif role == "tool":
            yield Item("result", _text(message.get("content")))
        elif role == "assistant":
            calls = message.get("tool_calls") or [{}]
            yield Item("model", _text(message.get("content")), str(calls[0].get("id", "")))


def _read_responses(body: Mapping[str, Any]) -> Iterator[Item]:
    given = body.get("input")
    if isinstance(given, str):
        yield Item("user", given)
        return
    for item in given or []:
        kind = item.get("type", "message")
        if kind.endswith("_output"):
            yield Item("result", _text(item.get("output")))
        elif kind == "message" and item.get("role") == "user":
            yield Item("user", _text(item.get("content")))
        elif kind == "message" and item.get("role") == "assistant":
            yield Item("model", _text(item.get("content")))
        elif kind.endswith("_call"):
            yield Item("model", "", str(item.get("call_id", "")))


def _read_anthropic(body: Mapping[str, Any]) -> Iterator[Item]:
    for message in body.get("messages") or []:
        content = message.get("content")
        if message.get("role") == "assistant":
            blocks = content if isinstance(content, list) else []
            ids = [block.get("id", "") for block in blocks if block.get("type") == "tool_use"]
            yield Item("model", _text(content), ids[0] if ids else "")
            continue
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        for block in blocks:
            if block.get("type") == "tool_result":
                yield Item("result", _text(block.get("content")))
        said = [block for block in blocks if block.get("type") == "text"]
        if said:
            yield Item("user", _text(said))


def _read_gemini(body: Mapping[str, Any]) -> Iterator[Item]:
    for content in body.get("contents") or []:
        parts = [part for part in content.get("parts") or [] if isinstance(part, Mapping)]
        if content.get("role") == "model":
            calls = [part["functionCall"] for part in parts if "functionCall" in part]
            yield Item("model", _text(parts), str(calls[0].get("id", "")) if calls else "")
            continue
        for part in parts:
            if "functionResponse" in part:
                yield Item("result", call_text(part))
        said = [part for part in parts if "text" in part]
        if said:
            yield Item("user", _text(said))


_READERS = {
    "chat": _read_chat,
    "responses": _read_responses,
    "anthropic": _read_anthropic,
    "gemini": _read_gemini,
}


def _tools(api: Api, body: Mapping[str, Any]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for row in body.get("tools") or []:
        for tool in _tool_rows(api, row):
            found[tool.name] = tool
    return found


def _tool_rows(api: Api, row: Mapping[str, Any]) -> Iterator[Tool]:
    if api == "anthropic":
        if row.get("name"):
            yield Tool(row["name"], "function", row.get("input_schema") or {})
    elif api == "chat":
        inner = row.get("function") or row.get("custom") or {}
        if inner.get("name"):
            yield Tool(inner["name"], row.get("type", "function"), inner.get("parameters") or {})
    elif api == "gemini":
        for inner in row.get("functionDeclarations") or row.get("function_declarations") or []:
            schema = inner.get("parametersJsonSchema") or inner.get("parameters") or {}
            yield Tool(inner["name"], "function", schema)
    elif row.get("type") == "namespace":
        for inner in row.get("tools") or []:
            schema = inner.get("parameters") or {}
            yield Tool(inner["name"], inner.get("type", "function"), schema, row.get("name"))
    else:
        kind = row.get("type", "function")
        yield Tool(row.get("name") or kind, kind, row.get("parameters") or {})
