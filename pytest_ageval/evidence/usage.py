"""Token and cost figures: one meaning for all sources, sums that do not hide a gap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_ageval.executor import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The figures that can be added.
FIGURES = (
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "cost_usd",
)


def has_figures(usage: Usage | Mapping[str, Any]) -> bool:
    """Whether anything at all is known."""
    known = usage.as_dict() if isinstance(usage, Usage) else usage
    return any(known.get(name) is not None for name in FIGURES)


def from_inclusive(
    input_tokens: int | None,
    output_tokens: int | None = None,
    *,
    cached: int | None = None,
    cache_write: int | None = None,
    reasoning: int | None = None,
    cost_usd: float | None = None,
    source: str | None = None,
) -> Usage:
    """Usage from a source whose input counts the cached tokens too (OpenAI, Google).

    More cached tokens than input contradict that: then the usage is marked ``ambiguous``.
    """
    known = Usage(
        prompt_tokens=input_tokens,
        completion_tokens=output_tokens,
        cached_tokens=cached,
        cache_write_tokens=cache_write,
        reasoning_tokens=reasoning,
        cost_usd=cost_usd,
        source=source,
    )
    if input_tokens is not None and (cached or 0) > input_tokens:
        return _ambiguous(known)
    return known if has_figures(known) else Usage(source=source, unavailable="not_reported")


def from_exclusive(
    input_tokens: int | None,
    output_tokens: int | None = None,
    *,
    cached: int | None = None,
    cache_write: int | None = None,
    reasoning: int | None = None,
    cost_usd: float | None = None,
    source: str | None = None,
) -> Usage:
    """Usage from a source whose input leaves out the cached tokens (Anthropic, Bedrock)."""
    prompt = None if input_tokens is None else input_tokens + (cached or 0) + (cache_write or 0)
    return from_inclusive(
        prompt,
        output_tokens,
        cached=cached,
        cache_write=cache_write,
        reasoning=reasoning,
        cost_usd=cost_usd,
        source=source,
    )


def from_unknown(
    input_tokens: int | None,
    output_tokens: int | None = None,
    *,
    total: int | None = None,
    cached: int | None = None,
    cache_write: int | None = None,
    reasoning: int | None = None,
    cost_usd: float | None = None,
    source: str | None = None,
) -> Usage:
    """Usage from a source that does not say which of the two it does.

    The total decides, or that there are more cached tokens than input. When neither does, the usage
    is marked ``ambiguous`` and has no `prompt_tokens`: it is not guessed.
    """
    extra = (cached or 0) + (cache_write or 0)
    make = None
    plain_total = (input_tokens or 0) + (output_tokens or 0)
    if input_tokens is None or extra == 0 or total == plain_total:
        make = from_inclusive
    elif total == plain_total + extra or (cached or 0) > input_tokens:
        make = from_exclusive
    figures: dict[str, Any] = {
        "cached": cached,
        "cache_write": cache_write,
        "reasoning": reasoning,
        "cost_usd": cost_usd,
        "source": source,
    }
    if make is not None:
        return make(input_tokens, output_tokens, **figures)
    return _ambiguous(from_inclusive(None, output_tokens, **figures))


def _ambiguous(usage: Usage) -> Usage:
    known = {**usage.as_dict(), "prompt_tokens": None, "unavailable": "ambiguous"}
    return Usage(**known)


def since(current: Usage, earlier: Usage | None) -> Usage:
    """The usage of one turn, from figures that count from the beginning of the session.

    `earlier` are the figures after the turn before. A figure that became smaller has been counted
    anew by the source; then nothing can be said of the turn (``ambiguous``).
    """
    if earlier is None:
        return current
    known: dict[str, Any] = {"source": current.source, "unavailable": current.unavailable}
    for name in FIGURES:
        value, before = getattr(current, name), getattr(earlier, name)
        if value is None:
            continue
        if value < (before or 0):
            return Usage(source=current.source, unavailable="ambiguous")
        known[name] = value - (before or 0)
    return Usage(**known)


def sum_usage(usages: Iterable[Usage | Mapping[str, Any]]) -> dict[str, Any]:
    """The totals of several invocations, with every figure that is known and None for the others.

    `invocations` counts them, `without_usage` those of which nothing is known. `partial` is true
    when some tokens were spent that the totals do not hold; `incomplete` names the figures that
    some, but not all of the invocations with usage reported. When nothing is known at all,
    `unavailable` gives the reason.

    With a cost there is `cost_source`: ``reported``, ``estimated`` or ``mixed``; `cost_estimated_usd` is
    the estimated part, and `price_tables` name where its prices come from. `cost_unavailable` lists why
    invocations have no cost.
    """
    rows = [usage.as_dict() if isinstance(usage, Usage) else dict(usage) for usage in usages]
    known = [row for row in rows if has_figures(row)]
    totals: dict[str, Any] = {}
    incomplete: list[str] = []
    for name in FIGURES:
        values = [row[name] for row in known if row.get(name) is not None]
        totals[name] = sum(values) if values else None
        if values and len(values) < len(known):
            incomplete.append(name)
    totals["invocations"] = len(rows)
    totals["without_usage"] = len(rows) - len(known)
    totals["partial"] = (
        len(known) < len(rows)
        or any(row.get("unavailable") for row in known)
        or not {"prompt_tokens", "completion_tokens"}.isdisjoint(incomplete)
    )
    if incomplete:
        totals["incomplete"] = incomplete
    if rows and not known:
        totals["unavailable"] = next(
            (row["unavailable"] for row in rows if row.get("unavailable")), "not_reported"
        )
    return {**totals, **_cost(rows)}


def _cost(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What the rows say of their cost, besides its sum."""
    found: dict[str, Any] = {}
    costs = [row for row in rows if row.get("cost_usd") is not None]
    sources = sorted({row.get("cost_source") or "reported" for row in costs})
    if sources:
        found["cost_source"] = sources[0] if len(sources) == 1 else "mixed"
    estimated = [
        (
            row.get("cost_estimated_usd") or row["cost_usd"],
            row.get("price_tables") or [row.get("price_table")],
        )
        for row in costs
        if row.get("cost_source") in ("estimated", "mixed")
    ]
    if estimated:
        found["cost_estimated_usd"] = sum(cost for cost, _ in estimated)
        found["price_tables"] = sorted({str(table) for _, tables in estimated for table in tables})
    gaps = {reason for row in rows if (reason := row.get("cost_unavailable")) and isinstance(reason, str)}
    gaps |= {
        each
        for row in rows
        if isinstance(row.get("cost_unavailable"), list)
        for each in row["cost_unavailable"]
    }
    if gaps:
        found["cost_unavailable"] = sorted(gaps)
    return found


def by_role(rows: Iterable[tuple[str, Usage | Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The totals of each role, from pairs of role and usage."""
    groups: dict[str, list[Usage | Mapping[str, Any]]] = {}
    for role, usage in rows:
        groups.setdefault(role, []).append(usage)
    return {role: sum_usage(usages) for role, usages in sorted(groups.items())}
