"""Values as exact JSON types, bounded: what may travel from a worker to the controller."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: Bounds of what goes onto a report. Everything is in the evidence.
TEXT = 2000
ENTRIES = 100
DEPTH = 6


def plain(value: Any, *, text: int = TEXT, depth: int = DEPTH) -> Any:
    """`value` with exact types None, bool, int, float, str, list, dict only.

    pytest-xdist refuses everything else, subclasses of str included, and a lone surrogate ends the
    whole session. Long texts and collections are cut, NaN and infinity become text.
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(value)
    if isinstance(value, int):
        return int(value)
    if depth == 0:
        return "..."
    if isinstance(value, Mapping):
        rows = list(value.items())[:ENTRIES]
        return {clean(str(key), 200): plain(row, text=text, depth=depth - 1) for key, row in rows}
    if isinstance(value, list | tuple | set | frozenset):
        found = sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)
        return [plain(row, text=text, depth=depth - 1) for row in found[:ENTRIES]]
    return clean(str(value), text)


def clean(value: str, limit: int = TEXT) -> str:
    """`value` as UTF-8 can hold it, of at most `limit` characters, cut in the middle."""
    return cut(value.encode("utf-8", "replace").decode("utf-8"), limit)


def cut(value: str, limit: int) -> str:
    """`value` of at most about `limit` characters: head and tail, and how much is missing."""
    if len(value) <= limit:
        return value
    half = limit // 2
    return f"{value[:half]}\n[... {len(value) - 2 * half} characters cut ...]\n{value[-half:]}"
