"""How a run says that it has ended. It says nothing about the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RunTerminalKind(StrEnum):
    """The two ways in which a run can end by itself."""

    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RunTerminal:
    """What ``run(ctx)`` returns: `kind`, and a `reason` for people.

    Both kinds go to the evaluator, which alone decides; the reason is shown in the result.
    """

    kind: RunTerminalKind
    reason: str = ""

    @staticmethod
    def completed(reason: str = "ok") -> RunTerminal:
        """The run did what it set out to do."""
        return RunTerminal(RunTerminalKind.COMPLETED, reason)

    @staticmethod
    def failed(reason: str) -> RunTerminal:
        """The run could not finish, and why."""
        return RunTerminal(RunTerminalKind.FAILED, reason)

    def to_dict(self) -> dict[str, str]:
        """Plain data for the evidence."""
        return {"kind": str(RunTerminalKind(self.kind)), "reason": str(self.reason)}
