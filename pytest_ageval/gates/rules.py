"""The gates. Each looks at the attempts of a run and decides; a decision says why, with the figures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pytest_ageval.errors import ConfigError
from pytest_ageval.report.numbers import interval
from pytest_ageval.stats.tally import tally, total

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_ageval.gates.baseline import Baseline
    from pytest_ageval.suite.record import Settled

Group = tuple[str, str, str, str, str]


class Decision(NamedTuple):
    """What one gate says of one group, and why. `passed` is None when it could not be judged."""

    gate: str
    passed: bool | None
    why: str

    @property
    def line(self) -> str:
        """``gate fail-under: FAILED: ...``; what could not be judged did not pass."""
        word = {True: "passed", False: "FAILED", None: "not judged"}[self.passed]
        return f"gate {self.gate}: {word}: {self.why}"


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """``--max-errors``: a number of attempts, or a share of all of them."""

    text: str
    count: int | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates of a run; None where there is none. `alpha` is the level of the baseline's test."""

    fail_under: float | None = None
    max_errors: ErrorLimit | None = None
    baseline: Baseline | None = None
    alpha: float = 0.05

    def __bool__(self) -> bool:
        return any(gate is not None for gate in (self.fail_under, self.max_errors, self.baseline))

    @property
    def judges_fails(self) -> bool:
        """How many attempts may FAIL is what a gate decides."""
        return self.fail_under is not None or self.baseline is not None

    @property
    def judges_errors(self) -> bool:
        """How many ERRORs there may be is what a gate decides."""
        return self.max_errors is not None

    def judge(self, rows: Sequence[Settled]) -> list[Decision]:
        """Every gate on `rows`, which are all attempts of the run."""
        found: list[Decision] = []
        if self.fail_under is not None:
            found += fail_under(rows, self.fail_under)
        if self.max_errors is not None:
            found.append(max_errors(rows, self.max_errors))
        if self.baseline is not None:
            found += self.baseline.judge(rows, self.alpha)
        return found

    def names(self) -> list[str]:
        """The gates that there are."""
        given = {"fail-under": self.fail_under, "max-errors": self.max_errors, "baseline": self.baseline}
        return [name for name, gate in given.items() if gate is not None]


# -- what is asked ---------------------------------------------------------------------------------


def parse_rate(text: str, flag: str = "--fail-under") -> float:
    """``0.8`` or ``80%`` as a number in [0, 1]. Raises ConfigError ``invalid_option``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)(\s*%)?", text.strip())
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise ConfigError("invalid_option", f"{flag}: expected a rate such as 0.8 or 80%, found {text!r}")
    return value


def parse_errors(text: str) -> ErrorLimit:
    """``3`` attempts or ``5%`` of them. Raises ConfigError ``invalid_option``."""
    given = text.strip()
    if re.fullmatch(r"\d+", given):
        return ErrorLimit(given, count=int(given))
    if not given.endswith("%"):
        raise ConfigError(
            "invalid_option", f"--max-errors: expected a number such as 3 or 5%, found {text!r}"
        )
    return ErrorLimit(given, share=parse_rate(given, "--max-errors"))


def parse_alpha(value: float) -> float:
    """A level of a test. Raises ConfigError ``invalid_option``."""
    if not 0 < value < 1:
        raise ConfigError("invalid_option", f"--baseline-alpha must be between 0 and 1, found {value}")
    return value


# -- what is decided -------------------------------------------------------------------------------


def groups(rows: Sequence[Settled]) -> dict[Group, list[Settled]]:
    """The attempts of each data set, agent, model, effort and box."""
    found: dict[Group, list[Settled]] = {}
    for row in rows:
        found.setdefault(row.group, []).append(row)
    return found


def group_name(group: Group) -> str:
    """``demo, codex / gpt-5 / docker``."""
    dataset, *who = group
    return ", ".join(part for part in (dataset, " / ".join(filter(None, who))) if part) or "all attempts"


def judged_groups(rows: Sequence[Settled]) -> dict[Group, list[Settled]]:
    """Groups that stand for somebody: a task that cannot be read has no agent, and is an ERROR of the run."""
    found = groups(rows)
    named = {
        group: some for group, some in found.items() if any(r.status != "ERROR" for r in some) or group[1]
    }
    return named or found


def fail_under(rows: Sequence[Settled], rate: float) -> list[Decision]:
    """At least `rate` of the judged attempts of each group pass. ERRORs are not counted.

    A group without a verdict does not pass: nothing was measured.
    """
    if not rows:
        return [Decision("fail-under", False, "there is no attempt")]
    return [_fail_under(group, some, rate) for group, some in judged_groups(rows).items()]


def _fail_under(group: Group, rows: Sequence[Settled], rate: float) -> Decision:
    counted = tally(rows)
    whole = total(counted.values())
    name = group_name(group)
    if not whole.verdicts:
        why = f"{name}: none of {len(rows)} attempts has a verdict ({whole.errors} errors)"
        return Decision("fail-under", False, why)
    low, high = interval(whole.passed, [each.verdicts for each in counted.values()])
    errors = f"; {whole.errors} errors are not counted" if whole.errors else ""
    why = (
        f"{name}: {whole.passed} of {whole.verdicts} attempts pass, {whole.rate:.1%} "
        f"[{low:.1%}, {high:.1%}], asked for {rate:.1%}{errors}"
    )
    # Exact: 0.8 of 5 attempts are 4, whatever floating point makes of it.
    return Decision("fail-under", whole.passed >= rate * whole.verdicts - 1e-9, why)


def max_errors(rows: Sequence[Settled], limit: ErrorLimit) -> Decision:
    """No more ERRORs than `limit` in the whole run."""
    errors = sum(row.status == "ERROR" for row in rows)
    allowed = limit.count if limit.count is not None else (limit.share or 0.0) * len(rows)
    share = f" ({errors / len(rows):.1%})" if rows else ""
    why = f"{errors} of {len(rows)} attempts are errors{share}, allowed are {limit.text}"
    return Decision("max-errors", errors <= allowed + 1e-9, why)
