"""What providers report as usage, in one convention: input tokens include the cached ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_ageval.evidence.usage import (
    FIGURES,
    from_exclusive,
    from_inclusive,
    from_unknown,
    has_figures,
    sum_usage,
)
from pytest_ageval.executor import Usage
from pytest_ageval.gateway.wires import Wire

SOURCE = "gateway"


class _NoCountError(Exception):
    """A figure is there but is not a count."""


def usage_of(wire: Wire, row: Any) -> Usage:
    """The usage object of an answer on `wire`; None: the answer had none."""
    if row is None:
        return Usage(source=SOURCE, unavailable="not_reported")
    try:
        if wire == "anthropic":
            return _anthropic(row)
        return _gemini(row) if wire == "gemini" else _openai(row)
    except (_NoCountError, AttributeError):
        return Usage(source=SOURCE, unavailable="parse_failed")


def _count(row: Mapping[str, Any], *paths: str) -> int | None:
    """The first of `paths` (``a.b``) that is there."""
    for path in paths:
        found: Any = row
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        if found is None:
            continue
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            raise _NoCountError
        return found
    return None


def _cost(row: Mapping[str, Any]) -> float | None:
    found = row.get("cost")
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return float(found) if math.isfinite(found) and found >= 0 else None


def _openai(row: Mapping[str, Any]) -> Usage:
    """Chat Completions and Responses. OpenAI counts cached tokens within the input and reasoning
    within the output; servers that call themselves compatible do not all do so, and a total tells.
    """
    given = _count(row, "prompt_tokens", "input_tokens")
    output = _count(row, "completion_tokens", "output_tokens")
    cached = _count(row, "prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens")
    written = _count(row, "prompt_tokens_details.cache_write_tokens")
    reasoning = _count(
        row, "completion_tokens_details.reasoning_tokens", "output_tokens_details.reasoning_tokens"
    )
    total = _count(row, "total_tokens")
    apart = given is not None and output is not None and bool(reasoning)
    if apart and total == (given or 0) + (output or 0) + (reasoning or 0):
        output = (output or 0) + (reasoning or 0)
    figures: dict[str, Any] = {
        "cached": cached,
        "cache_write": written,
        "reasoning": reasoning,
        "cost_usd": _cost(row),
        "source": SOURCE,
    }
    if total is None:
        return _whole(from_inclusive(given, output, **figures))
    return _whole(from_unknown(given, output, total=total, **figures))


def _anthropic(row: Mapping[str, Any]) -> Usage:
    """Messages: input tokens do not count what went through the cache."""
    found = from_exclusive(
        _count(row, "input_tokens"),
        _count(row, "output_tokens"),
        cached=_count(row, "cache_read_input_tokens"),
        cache_write=_count(row, "cache_creation_input_tokens"),
        source=SOURCE,
    )
    return _whole(found)


def _gemini(row: Mapping[str, Any]) -> Usage:
    """generateContent: thoughts and tool use are counted apart from the candidates and the prompt."""
    prompt, tools = _count(row, "promptTokenCount"), _count(row, "toolUsePromptTokenCount")
    output, thoughts = _count(row, "candidatesTokenCount"), _count(row, "thoughtsTokenCount")
    if output is None and prompt is not None and row.get("totalTokenCount") == prompt + (thoughts or 0):
        output = 0  # the API leaves out a count of nothing
    found = from_inclusive(
        None if prompt is None else prompt + (tools or 0),
        None if output is None else output + (thoughts or 0),
        cached=_count(row, "cachedContentTokenCount"),
        reasoning=thoughts,
        source=SOURCE,
    )
    return _whole(found)


def _whole(found: Usage) -> Usage:
    """Marked ``partial`` if input or output is missing."""
    missing = found.prompt_tokens is None or found.completion_tokens is None
    if missing and has_figures(found) and found.unavailable is None:
        return Usage(**{**found.as_dict(), "unavailable": "partial"})
    return found


def added(usages: Iterable[Usage]) -> Usage:
    """The sum, with None for what no call reported; ``partial`` when some call did not say all."""
    rows = list(usages)
    totals = sum_usage(rows)
    known: dict[str, Any] = {name: totals[name] for name in FIGURES if totals[name] is not None}
    if known.get("cost_usd") is not None and "cost_usd" in totals.get("incomplete", ()):
        del known["cost_usd"]  # a sum over some of the calls is not what the turn cost
    if not known:
        return Usage(source=SOURCE, unavailable=totals.get("unavailable") or "not_reported")
    return Usage(**known, source=SOURCE, unavailable="partial" if totals["partial"] else None)
