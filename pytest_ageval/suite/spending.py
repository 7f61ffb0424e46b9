"""What the sessions of a suite run have spent so far, for the budget of the next one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_ageval.accounting import Account, Spent
from pytest_ageval.suite.places import SuiteLayout
from pytest_ageval.suite.record import Settled, read_suite

#: Rows whose attempts cost this suite run nothing.
_ELSEWHERE = frozenset(("reused", "imported"))


def spending(roots: Iterable[Path]) -> Spent:
    """The sum of some suite runs, of attempts that were replaced or did not settle too.

    The account that the calls were counted in says it to the last call that had ended. Where there is none,
    the rows do, without attempts that did not settle.
    """
    total = Spent()
    for root in roots:
        total = total.plus(_of(root))
    return total


def _of(root: Path) -> Spent:
    path = SuiteLayout(root).spent
    try:
        if path.exists():
            return Account(path).spent()
    except (OSError, ValueError, TypeError):
        pass  # torn by a crash of the machine
    suite = read_suite(root)
    rows = [*suite.rows, *(old for each in suite.history.values() for old in each)]
    made = {row.attempt_id: row for row in rows if row.attempt_id and row.source not in _ELSEWHERE}
    total = Spent()
    for row in made.values():
        total = total.plus(_row(row))
    return total


def _row(row: Settled) -> Spent:
    judges = (row.usage.get("judges") or {}).values()
    total = Spent()
    for usage in (row.usage, *(each for each in judges if isinstance(each, Mapping))):
        total = total.plus(_usage(usage))
    return total


def _usage(usage: Mapping[str, Any]) -> Spent:
    """Several calls, of which some may not be known: how many of them is not known either."""
    calls = int(usage.get("invocations") or 0)
    if not calls:
        return Spent()
    cost, gap = usage.get("cost_usd"), bool(usage.get("partial") or usage.get("unavailable"))
    return Spent(
        cost_usd=cost or 0.0,
        tokens=(usage.get("prompt_tokens") or 0) + (usage.get("completion_tokens") or 0),
        calls=calls,
        estimated_usd=usage.get("cost_estimated_usd") or 0.0,
        unknown_cost=int(cost is None or bool(usage.get("cost_unavailable"))),
        unknown_tokens=int(gap),
    )
