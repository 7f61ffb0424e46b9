"""What the phases of one attempt at a Harbor task tell each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pytest_ageval.errors import AgevalError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: SCORED: there is a reward. INDETERMINATE: the verifier did not get that far. SCORING_ERROR: it left
#: something that is no reward.
RewardStatus = Literal["SCORED", "INDETERMINATE", "SCORING_ERROR"]

#: Titles of errors about what the verifier left; all others are about the verifier itself.
SCORING_ERRORS = frozenset(
    {
        "reward_ambiguous",
        "reward_conflict",
        "reward_invalid",
        "reward_key_missing",
        "reward_missing",
        "reward_not_a_file",
        "reward_out_of_range",
        "reward_too_large",
    }
)


@dataclass(slots=True)
class StepRecord:
    """One step: its rewards, or why there are none. `exit_code` is test.sh's and decides nothing."""

    name: str
    rewards: dict[str, float] | None = None
    error: AgevalError | None = None
    exit_code: int | None = None
    limit: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    #: Tokens and cost of the verifier's judges, where it says so.
    judges: dict[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> RewardStatus:
        """See `RewardStatus`."""
        if self.rewards is not None:
            return "SCORED"
        title = self.error.title if self.error is not None else ""
        return "SCORING_ERROR" if title in SCORING_ERRORS else "INDETERMINATE"

    @classmethod
    def again(cls, found: Mapping[str, Any]) -> StepRecord:
        """A step that another process had graded, from `as_dict`."""
        error = found.get("error")
        return cls(
            name=str(found["step_name"]),
            rewards=found.get("rewards"),
            error=None if error is None else AgevalError(**error),
            exit_code=found.get("evaluator_exit"),
            limit=found.get("limit"),
            seconds=dict(found.get("seconds") or {}),
        )

    def as_dict(self) -> dict[str, Any]:
        """For the evidence."""
        found = {
            "step_name": self.name,
            "status": self.status,
            "rewards": self.rewards,
            "evaluator_exit": self.exit_code,
            "limit": self.limit,
            "seconds": self.seconds,
        }
        if self.judges:
            found["judges"] = self.judges
        return found if self.error is None else {**found, "error": self.error.as_dict()}
