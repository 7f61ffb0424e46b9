"""Which suite run an attempt belongs to, as every process of a session knows it.

The controller decides, before the first attempt. Workers of a distributed run read its decision.
"""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_ageval import across
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_ageval.attempt import Attempt
    from pytest_ageval.collection import TaskItem
    from pytest_ageval.config import LockedTask
    from pytest_ageval.job import Job
    from pytest_ageval.suite.cache import ResultCache
    from pytest_ageval.suite.record import Settled
    from pytest_ageval.suite.recorded import Decision, Recorded

#: In the directory where the processes of a run note what they are at.
FILE = "suites.json"


class Place(NamedTuple):
    """A suite run. `resumed`: it holds rows of earlier sessions."""

    root: Path
    resumed: bool


class Suites:
    """The suite runs of one session, one for each root of evidence."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._places: dict[str, Place] | None = None
        self._recorded: dict[Path, Recorded] = {}

    def assign(self, places: Mapping[Path, Place], file: Path | None = None) -> None:
        """What the controller decided. `file`: where workers find it."""
        self._places = {str(evidence.absolute()): place for evidence, place in places.items()}
        if file is not None:
            rows = {where: [str(place.root), place.resumed] for where, place in self._places.items()}
            file.parent.mkdir(mode=0o700, exist_ok=True)
            aside = file.with_suffix(".tmp")
            aside.write_text(json.dumps({"pid": os.getpid(), "suites": rows}), encoding="utf-8")
            aside.replace(file)

    def known(self) -> Mapping[str, Place]:
        """All of them, by the root of the evidence."""
        if self._places is None:
            self._places = _read(self.job.running / FILE)
        return self._places

    def of(self, dataset_root: Path) -> Place | None:
        """The suite run of the attempts at a data set; None when none could be made."""
        return self.known().get(str(self.job.evidence_root(dataset_root).absolute()))

    # -- options ---------------------------------------------------------------------------------

    @property
    def looks_back(self) -> bool:
        """Results of earlier sessions may stand for attempts of this one."""
        return self.job.option("resume") is not None or self.job.option("reuse") is not None

    def check(self) -> None:
        """ConfigError ``invalid_option`` for options that cannot be meant."""
        for name in ("retry_errors", "replace"):
            if self.job.option(name) and self.job.option("resume") is None:
                raise ConfigError("invalid_option", f"--{name.replace('_', '-')} needs --resume")
        if self.shared_cache is not None:
            from pytest_ageval.suite.cache import check_directory

            check_directory(self.shared_cache, "--reuse")

    @cached_property
    def shared_cache(self) -> Path | None:
        """The directory that ``--reuse`` names; None for the cache beside the evidence."""
        given = self.job.option("reuse")
        return None if given in (None, "default") else self.job.place("reuse")

    def cache(self, dataset_root: Path) -> ResultCache:
        """Where results are looked for."""
        from pytest_ageval.suite.cache import DIRECTORY, ResultCache

        return ResultCache(self.shared_cache or self.job.evidence_root(dataset_root) / DIRECTORY)

    # -- items -----------------------------------------------------------------------------------

    def decide(self, item: TaskItem, locked: LockedTask, known: Mapping[str, Any]) -> Decision:
        """Whether the item runs, goes on, or is shown with a result that there is.

        Raises AgevalError ``resume_digest_changed``.
        """
        from pytest_ageval.suite.cache import as_reused
        from pytest_ageval.suite.recorded import Decision

        replace = bool(self.job.option("replace"))
        found = Decision(item.nodeid)
        place = self.of(locked.dataset_root)
        if place is not None and place.resumed:
            found = self._record(place.root).decide(
                item.nodeid,
                known,
                locked.document,
                retry_errors=bool(self.job.option("retry_errors")),
                replace=replace,
            )
        if found.show is not None or replace or self.job.option("reuse") is None:
            return found
        row = self._cached(locked, item.variant.attempt)
        return found if row is None else Decision(found.slot, show=as_reused(row, found.slot, dict(known)))

    def _cached(self, locked: LockedTask, attempt: int) -> Settled | None:
        cache = self.cache(locked.dataset_root)
        if (link := across.current()) is None:
            return cache.get(locked.digest, attempt)
        import msgspec

        from pytest_ageval.suite.record import Settled

        row = link.cached(cache.where.absolute(), locked.digest, attempt)
        return None if row is None else msgspec.convert(row, Settled)

    def _record(self, root: Path) -> Recorded:
        from pytest_ageval.suite.recorded import Recorded

        if root not in self._recorded:
            self._recorded[root] = Recorded(root)
        return self._recorded[root]

    def begun(self, attempt: Attempt, known: Mapping[str, Any]) -> None:
        """Leave word in the suite run that an attempt has its directory."""
        import msgspec

        from pytest_ageval.suite import started
        from pytest_ageval.suite.places import relative

        place = self.of(attempt.locked.dataset_root)
        slot = attempt.identity.slot
        if place is None or slot is None:
            return
        where = relative(Path(attempt.evidence.root), self.job.evidence_root(attempt.locked.dataset_root))
        row = started.Started(
            slot=slot, attempt_id=attempt.identity.attempt_id, attempt_dir=where, known=dict(known)
        )
        if (link := across.current()) is None:
            started.note(place.root, row)
        else:
            link.begun(place.root, msgspec.to_builtins(row))


def _read(file: Path) -> dict[str, Place]:
    try:
        rows = json.loads(file.read_bytes())["suites"]
    except (OSError, ValueError, KeyError):
        return {}
    return {where: Place(Path(root), bool(resumed)) for where, (root, resumed) in rows.items()}
