"""Items that are not run: an earlier session, or an attempt with the same lock, has their result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ageval.errors import AgevalError, TaskFailed

if TYPE_CHECKING:
    from pytest_ageval.collection import TaskItem
    from pytest_ageval.suite.record import Settled
    from pytest_ageval.suite.recorded import Decision

#: What was decided for an item, and with what it is shown.
DECISION: pytest.StashKey[Decision] = pytest.StashKey()
SHOWN: pytest.StashKey[Shown] = pytest.StashKey()

#: Its attempt was started before its turn.
AHEAD: pytest.StashKey[bool] = pytest.StashKey()


class Shown:
    """The result with which an item is shown. `data` is what its report carries."""

    def __init__(self, row: Settled, evidence: Path) -> None:
        from pytest_ageval.suite.rows import directory, to_data

        self.row = row
        self.directory = directory(row, evidence)
        self.data: dict[str, Any] = to_data(row, evidence)
        self.data["recorded"] = {"settled_at": row.settled_at}

    @property
    def words(self) -> str:
        """``recorded`` or ``reused``."""
        return "reused" if self.row.source == "reused" else "recorded"

    def replay(self) -> None:
        """End as the attempt did. Raises TaskFailed or AgevalError."""
        if self.row.status == "PASS":
            return
        if self.row.status == "FAIL":
            raise TaskFailed(
                self.row.message or self._message(),
                score=self.row.score,
                failed_checks=tuple(self.row.failed_checks),
                evidence=str(self.directory or ""),
            )
        error = self.row.error or {}
        raise AgevalError(
            str(error.get("title") or "no_verdict"),
            str(error.get("message") or ""),
            phase=error.get("phase"),
            detail=error.get("detail"),
        )

    def _message(self) -> str:
        """What a FAIL says of itself, where no report was made."""
        from pytest_ageval.attempt import Outcome
        from pytest_ageval.attempt_face import fail_message

        outcome = Outcome(
            score=self.row.score,
            limit=self.row.limit,
            checks=self.data.get("checks") or (),
            failed_checks=tuple(self.row.failed_checks),
            not_produced=self.data.get("not_produced") or (),
            terminal=self.data.get("terminal"),
            evidence_path=str(self.directory or "gone"),
        )
        return fail_message(outcome)


def look_up(item: TaskItem) -> Shown | None:
    """How the item is shown if it is not to be run; also decides where it goes on if it is.

    Raises ConfigError for a task that cannot be locked, and AgevalError ``resume_digest_changed``.
    """
    if item.stash.get(AHEAD, False):  # it runs already, as was decided then
        item.stash[AHEAD] = False
        return None
    if SHOWN in item.stash:  # the test is run again
        del item.stash[SHOWN]
    if DECISION in item.stash:
        del item.stash[DECISION]
    if item.config.getoption("setupplan", False):
        return None
    from pytest_ageval.job import Job

    job = Job.of(item.config)
    if not job.suites.looks_back or (job.unbound_roles(item) and not item.variant.role_agents):
        return None
    from pytest_ageval.attempt_face import identify

    locked = job.lock(item, credentials=False)
    decision = job.suites.decide(item, locked, identify(item, locked))
    item.stash[DECISION] = decision
    if decision.show is None:
        return None
    shown = Shown(decision.show, job.evidence_root(locked.dataset_root))
    item.stash[SHOWN] = shown
    return shown
