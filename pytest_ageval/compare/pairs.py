"""Two sides compared task by task, as plain data."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from pytest_ageval.compare.sides import DIMENSIONS, digests
from pytest_ageval.stats.figures import figures
from pytest_ageval.stats.paired import detectable, difference, holm, mcnemar, sign_flip
from pytest_ageval.stats.tally import TaskKey, tally

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_ageval.compare.sides import Side
    from pytest_ageval.stats.paired import Alternative, PValue
    from pytest_ageval.stats.tally import Tally

Row = dict[str, Any]
Pair = tuple[TaskKey, "Tally", "Tally"]

FORMAT = "ageval.compare/1"


def report(sides: Sequence[Side], *, alpha: float = 0.05, all_pairs: bool = False) -> Row:
    """The figures of all sides, and each side against the first (or every side against every other).

    With several comparisons the p values are adjusted after Holm.
    """
    chosen = list(itertools.combinations(sides, 2)) if all_pairs else [(sides[0], s) for s in sides[1:]]
    comparisons = [compare(first, second) for first, second in chosen]
    for row, adjusted in zip(comparisons, holm([row["test"]["p"] for row in comparisons]), strict=True):
        row["test"]["p_adjusted"] = adjusted
        row["conclusion"] = conclusion(row, alpha)
    return {
        "format": FORMAT,
        "alpha": alpha,
        "incomplete": incomplete(sides),
        "sides": [_side(side) for side in sides],
        "comparisons": comparisons,
    }


def incomplete(sides: Sequence[Side]) -> list[str]:
    """A sentence for each suite run that is not complete, with the labels of its sides."""
    labels: dict[Path, list[str]] = {}
    for side in sides:
        labels.setdefault(side.root, []).append(side.label)
    found = {side.root: side.completeness for side in sides if not side.completeness.whole}
    return [f"{', '.join(labels[root])}: {each.words}" for root, each in found.items()]


def _side(side: Side) -> Row:
    return {
        "label": side.label,
        "suite_run_id": side.suite_run_id,
        "path": str(side.root),
        "dataset_version": side.dataset_version,
        "completeness": side.completeness.as_dict(),
        "datasets": sorted({row.dataset_id for row in side.rows if row.dataset_id}),
        "configuration": {name: side.values(name) for name in DIMENSIONS},
        "figures": figures(side.rows),
    }


def conclusion(row: Mapping[str, Any], alpha: float) -> str:
    """``better``, ``worse`` or ``inconclusive``: of the second side, at the level `alpha`."""
    if row["difference"] is None or row["test"]["p_adjusted"] >= alpha:
        return "inconclusive"
    return "better" if row["difference"]["value"] > 0 else "worse"


def compare(first: Side, second: Side) -> Row:
    """What changed from `first` to `second`.

    The unit is the task: the share of its judged attempts that passed, on each side. A task without a
    verdict on one side says nothing of the difference and is listed.
    """
    pairs, only, by_name = match(tally(first.rows), tally(second.rows))
    judged = [(key, a, b) for key, a, b in pairs if a.verdicts and b.verdicts]
    found = difference([b.rate - a.rate for _, a, b in judged])
    tested = paired_test(judged)
    return {
        "first": first.label,
        "second": second.label,
        "tasks": len(judged),
        "difference": None if found is None else found._asdict(),
        "test": {"p": tested.p, "method": tested.method},
        "detectable": None if found is None else detectable(found.se),
        "better": [_change(*pair) for pair in judged if pair[2].rate > pair[1].rate],
        "worse": [_change(*pair) for pair in judged if pair[2].rate < pair[1].rate],
        "only_first": only[0],
        "only_second": only[1],
        "unjudged": [
            {"task": str(key), "first_errors": a.errors, "second_errors": b.errors}
            for key, a, b in pairs
            if not (a.verdicts and b.verdicts)
        ],
        "errors": _errors(pairs),
        "warnings": warnings(first, second, pairs, by_name=by_name),
    }


def paired_test(judged: Sequence[Pair], alternative: Alternative = "two-sided") -> PValue:
    """McNemar's exact test where each task was judged once on each side, else the sign-flip test.

    `alternative` is about the second side: ``less`` asks whether it is worse.
    """
    if all(a.verdicts == b.verdicts == 1 for _, a, b in judged):
        better = sum(b.passed > a.passed for _, a, b in judged)
        worse = sum(b.passed < a.passed for _, a, b in judged)
        return mcnemar(better, worse, alternative)
    return sign_flip([b.rate - a.rate for _, a, b in judged], alternative)


def match(
    first: Mapping[TaskKey, Tally], second: Mapping[TaskKey, Tally]
) -> tuple[list[Pair], tuple[list[str], list[str]], bool]:
    """The tasks on both sides, those on one of them, and whether data sets' names had to be ignored."""
    by_name = not (first.keys() & second.keys())
    if by_name:
        short = [{TaskKey("", key.task): each for key, each in side.items()} for side in (first, second)]
        # Not where one side has two tasks of one name.
        by_name = len(short[0]) == len(first) and len(short[1]) == len(second)
        by_name = by_name and bool(short[0].keys() & short[1].keys())
        if by_name:
            first, second = short
    pairs = [(key, each, second[key]) for key, each in first.items() if key in second]
    only = ([str(k) for k in first if k not in second], [str(k) for k in second if k not in first])
    return pairs, only, by_name


