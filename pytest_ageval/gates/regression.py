"""The gate that fails only on a regression that chance does not explain. Needs the extra ``stats``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_ageval.compare.pairs import match, paired_test
from pytest_ageval.compare.render import METHODS, points
from pytest_ageval.compare.sides import digests
from pytest_ageval.gates.rules import Decision, group_name, judged_groups
from pytest_ageval.stats.paired import detectable, difference, holm
from pytest_ageval.stats.tally import pass_rate, tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_ageval.gates.baseline import Baseline
    from pytest_ageval.gates.rules import Group
    from pytest_ageval.stats.paired import Difference
    from pytest_ageval.suite.record import Settled

GATE = "baseline"


class _Measured(NamedTuple):
    group: Group
    found: Difference
    p: float
    method: str
    before: float
    after: float
    left_out: list[str]
    baseline: Baseline


def judge(baseline: Baseline, rows: Sequence[Settled], alpha: float) -> list[Decision]:
    """One decision for each group of `rows`, paired by task with the baseline.

    Tasks whose files have changed since are left out. A group without a counterpart is not judged; if no
    group has one, the gate fails.
    """
    run = judged_groups(rows)
    unjudged: list[Decision] = []
    measured: list[_Measured] = []
    for group, some in run.items():
        other = baseline.counterpart(group, run)
        result = _unknown(baseline, group) if other is None else _measure(baseline, group, other, some)
        if isinstance(result, str):
            unjudged.append(Decision(GATE, None, result))
        else:
            measured.append(result)
    if not measured:
        why = "; ".join(each.why for each in unjudged) or "there is no attempt"
        return [Decision(GATE, False, f"nothing can be compared with {baseline.title}: {why}")]
    adjusted = holm([each.p for each in measured])
    return [*(_decide(each, p, alpha) for each, p in zip(measured, adjusted, strict=True)), *unjudged]


def _unknown(baseline: Baseline, group: Group) -> str:
    known = "; ".join(map(group_name, baseline.tallies)) or "nothing"
    return f"{group_name(group)}: {baseline.title} has {known}"


def _measure(baseline: Baseline, group: Group, other: Group, rows: Sequence[Settled]) -> _Measured | str:
    now = digests(rows, _directory)
    then = baseline.contents.get(other, {})
    changed = sorted(task for task in now.keys() & then.keys() if now[task] != then[task])
    pairs, _, _ = match(baseline.tallies[other], tally(rows))
    same = [(k, a, b) for k, a, b in pairs if a.verdicts and b.verdicts and k.task not in changed]
    found = difference([b.rate - a.rate for _, a, b in same])
    if found is None:
        files = f"; the files of {len(changed)} tasks have changed" if changed else ""
        return f"{group_name(group)}: no task has a verdict here and in {baseline.title}{files}"
    tested = paired_test(same, "less")
    left_out = [f"{len(pairs) - len(same) - len(changed)} tasks without a verdict"]
    left_out = left_out if len(pairs) - len(same) - len(changed) > 0 else []
    left_out += [f"{len(changed)} tasks whose files have changed"] if changed else []
    before, after = pass_rate(a for _, a, _ in same), pass_rate(b for _, _, b in same)
    return _Measured(group, found, tested.p, tested.method, before or 0.0, after or 0.0, left_out, baseline)


def _directory(row: Settled) -> Path | None:
    """Rows of a run name their evidence by a whole path."""
    return None if row.attempt_dir is None else Path(row.attempt_dir)


def _decide(each: _Measured, p: float, alpha: float) -> Decision:
    found = each.found
    worse = p < alpha and found.value < 0
    left_out = f"; left out: {', '.join(each.left_out)}" if each.left_out else ""
    missing = f"; the baseline is {each.baseline.title}" if each.baseline.missing else ""
    drop = f"{100 * detectable(found.se, alpha, sides=1):.1f} points"
    why = (
        f"{group_name(each.group)}: {each.after:.1%} after {each.before:.1%} on {found.tasks} tasks, "
        f"{points(found.value)} points [{points(found.low)}, {points(found.high)}]; one-sided p = {p:.3g} "
        f"({METHODS[each.method]}), level {alpha:g}; a drop of {drop} "
        f"would be found with 80 % power{left_out}{missing}"
    )
    return Decision(GATE, not worse, why)
