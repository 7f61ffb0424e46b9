"""What was used and what it cost, in words: unknown is never zero, and an estimate says that it is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_ageval.accounting.meter import UNCOUNTED
from pytest_ageval.evidence.usage import sum_usage
from pytest_ageval.report.numbers import cost, count, dollars, tokens, total

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_ageval.accounting import Ledger

Usage = dict[str, Any]

#: Before an amount that is estimated, in whole or in part; after one that is only a lower bound.
ESTIMATED = "~"
AT_LEAST = "+"


def of(row: Mapping[str, Any]) -> Usage:
    """The usage of an attempt."""
    return dict(row.get("usage") or {})


def tokens_cell(rows: Iterable[Mapping[str, Any]]) -> str:
    """``12.3k``, ``12.3k+`` when some tokens are not known, ``-`` when none are."""
    found = list(rows)
    known = total(tokens(row) for row in found)
    gap = any(of(row).get("partial") for row in found)
    return count(known) + (AT_LEAST if gap and known is not None else "")


def cost_cell(rows: Iterable[Mapping[str, Any]]) -> str:
    """``$0.12``, ``~$0.12`` when some of it is an estimate, ``$0.12+`` when there is more."""
    usages = [of(row) for row in rows]
    known = total(usage.get("cost_usd") for usage in usages)
    if known is None:
        return cost(None)
    mark = ESTIMATED if any(_estimated(usage) for usage in usages) else ""
    return mark + cost(known) + (AT_LEAST if any(_more(usage) for usage in usages) else "")


def _estimated(usage: Mapping[str, Any]) -> bool:
    return usage.get("cost_source") in ("estimated", "mixed")


def _more(usage: Mapping[str, Any]) -> bool:
    """There were calls whose cost is not in the sum."""
    return bool(usage.get("cost_unavailable")) or "cost_usd" in (usage.get("incomplete") or ())


def lines(rows: Iterable[Mapping[str, Any]], ledger: Ledger | None) -> list[str]:
    """What the whole run used: agents, roles if there are several, judges; the marks' meaning; the budget."""
    rows = list(rows)
    usages = [of(row) for row in rows]
    groups = [
        ("usage", [usage for usage in usages if usage.get("invocations")]),
        *_by_role("  role", usages, "by_role", several=True),
        *_by_role("judge", usages, "judges"),
    ]
    sums = [(title, found) for title, group in groups if group and _known(found := combine(group))]
    written = [f"{title}: {words(found)}" for title, found in sums]
    whole = combine([each for title, group in groups if not title.startswith("  ") for each in group])
    return [*written, *_legend(whole, " ".join(written)), *_uncounted(rows), *_budget(ledger)]


def _by_role(
    title: str, usages: Iterable[Usage], key: str, *, several: bool = False
) -> Iterator[tuple[str, list[Usage]]]:
    found: dict[str, list[Usage]] = {}
    for usage in usages:
        for role, row in (usage.get(key) or {}).items():
            found.setdefault(role, []).append(row)
    if len(found) > int(several):
        for role in sorted(found):
            yield f"{title} {role}", found[role]


def combine(usages: Sequence[Usage]) -> Usage:
    """The sum of sums."""
    found = sum_usage(usages)
    for name in ("invocations", "without_usage"):
        found[name] = sum(usage.get(name) or 0 for usage in usages)
    found["partial"] = any(usage.get("partial") for usage in usages)
    found["incomplete"] = sorted({name for usage in usages for name in usage.get("incomplete") or ()})
    return found


def _known(usage: Usage) -> bool:
    return tokens({"usage": usage}) is not None or usage.get("cost_usd") is not None


def words(usage: Usage) -> str:
    """``1.5k tokens (1.2k input, 0.8k of it cached; 0.3k output), ~$0.0123``."""
    row = {"usage": usage}
    parts = [_part(usage, "prompt_tokens", "input", "cached_tokens", "cached")]
    parts.append(_part(usage, "completion_tokens", "output", "reasoning_tokens", "reasoning"))
    split = "; ".join(part for part in parts if part)
    money = "cost unknown" if usage.get("cost_usd") is None else cost_cell([row])
    return f"{tokens_cell([row])} tokens{f' ({split})' if split else ''}, {money}"


def _part(usage: Usage, whole: str, name: str, share: str, what: str) -> str:
    if usage.get(whole) is None:
        return ""
    more = "" if not usage.get(share) else f", {count(usage[share])} of it {what}"
    return f"{count(usage[whole])} {name}{more}"


def _legend(usage: Usage, written: str) -> Iterator[str]:
    if ESTIMATED in written:
        tables = ", ".join(usage.get("price_tables") or ())
        mixed = usage.get("cost_source") != "estimated"
        part = f"{cost(usage.get('cost_estimated_usd'))} of it is " if mixed else ""
        yield f"{ESTIMATED} {part}estimated from list prices: {tables}"
    gaps = ", ".join(usage.get("cost_unavailable") or ())
    if usage.get("partial") and _known(usage):
        some = usage["without_usage"]
        who = f"the usage of {some} invocation{'s' if some != 1 else ''}" if some else "a part of the usage"
        yield f"{AT_LEAST} at least: {who} is not known"
    if gaps and _known(usage):
        yield f"the cost of some calls is not known: {gaps}"


def _uncounted(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    found = sum(UNCOUNTED in (row.get("flags") or ()) for row in rows)
    if found:
        attempts = "1 attempt" if found == 1 else f"{found} attempts"
        yield f"budget warning: {attempts} made calls that its own budget could not count in full"


def _budget(ledger: Ledger | None) -> Iterator[str]:
    if ledger is None:
        return
    spent, budget = ledger.spent(), ledger.budget
    limits = {"max_cost": budget.max_cost_usd, "max_tokens": budget.max_tokens}
    used = [spent.words(name, budget) for name, limit in limits.items() if limit is not None]
    before = ledger.before
    earlier = [
        dollars(before.cost_usd) if name == "max_cost" else f"{before.tokens} tokens"
        for name, limit in limits.items()
        if limit is not None
    ]
    more = f" ({', '.join(earlier)} of it by earlier sessions)" if before.calls else ""
    yield f"budget: {', '.join(used)}{more}"
    unknown = [
        f"the {what} of {calls} call{'s' if calls != 1 else ''}"
        for what, calls, limit in (
            ("cost", spent.unknown_cost, budget.max_cost_usd),
            ("tokens", spent.unknown_tokens, budget.max_tokens),
        )
        if calls and limit is not None
    ]
    if unknown:
        yield (
            f"budget warning: {' and '.join(unknown)} could not be counted in full; "
            "more was spent than this says"
        )