def _change(key: TaskKey, a: Tally, b: Tally) -> Row:
    return {
        "task": str(key),
        "first": [a.passed, a.verdicts],
        "second": [b.passed, b.verdicts],
        "flipped": (a.rate >= 0.5) != (b.rate >= 0.5),
    }


def _errors(pairs: Sequence[Pair]) -> Row:
    """How many attempts have no verdict, and the difference if these were all for or all against a side."""
    low = [_rate(b, 0) - _rate(a, 1) for _, a, b in pairs]
    high = [_rate(b, 1) - _rate(a, 0) for _, a, b in pairs]
    return {
        "first": sum(a.errors for _, a, _ in pairs),
        "second": sum(b.errors for _, _, b in pairs),
        "low": sum(low) / len(low) if low else None,
        "high": sum(high) / len(high) if high else None,
    }


def _rate(each: Tally, errors_pass: int) -> float:
    return (each.passed + errors_pass * each.errors) / (each.verdicts + each.errors)


def warnings(first: Side, second: Side, pairs: Sequence[Pair], *, by_name: bool) -> list[str]:
    """Why the difference might be one of something else than what is compared."""
    found = []
    if by_name:
        found.append("the data sets have different names; tasks are paired by their own names alone")
    if first.dataset_version != second.dataset_version:
        versions = f"{first.dataset_version or 'unknown'} and {second.dataset_version or 'unknown'}"
        found.append(f"different versions of the data set: {versions}")
    names = [key.task for key, _, _ in pairs]
    one, other = (digests(side.rows, side.attempt_dir, names) for side in (first, second))
    changed = [n for n in names if one.get(n, "") != other.get(n, "")]
    known = [n for n in changed if n in one and n in other]
    unknown = [n for n in names if n not in one or n not in other]
    if known:
        found.append(f"{_some(known)}: the files of the task are not the same on both sides")
    if unknown:
        found.append(f"{_some(unknown)}: not known whether the files of the task are the same on both sides")
    for side in (first, second):
        if not side.completeness.whole:
            found.append(f"{side.label} is not complete: {side.completeness.words}")
        mixed = [name for name in DIMENSIONS if name != "variant" and len(side.values(name)) > 1]
        if mixed:
            found.append(f"{side.label} mixes attempts of different {', '.join(mixed)}")
    return found


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{len(names)} task{'s' if len(names) != 1 else ''} ({', '.join(names[:5])}{more})"
