"""Admission by resources: what attempts in flight ask for together stays below what there is.

Whoever waits for a resource is passed by those only that do not need it, so that nobody is starved. An
attempt that asks for more than there is goes alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_ageval.inflight import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_ageval.config.locked import LockedTask
    from pytest_ageval.job import Job


@dataclass(frozen=True, slots=True)
class Need:
    """What one attempt takes for as long as it runs, by the name of the resource."""

    amounts: Mapping[str, float]


class Admission:
    """Counts what is taken. For the main thread and, `leave`, any other under the pool's lock."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._processes = limits.workers(job.config)
        self._processes_here = limits.workers_here(job.config)
        self._taken: Counter[str] = Counter()
        self._users: Counter[str] = Counter()
        self._limits: dict[str, float] = {}

    def need_of(self, locked: LockedTask) -> Need:
        """What an attempt with this configuration takes: a sandbox, and of this machine what it asks for."""
        kind = locked.box.kind
        cls = self._job.registry.box(kind)
        amounts: dict[str, float] = {}
        most = limits.max_sandboxes(self._job).get(kind, cls.at_once)
        if most is not None:
            self._limit(f"box:{kind}", most)
            amounts[f"box:{kind}"] = 1
        if not cls.elsewhere:
            for name, asked in (("cpus", "cpus"), ("memory", "memory_mb")):
                amount = _number(locked.parameters.get(asked))
                if amount > 0:
                    self._limit(name, None)
                    amounts[name] = amount
        return Need(amounts)

    def _limit(self, name: str, most: float | None) -> None:
        if name not in self._limits:
            processes = self._processes
            if most is None:  # what this machine has
                most = limits.cpus(self._job) if name == "cpus" else limits.memory_mb(self._job)
                processes = self._processes_here
            self._limits[name] = limits.share(most, processes)

    def short_of(self, need: Need) -> set[str]:
        """The resources of which too little is left for `need`; none: it may begin."""
        return {
            name
            for name, amount in need.amounts.items()
            if self._users[name] > 0 and self._taken[name] + amount > self._limits[name] + 1e-9
        }

    def enter(self, need: Need) -> None:
        """An attempt begins."""
        for name, amount in need.amounts.items():
            self._taken[name] += amount  # type: ignore[assignment]
            self._users[name] += 1

    def leave(self, need: Need) -> None:
        """It is over."""
        for name, amount in need.amounts.items():
            self._taken[name] -= amount  # type: ignore[assignment]
            self._users[name] -= 1


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
