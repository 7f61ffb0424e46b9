"""What a suite run knows of a slot when a session goes on with it, and what is to be done then."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence.files import read_document
from pytest_ageval.evidence.layout import Layout
from pytest_ageval.evidence.writer import still_runs
from pytest_ageval.suite import started as starts
from pytest_ageval.suite.changes import differences
from pytest_ageval.suite.places import SuiteLayout
from pytest_ageval.suite.record import Settled, read_suite
from pytest_ageval.suite.run import is_unfinished

#: Seconds for which an attempt is waited for that a process of a killed session still cleans up.
PATIENCE = 15.0


class Decision(NamedTuple):
    """What an item does. `slot` is its place in the record.

    `show`: the row with which it is shown. `resume`: the attempt directory in which it goes on. Neither:
    it runs from its beginning.
    """

    slot: str
    show: Settled | None = None
    resume: Path | None = None


class Recorded:
    """The record of one suite run, read once."""

    def __init__(self, root: Path) -> None:
        suite = read_suite(root)
        self.evidence = SuiteLayout(root).evidence
        self.suite_run_id = suite.header.suite_run_id
        self._rows = suite.settled
        self._by_lock: dict[tuple[str, int, str], Settled] = {}
        self._by_place: dict[tuple[str, str, int], list[Settled]] = {}
        self._digests: dict[tuple[str, str], set[str]] = {}
        for row in suite.rows:
            if row.attempt_id is not None:
                self._by_place.setdefault((row.task_id, row.variant, row.attempt), []).append(row)
            if row.digest is not None and not is_unfinished(row):
                self._by_lock.setdefault((row.digest, row.attempt, row.agent or ""), row)
                self._digests.setdefault(_binding(row.slot, row.variant), set()).add(row.digest)
        self._started: dict[str, list[starts.Started]] = {}
        for line in starts.read(root):
            self._started.setdefault(line.slot, []).append(line)

    def row(self, slot: str, known: Mapping[str, Any]) -> Settled | None:
        """The row of a slot. The name of an item depends on the command line; its lock does not.

        Nor do the task, the variant and the number of the attempt, which stay when the lock changes.
        """
        found = self._rows.get(slot)
        if found is None:
            found = self._by_lock.get((known["digest"], known["attempt"], known.get("agent") or ""))
        if found is None:
            place = (str(known["task"]), known.get("variant") or "", known["attempt"])
            rows = self._by_place.get(place, [])
            found = rows[0] if len(rows) == 1 else None  # several: somebody else made them
        return found

    def decide(
        self,
        slot: str,
        known: Mapping[str, Any],
        lock: Mapping[str, Any],
        *,
        retry_errors: bool,
        replace: bool,
    ) -> Decision:
        """What the item of `slot` does. `known` is what is known of it, `lock` its lock.json.

        Raises AgevalError ``resume_digest_changed``.
        """
        row = self.row(slot, known)
        if row is None or is_unfinished(row):
            row = self._late(slot if row is None else row.slot) or row
        if row is not None:
            slot = row.slot
        if row is not None and not is_unfinished(row):
            if replace:
                return Decision(slot)
            self._same_lock(row, known, lock)
            again = row.status == "ERROR" and retry_errors
            return Decision(slot) if again else Decision(slot, show=row)
        if not replace:
            self._same_lock_as_others(slot, known, lock)
        return Decision(slot, resume=self._unsettled(slot, known))

    def _late(self, slot: str) -> Settled | None:
        """The row of an attempt that settled when nobody recorded it any more."""
        for line in reversed(self._started.get(slot, ())):
            _wait_for_writer(self.evidence / line.attempt_dir)
            row = starts.settled(line, self.evidence)
            if row is not None and not is_unfinished(row):
                return row
        return None

    def _unsettled(self, slot: str, known: Mapping[str, Any]) -> Path | None:
        """The directory of the newest attempt at the slot that can be continued."""
        for line in reversed(self._started.get(slot, ())):
            directory = self.evidence / line.attempt_dir
            if line.known.get("digest") == known["digest"] and can_be_continued(directory):
                return directory
        return None

    # -- the lock --------------------------------------------------------------------------------

    def _same_lock(self, row: Settled, known: Mapping[str, Any], lock: Mapping[str, Any]) -> None:
        if row.digest is not None and row.digest != known["digest"]:
            self._refuse(row, lock)

    def _same_lock_as_others(self, slot: str, known: Mapping[str, Any], lock: Mapping[str, Any]) -> None:
        """Attempts that are counted together are attempts at the same thing."""
        binding = _binding(slot, known.get("variant") or "")
        digests = self._digests.get(binding, set())
        if digests and known["digest"] not in digests:
            other = next(
                row
                for row in self._rows.values()
                if _binding(row.slot, row.variant) == binding and row.digest
            )
            self._refuse(other, lock)

    def _refuse(self, row: Settled, lock: Mapping[str, Any]) -> None:
        changes = ["its lock is not there any more, so what has changed cannot be told"]
        if row.attempt_dir is not None:
            try:
                before = read_document(Layout(self.evidence / row.attempt_dir).lock)
            except AgevalError:
                before = None
            if before is not None:
                changes = differences(before, lock)
        raise AgevalError(
            "resume_digest_changed",
            f"since {row.attempt_id or 'an attempt'} in suite {self.suite_run_id}: {'; '.join(changes)}\n"
            "  take the change back, run this slot again with --replace (select it with -k or its path), "
            "or begin a new suite without --resume",
            phase="lock",
        )


def _binding(slot: str, variant: str) -> tuple[str, str]:
    """What the attempts at a task by one agent with one model in one box have in common."""
    return slot.partition("::")[0], variant


def _wait_for_writer(directory: Path) -> None:
    """Until nobody writes there. A worker outlives its killed controller for as long as it cleans up."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            owner = read_document(Layout(directory).writer)
        except (AgevalError, OSError):
            owner = {}
        if owner is None or not (owner and still_runs(owner)):
            return
        time.sleep(0.1)


def can_be_continued(directory: Path) -> bool:
    """The attempt in `directory` did not settle, and what it did can be taken up again."""
    from pytest_ageval.attempt.resume import unsettled

    try:
        return unsettled(directory) is not None
    except AgevalError:
        return False
