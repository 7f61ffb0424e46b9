"""What providers report as usage, in one convention: input tokens include the cached ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_ageval.executor import Usage


class _NoCountError(Exception):
    """A figure is there but is not a count."""


def _count(row: Mapping[str, Any], *path: str) -> int | None:
    found: Any = row
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise _NoCountError
    return found


def _cost(row: Mapping[str, Any]) -> float | None:
    found = row.get("cost")
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise _NoCountError
    if not math.isfinite(found) or found < 0:
        raise _NoCountError
    return float(found)


def openai_usage(row: Any, source: str) -> Usage:
    """The usage object of Chat Completions or Responses.

    OpenAI counts cached tokens within the input and reasoning tokens within the output. Servers that
    call themselves compatible do not all do so; where a total is given it tells which. Where the
    figures contradict each other the usage is ``ambiguous`` and nothing is guessed.
    """
    if row is None:
        return Usage(unavailable="not_reported")
    try:
        prompt = _first(row, ("prompt_tokens",), ("input_tokens",))
        output = _first(row, ("completion_tokens",), ("output_tokens",))
        cached = _first(
            row,
            ("prompt_tokens_details", "cached_tokens"),
            ("input_tokens_details", "cached_tokens"),
        )
        reasoning = _first(
            row,
            ("completion_tokens_details", "reasoning_tokens"),
            ("output_tokens_details", "reasoning_tokens"),
        )
        total, cost = _count(row, "total_tokens"), _cost(row)
    except (_NoCountError, AttributeError):
        return Usage(source=source, unavailable="parse_failed")
    if prompt is None or output is None:
        known = prompt is not None or output is not None
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=output,
            cached_tokens=cached,
            reasoning_tokens=reasoning,
            cost_usd=cost,
            source=source,
            unavailable="partial" if known else "not_reported",
        )
    counted = _settle(prompt, output, cached or 0, reasoning or 0, total)
    if counted is None:
        return Usage(cost_usd=cost, source=source, unavailable="ambiguous")
    return Usage(
        prompt_tokens=counted[0],
        completion_tokens=counted[1],
        cached_tokens=cached,
        reasoning_tokens=reasoning,
        cost_usd=cost,
        source=source,
    )


def _first(row: Mapping[str, Any], *paths: tuple[str, ...]) -> int | None:
    for path in paths:
        found = _count(row, *path)
        if found is not None:
            return found
    return None


def _settle(
    prompt: int, output: int, cached: int, reasoning: int, total: int | None
) -> tuple[int, int] | None:
    """Input and output tokens with everything counted in, or None if the figures contradict each other."""
    inclusive = cached <= prompt and reasoning <= output
    if inclusive and total in (None, prompt + output):
        return prompt, output
    if total is None:
        return prompt + (cached if cached > prompt else 0), output + (reasoning if reasoning > output else 0)
    for added_cache in (0, cached):
        for added_reasoning in (0, reasoning):
            found = prompt + added_cache, output + added_reasoning
            if sum(found) == total and cached <= found[0] and reasoning <= found[1]:
                return found
    return (prompt, output) if inclusive else None


def anthropic_usage(row: Any, *, whole: bool = True) -> Usage:
    """The usage object of Messages, whose input tokens do not count what went through the cache."""
    if row is None:
        return Usage(unavailable="not_reported")
    try:
        fresh = _count(row, "input_tokens")
        read = _count(row, "cache_read_input_tokens")
        written = _count(row, "cache_creation_input_tokens")
        output = _count(row, "output_tokens")
    except (_NoCountError, AttributeError):
        return Usage(source="anthropic", unavailable="parse_failed")
    if fresh is None and output is None:
        return Usage(source="anthropic", unavailable="not_reported")
    prompt = None if fresh is None else fresh + (read or 0) + (written or 0)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=output,
        cached_tokens=read,
        cache_write_tokens=written,
        source="anthropic",
        unavailable=None if whole and None not in (prompt, output) else "partial",
    )


def sum_usage(rows: Sequence[Usage]) -> Usage:
    """The usage of several calls together: ``partial`` unless each of them is known whole.

    A cost is given only if every call has one: the sum of some of them would be too low. Cached and
    reasoning tokens are left out by servers where there are none, so that they are added as far as known.
    """

    def total(name: str, *, every: bool = False) -> Any:
        found = [getattr(row, name) for row in rows]
        known = [value for value in found if value is not None]
        return sum(known) if known and not (every and len(known) < len(found)) else None

    gaps = [row.unavailable for row in rows if row.unavailable is not None]
    figures = total("prompt_tokens"), total("completion_tokens")
    gap = None if not gaps else "partial" if figures != (None, None) else gaps[0]
    sources = {row.source for row in rows if row.source is not None}
    return Usage(
        prompt_tokens=figures[0],
        completion_tokens=figures[1],
        cached_tokens=total("cached_tokens"),
        cache_write_tokens=total("cache_write_tokens"),
        reasoning_tokens=total("reasoning_tokens"),
        cost_usd=total("cost_usd", every=True),
        source=sources.pop() if len(sources) == 1 else None,
        unavailable=gap,
    )
