"""From the outcomes of oracle, nop and tampering agents to what can be said of each task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_ageval.soundness.agents import TAMPERERS

#: What an attempt came to: PASS, FAIL or ERROR, with the score and the error's title.
Row = Mapping[str, Any]


@dataclass(slots=True)
class Soundness:
    """One task. Each list is empty when there is nothing to object to.

    `oracle` and `nop` are statuses in the order of the attempts; `tampered` are the statuses of the
    tampering agents by name.
    """

    task: str
    oracle: list[str] = field(default_factory=list)
    nop: list[str] = field(default_factory=list)
    scores: dict[str, list[str | None]] = field(default_factory=dict)
    tampered: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    evidence: dict[str, str] = field(default_factory=dict)

    @property
    def oracle_accepted(self) -> bool:
        """The reference solution passed every time."""
        return bool(self.oracle) and set(self.oracle) == {"PASS"}

    @property
    def nop_rejected(self) -> bool:
        """Doing nothing failed every time; an ERROR is no verdict."""
        return bool(self.nop) and set(self.nop) == {"FAIL"}

    @property
    def stable(self) -> bool:
        """The same status and the same score every time."""
        seen: list[list[Any]] = [[*self.oracle], [*self.nop], *self.scores.values()]
        return all(len(set(values)) <= 1 for values in seen)

    @property
    def fooled_by(self) -> list[str]:
        """Agents that did no work and passed."""
        return sorted(name for name, status in self.tampered.items() if status == "PASS")

    @property
    def sound(self) -> bool:
        """Nothing to object to."""
        return self.oracle_accepted and self.nop_rejected and self.stable and not self.fooled_by

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "task": self.task,
            "sound": self.sound,
            "oracle_accepted": self.oracle_accepted,
            "nop_rejected": self.nop_rejected,
            "stable": self.stable,
            "tamper_proof": not self.fooled_by,
            "fooled_by": self.fooled_by,
            "oracle": self.oracle,
            "nop": self.nop,
            "tampered": self.tampered,
            "scores": self.scores,
            "errors": self.errors,
            "evidence": self.evidence,
        }


def judge(rows: Iterable[Row]) -> list[Soundness]:
    """What can be said of each task, in the order of its first attempt."""
    last: dict[str, Row] = {}
    for row in rows:
        before = last.get(str(row["nodeid"]))
        # An error of a later phase counts; a report of the clean-up after an error takes nothing back.
        if before is None or before["status"] != "ERROR":
            last[str(row["nodeid"])] = row
    found: dict[str, Soundness] = {}
    for row in last.values():
        task = found.setdefault(str(row["task"]), Soundness(str(row["task"])))
        _note(task, row)
    return list(found.values())


def _note(task: Soundness, row: Row) -> None:
    agent, status = str(row["agent"]), str(row["status"])
    if row.get("error"):
        task.errors.append(f"{agent}: {row['error']}")
    if agent == "oracle":
        task.oracle.append(status)
    elif agent == "nop":
        task.nop.append(status)
    elif agent in {cls.kind for cls in TAMPERERS}:
        task.tampered[agent] = status
    if agent in ("oracle", "nop"):
        task.scores.setdefault(agent, []).append(row.get("score"))
    objectionable = {"oracle": status != "PASS", "nop": status != "FAIL"}.get(agent, status == "PASS")
    if objectionable and row.get("evidence"):
        task.evidence.setdefault(agent, str(row["evidence"]))
