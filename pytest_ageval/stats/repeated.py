"""What several attempts at a task promise: pass@k and pass^k."""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING

from pytest_ageval.stats.rates import mean_over_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_ageval.stats.rates import Estimate
    from pytest_ageval.stats.tally import Tally


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of `k` attempts passes, from `c` of `n` that did.

    Unbiased: ``1 - C(n-c, k) / C(n, k)``. M. Chen et al., "Evaluating large language models trained on
    code" (2021), arXiv:2107.03374, section 2.1. Raises ValueError unless ``0 <= c <= n`` and ``1 <= k <= n``.
    """
    _check(n, c, k)
    return 1 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The chance that all of `k` attempts pass (pass^k), from `c` of `n` that did.

    Unbiased: ``C(c, k) / C(n, k)``. S. Yao et al., "tau-bench: a benchmark for tool-agent-user interaction
    in real-world domains" (2024), arXiv:2406.12045, section 3. Raises ValueError as `pass_at_k`.
    """
    _check(n, c, k)
    return comb(c, k) / comb(n, k)


def _check(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"0 <= c <= n and 1 <= k <= n must hold, found n={n}, c={c}, k={k}")


def over_tasks(
    estimate: Callable[[int, int, int], float], tallies: Iterable[Tally], k: int
) -> Estimate | None:
    """The mean over the tasks with at least `k` verdicts; None when there is none."""
    return mean_over_tasks([estimate(t.verdicts, t.passed, k) for t in tallies if t.verdicts >= k])


def values_of_k(tallies: Iterable[Tally]) -> list[int]:
    """1, the powers of 2, and the largest number of verdicts of a task."""
    most = max((t.verdicts for t in tallies), default=0)
    found = {1 << power for power in range(most.bit_length())} if most else set()
    return sorted({k for k in found if k <= most} | ({most} if most else set()))
