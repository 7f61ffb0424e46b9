"""Figures of attempts, and how they are written. Imports nothing, so that any process can."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Quantile of the normal distribution for a 95 % interval.
Z95 = 1.959963984540054


def wilson(successes: float, trials: float, z: float = Z95) -> tuple[float, float]:
    """Score interval of a proportion (95 % by default); ``(0.0, 1.0)`` without trials.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of
    the American Statistical Association 22 (1927), 209-212. Unlike the normal approximation it stays
    within [0, 1] and is meaningful for few trials and for proportions of 0 and 1.
    """
    if trials == 0:
        return 0.0, 1.0
    p = successes / trials
    scale = 1 + z * z / trials
    middle = (p + z * z / (2 * trials)) / scale
    half = z * sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / scale
    return max(0.0, middle - half), min(1.0, middle + half)


def effective_size(sizes: Iterable[int]) -> float:
    """How many independent attempts `sizes` (attempts at each task) are worth: ``(sum n)^2 / sum n^2``.

    Attempts at one task resemble each other. For clusters of m, L. Kish, "Survey Sampling" (1965),
    ch. 5, divides the size of a sample by the design effect ``1 + (m - 1) rho``; with the weights of
    unequal clusters it becomes the formula above at ``rho = 1``. The correlation is not estimated: a
    few tasks cannot tell it, and where all attempts pass nothing can. So the interval is one for
    tasks like these, never too narrow, and 3 attempts at each of 7 tasks are worth 7.
    """
    found = [size for size in sizes if size]
    return sum(found) ** 2 / sum(size * size for size in found) if found else 0.0


def interval(passed: int, sizes: Sequence[int]) -> tuple[float, float]:
    """The 95 % interval of a pass rate, of `passed` among the attempts in `sizes` (one for each task)."""
    scored, effective = sum(sizes), effective_size(sizes)
    return wilson(passed / scored * effective if scored else 0, effective)


def tokens(data: Mapping[str, Any]) -> int | None:
    """Input and output tokens of an attempt; None when neither is known."""
    usage = data.get("usage") or {}
    found = total(usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
    return None if found is None else int(found)


def total_seconds(data: Mapping[str, Any]) -> float | None:
    """Seconds that the phases of an attempt took."""
    timing = data.get("timing") or {}
    return sum(timing.values()) / 1000 if timing else None


def total(values: Iterable[Any]) -> float | None:
    """The sum of the numbers among `values`; None when there is none: unknown is not zero."""
    known = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return sum(known) if known else None


def count(value: float | None) -> str:
    """``-``, ``950``, ``12.3k``, ``4.5M``."""
    if value is None:
        return "-"
    if value < 1000:
        return f"{value:.0f}"
    return f"{value / 1000:.1f}k" if value < 1_000_000 else f"{value / 1_000_000:.1f}M"


def dollars(value: float) -> str:
    """US dollars with four decimals, and with more where these would show nothing."""
    return f"${value:.4f}" if value == 0 or value >= 0.0001 else f"${value:.9f}".rstrip("0")


def cost(value: float | None) -> str:
    """US dollars."""
    return "-" if value is None else dollars(value) if value < 0.1 else f"${value:.2f}"


def seconds(value: float | None) -> str:
    """``-``, ``0.4s``, ``2m05s``, ``1h02m``."""
    if value is None:
        return "-"
    if value < 60:
        return f"{value:.1f}s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"
