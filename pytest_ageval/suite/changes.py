"""What differs between two locked configurations, in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_ageval.config.where import join_pointer

#: Differences that are named, and characters of each value.
NAMED = 8
WIDTH = 60


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """A line for each value that differs between two documents (``lock.json``), files first."""
    after = json.loads(json.dumps(after))  # as it would be read from a file
    found = list(_files(before.get("files"), after.get("files")))
    for tokens, was, now in _walk(before.get("locked") or {}, after.get("locked") or {}, ()):
        if tokens != ("eval_digest",):
            found.append(f"{join_pointer(*tokens)}: {_short(was)} -> {_short(now)}")
        elif not found:
            listed = before.get("files") and after.get("files")
            found.append("ageval.yaml or shared/ has changed" if listed else "a file of the task has changed")
    more = len(found) - NAMED
    return [*found[:NAMED], *([f"and {more} more"] if more > 0 else [])]


def _files(before: Any, after: Any) -> Iterator[str]:
    """Files of the task, where both documents list them."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return
    for name in sorted({*before, *after}):
        if name not in after:
            yield f"{name} was removed"
        elif name not in before:
            yield f"{name} is new"
        elif before[name] != after[name]:
            yield f"{name} has changed"


_ABSENT = object()


def _walk(before: Any, after: Any, tokens: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            yield from _walk(before.get(name, _ABSENT), after.get(name, _ABSENT), (*tokens, name))
    elif before != after:
        yield tokens, before, after


def _short(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}..."
