"""The conversation of a session: what was said, and what a turn adds to it.

Messages are kept in OpenAI's chat style, which is also how a task passes its own. What the model said
keeps the provider's own form beside it, so that it goes back to the provider unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ageval_executors._text import parse_arguments
from pytest_ageval.errors import ExecutorError

Message = Mapping[str, Any]

#: What stands for the result of a call that the task went past without answering it.
UNANSWERED = "No result was given for this call."


class MessagesError(ValueError):
    """The `messages` of an invoke are not a conversation."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One message; `native` is what the provider sent, in its own form, if it came from there."""

    message: Message
    native: Any = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What to send: the whole conversation, and of it the messages that were not sent before."""

    entries: tuple[Entry, ...]
    new: tuple[Message, ...]


def next_turn(history: Sequence[Entry], prompt: str, messages: Sequence[Mapping[str, Any]] | None) -> Turn:
    """The conversation that goes out for `prompt`. Raises `MessagesError`.

    Without `messages` it is the session's own history and the prompt. With `messages` those take the
    place of the history, and the prompt follows as the last message of the user, unless it is empty
    or already what the conversation is about: the last thing the user says in it, with nothing after
    it but calls of tools and their results.
    """
    if messages is None:
        new = [Entry(row) for row in _unanswered(history)]
        new.append(Entry({"role": "user", "content": prompt}))
        return Turn((*history, *new), tuple(entry.message for entry in new))
    given = [Entry(_checked(row)) for row in messages]
    if prompt and not _asked(given, prompt):
        given.append(Entry({"role": "user", "content": prompt}))
    if not given:
        raise MessagesError("no messages and no prompt")
    # What the model said goes back in the provider's own form, which the task never saw.
    native = {_key(entry.message): entry.native for entry in history if entry.native is not None}
    given = [Entry(entry.message, native.get(_key(entry.message))) for entry in given]
    known = 0
    for entry, old in zip(given, history, strict=False):
        if _key(entry.message) != _key(old.message):
            break
        known += 1
    return Turn(tuple(given), tuple(entry.message for entry in given[known:]))


def _key(message: Message) -> tuple[str, ...]:
    """What a message says, however its JSON is spelled: a task writes the answer down again itself."""
    calls: list[str] = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            parsed = parse_arguments(arguments)
            arguments = arguments if parsed is None else parsed
        calls += [str(call.get("id")), str(function.get("name")), repr(arguments)]
    content = message.get("content")
    said = content if isinstance(content, str) else repr(content or "")
    said = "" if said == repr("") else said
    return (message["role"], said, str(message.get("tool_call_id") or ""), *calls)


def _checked(row: Any) -> Message:
    if not isinstance(row, Mapping) or not isinstance(row.get("role"), str):
        raise MessagesError(f"a message is an object with a role, not {str(row)[:100]!r}")
    return row


def _asked(entries: Sequence[Entry], prompt: str) -> bool:
    for entry in reversed(entries):
        message = entry.message
        if message["role"] == "user":
            return message_text(message).strip() == prompt.strip()
        working = message["role"] == "tool" or message.get("tool_calls")
        if not working:
            return False
    return False


def _unanswered(history: Sequence[Entry]) -> list[Message]:
    """Results for open calls: providers refuse a conversation in which a call has none."""
    if not history:
        return []
    calls = history[-1].message.get("tool_calls") or ()
    return [{"role": "tool", "tool_call_id": call["id"], "content": UNANSWERED} for call in calls]


def history_token(history: Sequence[Entry]) -> dict[str, Any]:
    """The history as plain data, and a digest by which it is known whether it is still the true one."""
    rows: list[dict[str, Any]] = []
    for entry in history:
        native = {} if entry.native is None else {"native": entry.native}
        rows.append({"message": dict(entry.message), **native})
    return {"history": rows, "sha256": rows_digest(rows)}


def read_history(token: Mapping[str, Any]) -> tuple[Entry, ...]:
    """The history of a `history_token`. Raises ExecutorError ``resume_token_invalid``."""
    rows = token.get("history")
    if not isinstance(rows, list) or not rows:
        raise ExecutorError("resume_token_invalid", "the token holds no history")
    if token.get("sha256") != rows_digest(rows):
        raise ExecutorError(
            "resume_token_invalid",
            "the history is not the one that was sent: it was changed since, as by the masking of a secret",
        )
    return tuple(Entry(row["message"], row.get("native")) for row in rows)


def rows_digest(rows: Sequence[Any]) -> str:
    """By which rows are known again."""
    # In sorted order: the evidence writes the keys in an order of its own.
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def message_text(message: Message) -> str:
    """The text of a message, whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    return "".join(
        part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str)
    )


def tool_function(row: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's schema without its envelope: ``{name, description, parameters}``. Raises `MessagesError`."""
    inner = row.get("function", row) if isinstance(row, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise MessagesError(f"a tool is a function schema with a name, not {str(row)[:100]!r}")
    return {key: value for key, value in inner.items() if key != "type"}
