"""All figures of a set of attempts, as plain data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_ageval.report.numbers import tokens
from pytest_ageval.stats.rates import clustered_rate, mean_score
from pytest_ageval.stats.repeated import over_tasks, pass_at_k, pass_hat_k, values_of_k
from pytest_ageval.stats.tally import error_bounds, tally, total

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_ageval.stats.rates import Estimate
    from pytest_ageval.suite.record import Settled

Row = dict[str, Any]


def figures(rows: Iterable[Settled]) -> Row:
    """Counts, pass rate, pass@k, pass^k, mean score and distributions of attempts, in JSON types.

    ERRORs are counted apart; `errors_as_fail` and `errors_as_pass` say what the pass rate could be at worst
    and at best. A figure that cannot be had is None.
    """
    found = list(rows)
    tasks = tally(found)
    counted = list(tasks.values())
    whole = total(counted)
    bounds = error_bounds(counted) or (None, None)
    ks = values_of_k(counted)
    return {
        "tasks": len(tasks),
        "attempts": len(found),
        "passed": whole.passed,
        "failed": whole.failed,
        "errors": whole.errors,
        "pass_rate": as_row(clustered_rate([t.passed for t in counted], [t.verdicts for t in counted])),
        "errors_as_fail": bounds[0],
        "errors_as_pass": bounds[1],
        "pass_at_k": {str(k): as_row(over_tasks(pass_at_k, counted, k)) for k in ks},
        "pass_hat_k": {str(k): as_row(over_tasks(pass_hat_k, counted, k)) for k in ks},
        "score": as_row(mean_score([t.scores for t in counted])),
        "flaky": [str(key) for key, each in tasks.items() if each.flaky],
        "error_tasks": {str(key): each.errors for key, each in tasks.items() if each.errors},
        "seconds": distribution([row.seconds for row in found]),
        "tokens": {
            **distribution([tokens({"usage": row.usage}) for row in found]),
            "partial": sum(bool(row.usage.get("partial")) for row in found),
        },
        "cost_usd": {
            **distribution([row.usage.get("cost_usd") for row in found]),
            "estimated": sum(row.usage.get("cost_source") in ("estimated", "mixed") for row in found),
            "partial": sum(_cost_is_partial(row) for row in found),
        },
    }


def _cost_is_partial(row: Settled) -> bool:
    usage = row.usage
    return bool(usage.get("cost_unavailable")) or "cost_usd" in (usage.get("incomplete") or ())


def as_row(estimate: Estimate | None) -> Row | None:
    """An estimate in JSON types."""
    if estimate is None:
        return None
    found = estimate._asdict()
    return {name: None if value in (math.inf, -math.inf) else value for name, value in found.items()}


def distribution(values: Sequence[float | int | None]) -> Row:
    """Median, 90 % quantile (linear between values) and total of what is known; unknown is not zero."""
    known = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    found: Row = {"known": len(known), "unknown": len(values) - len(known)}
    if not known:
        return {**found, "median": None, "p90": None, "total": None}
    median, p90 = (float(value) for value in np.percentile(known, (50, 90)))
    return {**found, "median": median, "p90": p90, "total": math.fsum(known)}
