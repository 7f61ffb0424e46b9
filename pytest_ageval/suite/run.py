"""The suite run that a session writes: rows as attempts settle, figures and progress beside them."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pytest_ageval.evidence.files import document_bytes, now, read_document, write_atomic
from pytest_ageval.evidence.writer import this_process
from pytest_ageval.suite import started as starts
from pytest_ageval.suite.cache import ResultCache
from pytest_ageval.suite.record import Settled, SuiteHeader, SuiteWriter, read_suite
from pytest_ageval.suite.summary import PROGRESS_SCHEMA, Status, summary
from pytest_ageval.suite.tally import Tally

#: Seconds between two writings of progress.json, and at least between two of summary.json.
PROGRESS_SECONDS = 1.0
SUMMARY_SECONDS = 5.0

#: Neither is written more often than so many times what writing it takes, nor more bytes of it in a second:
#: both hold all that has settled, so that what is written would grow with the square of the attempts.
SHARE = 20
BYTES_PER_SECOND = 16 * 1024

#: Errors by which an attempt did not come to an end: it is continued, or run again, without being asked.
UNFINISHED = frozenset(("interrupted", "worker_crashed"))


def is_unfinished(row: Settled) -> bool:
    """The row says that something was lost, not what the attempt came to."""
    if row.status != "ERROR":
        return False
    return row.attempt_id is None or (row.error or {}).get("title") in UNFINISHED


class SuiteRun:
    """Made by `begin` or `resume`. Its methods may be called from any thread.

    `slots` are those that the session means to fill; `problem` is why the record could not be written.
    """

    def __init__(self, writer: SuiteWriter, header: SuiteHeader, workers: int, *, resumed: bool) -> None:
        self.layout = writer.layout
        self.header = header
        self.evidence = writer.layout.evidence
        self.rows: dict[str, Settled] = {}
        self.history: dict[str, list[Settled]] = {}
        self.problem: str | None = None
        self._writer = writer
        self._cache = ResultCache(self.evidence / "cache")
        self._also: ResultCache | None = None
        self._tally = Tally()
        self._lock = threading.RLock()
        self._n_attempts = header.n_attempts
        self._slots: dict[str, None] = {}
        self._running: dict[str, str] = {}
        self._ahead: dict[str, str] = {}
        self._skipped: set[str] = set()
        #: Slots that no session before had meant to fill.
        self.new_slots = 0
        self._attempts: set[str] = set()
        self._began = time.time()
        self._status: Status = "running"
        self._dirty = True
        self._next_progress = self._next_summary = 0.0
        self._session = {
            "resumed": resumed,
            "new_attempts": 0,
            "skipped_attempts": 0,
            "retried_attempts": 0,
            "reused_attempts": 0,
            "max_concurrent_tasks": workers,
            "inflight_peak": 0,
        }

    @classmethod
    def begin(cls, root: Path, header: SuiteHeader, slots: Iterable[str], workers: int = 1) -> SuiteRun:
        """A new suite run. Raises FileExistsError, and another OSError when nothing can be written."""
        run = cls(SuiteWriter.create(root, header), header, workers, resumed=False)
        run._plan(slots)
        return run

    @classmethod
    def resume(cls, root: Path, slots: Sequence[str], workers: int = 1) -> SuiteRun:
        """Go on with a suite run; what settled and was not recorded is recorded now.

        Raises AgevalError ``suite_in_progress``, ``suite_invalid``, and OSError.
        """
        writer = SuiteWriter.open(root)
        try:
            suite = read_suite(root)
            run = cls(writer, suite.header, workers, resumed=True)
            run.layout.cancel.unlink(missing_ok=True)
            run._load(suite.settled, suite.history)
            plan = read_document(run.layout.plan) or {}
            run._skipped.update(_texts(plan.get("skipped")))
            planned = {**dict.fromkeys(_texts(plan.get("slots"))), **dict.fromkeys(suite.settled)}
            run.new_slots = sum(slot not in planned for slot in slots)
            run._plan((*_texts(plan.get("slots")), *slots))
            run.adopt()
        except BaseException:
            writer.close()
            raise
        return run

    def _load(self, rows: Mapping[str, Settled], history: Mapping[str, list[Settled]]) -> None:
        self.rows.update(rows)
        self.history.update(history)
        for row in (*rows.values(), *(old for each in history.values() for old in each)):
            self._know(row)
        for row in rows.values():
            self._tally.replace(None, row)

    def _know(self, row: Settled) -> None:
        """An attempt is recorded once, but for one that had not come to an end and was continued."""
        if row.attempt_id is not None and not is_unfinished(row):
            self._attempts.add(row.attempt_id)

    def at_least(self, n_attempts: int) -> None:
        """The session makes so many attempts at each task, perhaps more than an earlier one."""
        self._n_attempts = max(self._n_attempts, n_attempts)

    def _plan(self, slots: Iterable[str]) -> None:
        self._slots = dict.fromkeys(slots)
        self._write_plan()
        self.write(force=True)

    def _write_plan(self) -> None:
        """The slots as they are known by now, and those of them that need not be filled."""
        skipped = sorted(self._skipped - self.rows.keys())
        write_atomic(self.layout.plan, document_bytes({"slots": list(self._slots), "skipped": skipped}))

    def also_cache(self, where: Path) -> None:
        """Keep verdicts in this cache too."""
        self._also = ResultCache(where)

    # -- what happens ----------------------------------------------------------------------------

    def begun(self, slot: str) -> None:
        """An attempt runs."""
        with self._lock:
            self._skipped.discard(slot)
            self._running[slot] = now()
            self._changed()

    def under_way(self, slots: Mapping[str, str]) -> None:
        """All attempts that have begun and have no result, since when: also those whose turn is to come."""
        with self._lock:
            if self._ahead != slots:
                self._ahead = dict(slots)
                self._changed()

    def _changed(self) -> None:
        peak = max(int(self._session["inflight_peak"]), len({**self._running, **self._ahead}))
        self._session["inflight_peak"] = peak
        self._dirty = True

    def ended(self, slot: str) -> None:
        """It runs no more."""
        with self._lock:
            self._running.pop(slot, None)
            self._dirty = True

    def skipped(self, slot: str) -> None:
        """The slot will not be filled by this session."""
        with self._lock:
            self._skipped.add(slot)
            self._dirty = True

    def refused(self, item: str) -> None:
        """The item would be an attempt at something else: it has no place here."""
        with self._lock:
            self._slots.pop(item, None)
            self._dirty = True

    def shown(self, slot: str, item: str) -> None:
        """The item `item` was shown with what is recorded of the slot."""
        with self._lock:
            self._session["skipped_attempts"] = int(self._session["skipped_attempts"]) + 1
            self._alias(slot, item)

    def _alias(self, slot: str, item: str) -> None:
        """An item may have another name than the slot that it fills; the plan has the slot's."""
        if slot != item:
            self._slots.pop(item, None)
        self._slots.setdefault(slot, None)

    def settle(self, row: Settled, item: str | None = None) -> bool:
        """Append the row of a settled attempt. False when it says nothing new.

        An attempt that was never made does not take the place of one that was.
        """
        with self._lock:
            old = self.rows.get(row.slot)
            if row.attempt_id is None and old is not None:
                return False
            if row.attempt_id in self._attempts and row.source != "reused":
                return False
            row = msgspec.structs.replace(row, settled_at=row.settled_at or now())
            self._alias(row.slot, item or row.slot)
            self._append(row)
            if old is not None:
                self.history.setdefault(row.slot, []).append(old)
                key = "retried_attempts"
            else:
                key = "reused_attempts" if row.source == "reused" else "new_attempts"
            self._session[key] = int(self._session[key]) + 1
            self.rows[row.slot] = row
            self._know(row)
            self._tally.replace(old, row)
            self._mended(row)
            self._dirty = True
            return True

    def _mended(self, row: Settled) -> None:
        """The item that said that a task is broken is no slot once the task has attempts."""
        broken = row.slot.partition("[")[0]
        if row.attempt_id is not None and broken != row.slot:
            self._slots.pop(broken, None)
            if (gone := self.rows.pop(broken, None)) is not None:
                self._tally.replace(gone, None)

    def _append(self, row: Settled) -> None:
        try:
            self._writer.add(row)
            replace = row.slot in self.rows and self.rows[row.slot].status != "ERROR"
            for cache in filter(None, (self._cache, self._also)):
                cache.put(row, self.evidence, replace=replace)
        except OSError as error:
            self.problem = f"{error.strerror or error}"

    def adopt(self) -> int:
        """Record the attempts that have a result and no row; returns how many there were."""
        count = 0
        with self._lock:
            for found in starts.read(self.layout.root):
                if found.attempt_id not in self._attempts:
                    row = starts.settled(found, self.evidence)
                    count += row is not None and self.settle(row)
        return count

    # -- what it comes to ------------------------------------------------------------------------

    @property
    def is_new(self) -> bool:
        """No earlier session has written it."""
        return not self._session["resumed"]

    @property
    def cancelling(self) -> bool:
        """Somebody has asked this suite run to stop."""
        return self._status == "cancelling"

    @property
    def status(self) -> Status:
        """Whether it goes on, and how it ended."""
        return self._status

    @property
    def total(self) -> int:
        """Slots that this suite run is to fill."""
        return len({**self._slots, **self.rows})

    @property
    def done(self) -> int:
        """Slots that need not be run again, but for errors that somebody wants to."""
        return sum(not is_unfinished(row) for row in self.rows.values())

    @property
    def is_empty(self) -> bool:
        """Nothing was begun and nothing settled: there is nothing to keep."""
        return not self.rows and not self.layout.started.exists()

    def progress(self) -> dict[str, Any]:
        """What is done and what runs."""
        with self._lock:
            figures = self._tally.total
            slots = {**self._slots, **self.rows}
            return {
                "schema": PROGRESS_SCHEMA,
                "suite_run_id": self.header.suite_run_id,
                "dataset_id": self.header.dataset_id,
                "dataset_version": self.header.dataset_version,
                "status": self._status,
                "cancel_requested": self.layout.cancel.exists(),
                "done": len(self.rows),
                "total": len(slots),
                "skipped": len(self._skipped),
                "retried": self._session["retried_attempts"],
                "running": [
                    _running(slot, since) for slot, since in {**self._running, **self._ahead}.items()
                ],
                "max_concurrent_tasks": self._session["max_concurrent_tasks"],
                "n_attempts": self._n_attempts,
                "task_ids": list(dict.fromkeys(map(_task_of, slots))),
                "updated_at": now(),
                "counts": {"pass": figures.passed, "fail": figures.failed, "error": figures.errors},
                "usage": figures.usage(),
                "session": {
                    "seconds": round(time.time() - self._began, 1),
                    "settled": sum(int(self._session[f"{k}_attempts"]) for k in ("new", "retried")),
                    "recorded": self._session["skipped_attempts"],
                },
                "owner": this_process(),
            }

    def summary(self) -> dict[str, Any]:
        """The figures."""
        with self._lock:
            session = {**self._session, "skipped": len(self._skipped)}
            session["cancelled"] = self._status == "cancelled"
            session["n_attempts"] = self._n_attempts
            return summary(self.header, self._status, self.rows, self.history, self._tally, session)

    def tick(self) -> None:
        """Write what is due. Called often; cheap when nothing has happened."""
        with self._lock:
            if self._status == "running" and self.layout.cancel.exists():
                self._status = "cancelling"
                self._dirty = True
            if self._dirty and time.monotonic() >= self._next_progress:
                self.write()

    def write(self, *, force: bool = False) -> None:
        """Write progress.json, and summary.json when its time has come."""
        with self._lock:
            self._dirty = False
            summary_is_due = force or time.monotonic() >= self._next_summary
            self._next_progress = self._put(self.layout.progress, self.progress, PROGRESS_SECONDS)
            if summary_is_due:
                self._next_summary = self._put(self.layout.summary, self.summary, SUMMARY_SECONDS)

    def _put(self, path: Path, make: Callable[[], Mapping[str, Any]], seconds: float) -> float:
        """Write a document; returns when it may be written again, in at least so many seconds."""
        begun = time.monotonic()
        data = json.dumps(make(), ensure_ascii=True).encode() + b"\n"
        try:
            # It is not the record: a crash of the machine may cost it, so it is not synced.
            write_atomic(path, data, sync=False)
        except OSError as error:
            self.problem = f"{error.strerror or error}"
        end = time.monotonic()
        return end + max(seconds, SHARE * (end - begun), len(data) / BYTES_PER_SECOND)

    def close(self, *, interrupted: bool = False) -> None:
        """The session ends: record what settled meanwhile, write everything, let others write."""
        with self._lock:
            self.adopt()
            self._running.clear()
            self._ahead.clear()
            try:
                self._write_plan()
            except OSError as error:
                self.problem = f"{error.strerror or error}"
            if self.done + len(self._skipped - self.rows.keys()) >= self.total:
                self._status = "complete"
            else:
                self._status = "cancelled" if interrupted else "incomplete"
            self.write(force=True)
            self._writer.close()

    def remove(self) -> None:
        """A suite run in which nothing happened leaves nothing."""
        with self._lock:
            self._writer.close()
            for path in self.layout.root.iterdir():
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.layout.root.rmdir()
                self.layout.root.parent.rmdir()


def _texts(found: Any) -> list[str]:
    return [text for text in found or () if isinstance(text, str)]


def _task_of(slot: str) -> str:
    return slot.rpartition("::")[2].partition("[")[0]


def _running(slot: str, since: str) -> dict[str, Any]:
    return {"slot": slot, "task_id": _task_of(slot), "phase": "running", "since": since}
