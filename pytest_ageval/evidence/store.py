"""The evidence of one attempt: everything that is written into its directory goes through here."""

from __future__ import annotations

import contextlib
import shutil
import threading
import uuid
from typing import TYPE_CHECKING, Any, Literal

from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence.activity import ActivityLog, Scope
from pytest_ageval.evidence.checks import SCHEMA as CHECKS_SCHEMA
from pytest_ageval.evidence.checks import check_rows
from pytest_ageval.evidence.files import (
    clip,
    document_bytes,
    line_bytes,
    plain,
    read_document,
    read_jsonl,
    repair_tail,
    unwritable,
    write_atomic,
    write_lines,
)
from pytest_ageval.evidence.invocation import InvocationInfo, InvocationRecord, Pricer
from pytest_ageval.evidence.layout import INVOCATION_METADATA, INVOCATION_RAW, Layout, Surface
from pytest_ageval.evidence.recall import recalled
from pytest_ageval.evidence.redact import Redactor
from pytest_ageval.evidence.scrub import scrub_tree
from pytest_ageval.evidence.trajectory import flatten
from pytest_ageval.evidence.writer import WriterLock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pytest_ageval.evidence.history import PastInvoke

SUMMARY_SCHEMA = "ageval.evidence.summary/1"
TIMING_SCHEMA = "ageval.phase_timing/1"
CALL_SCHEMA = "ageval.model_call/1"

#: Facts that an attempt keeps, and characters of one string and of the whole detail of one.
FACTS_LIMIT = 2000
FACT_STRING_LIMIT = 4000
FACT_DETAIL_LIMIT = 32_000

_LABELS = {
    "environment": "Env Setup",
    "run": "Agent Execution",
    "evaluate": "Verifier",
    "record": "Trajectory",
    "cleanup": "Cleanup",
}


def phase_timing(
    phases: Sequence[tuple[str, float]],
    *,
    started_at: str | None = None,
    finished_at: str | None = None,
) -> dict[str, Any]:
    """The ``phase_timing`` document, from pairs of phase and milliseconds."""
    rows = [
        {"id": name, "label": _LABELS.get(name, name), "duration_ms": round(duration, 3)}
        for name, duration in phases
    ]
    total = sum(duration for _, duration in phases)
    stamps = {"started_at": started_at, "finished_at": finished_at}
    return {
        "schema": TIMING_SCHEMA,
        "phases": rows,
        "total_ms": round(total, 3),
        **{key: value for key, value in stamps.items() if value is not None},
    }


class EvidenceStore:
    """Writes the evidence of one attempt. Made by `create`; `close` gives the directory back.

    Methods may be called from any thread. Everything that is written goes through `redactor`; after
    `write_result` nothing more can be written.
    """

    def __init__(
        self,
        layout: Layout,
        redactor: Redactor,
        writer: WriterLock,
        *,
        keep_raw: bool,
        attempt_id: str,
        run_id: str | None,
        sync: Literal["line", "none"],
        price: Pricer | None,
    ) -> None:
        self.layout = layout
        self.root = layout.root
        self.redactor = redactor
        self.keep_raw = keep_raw
        self.attempt_id = attempt_id
        self.run_id = run_id
        self.artifacts = layout.artifacts
        self.invocations: list[InvocationRecord] = []
        self.facts: list[dict[str, Any]] = []
        self._writer = writer
        self._sync = sync
        self._price = price
        self._lock = threading.RLock()
        self._settled = False
        self._facts_dropped = 0
        self._private_activity: ActivityLog | None = None
        self._sequence = {surface: self._last_seq(surface) for surface in ("run", "evaluate")}
        self.activity = ActivityLog(layout.activity, redactor, sync=sync)

    @classmethod
    def create(
        cls,
        root: Path,
        redactor: Redactor | None = None,
        *,
        keep_raw: bool = False,
        attempt_id: str | None = None,
        run_id: str | None = None,
        sync: Literal["line", "none"] = "line",
        price: Pricer | None = None,
        again: bool = False,
    ) -> EvidenceStore:
        """Make the directory `root`, or go on in it after its writer died, or (`again`) gave it back.

        `keep_raw` keeps the vendor's own logs and the raw events. `attempt_id` is the name of the
        directory unless given. `sync` is how the activity log is written (see `ActivityLog`). `price` adds
        the cost to a role's usage.
        Raises `AgevalError`: ``evidence_busy`` while another writer lives,
        ``attempt_already_settled`` when there is a result, ``activity_log_corrupt``, and
        ``evidence_unwritable``; then a directory that was made is removed.
        """
        layout = Layout(root)
        made = not root.exists()
        try:
            root.mkdir(parents=True, exist_ok=True)
            writer = WriterLock(layout.writer)
        except OSError as error:
            if made:
                with contextlib.suppress(OSError):
                    root.rmdir()
            raise unwritable(root, error) from error
        try:
            if layout.result.exists():
                raise AgevalError("attempt_already_settled", f"{root} has a result")
            layout.artifacts.mkdir(exist_ok=True)
            store = cls(
                layout,
                redactor or Redactor(),
                writer,
                keep_raw=keep_raw,
                attempt_id=attempt_id or root.name,
                run_id=run_id,
                sync=sync,
                price=price,
            )
            if writer.taken_over is not None or again:
                store._recover(writer.taken_over or {})
        except BaseException as error:
            writer.release()
            if isinstance(error, OSError):
                raise unwritable(root, error) from error
            raise
        return store

    def _recover(self, dead: Mapping[str, Any]) -> None:
        """Go on where the writer `dead` stopped."""
        repair_tail(self.layout.facts)
        self.facts = read_jsonl(self.layout.facts)
        ours = (self.layout.surface("run"), self.layout.surface("evaluate"), self.layout.logs)
        for aside in (*self.root.glob(".*.tmp"), *(path for each in ours for path in each.rglob(".*.tmp"))):
            aside.unlink(missing_ok=True)
        # Among the work of agents only what that process has left, whatever a file of theirs is called.
        if (pid := dead.get("pid")) is not None:
            for directory in (self.layout.artifacts, self.layout.evaluation, self.layout.collected):
                for aside in directory.rglob(f".*.{pid}.tmp"):
                    aside.unlink(missing_ok=True)

    def recall(self, surface: Surface, invokes: Iterable[PastInvoke]) -> None:
        """Take up the records of the invocations that other processes made on a surface."""
        known = {name: invoke for invoke in invokes for name in invoke.invocations}
        directory = self.layout.invocations(surface)
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            metadata = read_document(path / INVOCATION_METADATA)
            invoke = known.get(str((metadata or {}).get("invocation_id")))
            if metadata is None or invoke is None:  # it was killed before anything was asked
                shutil.rmtree(path, ignore_errors=True)
                continue
            record = recalled(path, metadata, surface, invoke, self.redactor, self._price)
            self.invocations.append(record)
        self.invocations.sort(key=lambda record: record.info.seq)

    def supersede(self, record: InvocationRecord) -> None:
        """An invocation that was broken off is done again, so that its record says nothing any more."""
        with self._lock:
            record.close()
            self.invocations.remove(record)
            shutil.rmtree(record.directory, ignore_errors=True)

    def _last_seq(self, surface: Surface | str) -> int:
        base = self.layout.invocations("run" if surface == "run" else "evaluate")
        names = [path.name.split("-")[0] for path in base.iterdir()] if base.is_dir() else []
        return max((int(name) for name in names if name.isdigit()), default=0)

    # -- places ----------------------------------------------------------------------------------

    def private(self, name: str) -> Path:
        """The path of a file that may hold gold. Its directory is open to its owner only."""
        self.layout.evaluation.mkdir(exist_ok=True)
        self.layout.private.mkdir(mode=0o700, exist_ok=True)
        return self.layout.private / name

    def raw_dir(self, session_id: str, surface: Surface = "run") -> Path | None:
        """A directory for a vendor's own logs of a session; None when they are not kept."""
        if not self.keep_raw:
            return None
        path = self.layout.session_raw(surface, session_id)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def log_path(self, script: str, stream: str) -> Path:
        """The file for one stream of run.py or evaluator.py. `scrub` masks secrets in it later."""
        self.layout.logs.mkdir(exist_ok=True)
        return self.layout.log(script, stream)

    # -- while it runs ---------------------------------------------------------------------------

    def activity_for(self, surface: Surface) -> ActivityLog:
        """The step log of a surface. That of the judges is private: their prompts hold gold."""
        if surface == "run":
            return self.activity
        with self._lock:
            if self._private_activity is None:
                path = self.private(self.layout.private_activity.name)
                self._private_activity = ActivityLog(path, self.redactor, sync=self._sync)
            return self._private_activity

    def scope(self, session_id: str, request_id: str, surface: Surface = "run") -> Scope:
        """The step log of one invoke, for its executor."""
        return self.activity_for(surface).scope(session_id, request_id)

    def invocation(
        self,
        *,
        profile_id: str,
        session_id: str,
        executor_kind: str,
        prompt: str,
        surface: Surface = "run",
        model: str | None = None,
        invocation_id: str | None = None,
        request_id: str | None = None,
        turn: int = 1,
    ) -> InvocationRecord:
        """Begin the record of one invoke. `turn` is its number in the session."""
        with self._lock:
            self._refuse_settled()
            self._sequence[surface] += 1
            info = InvocationInfo(
                seq=self._sequence[surface],
                invocation_id=invocation_id or f"inv_{uuid.uuid4().hex[:16]}",
                attempt_id=self.attempt_id,
                profile_id=profile_id,
                session_id=session_id,
                executor_kind=executor_kind,
                surface=surface,
                prompt=prompt,
                model=model,
                request_id=request_id,
                turn=turn,
            )
            directory = self.layout.invocation(surface, info.seq, info.invocation_id)
            record = InvocationRecord(info, directory, self.redactor, price=self._price)
            self.invocations.append(record)
            return record

    def fact(self, phase: str, name: str, detail: Mapping[str, Any] | None = None) -> None:
        """Note that something happened. Long strings are cut; after 2000 facts they are counted."""
        row: dict[str, Any] = {"phase": phase, "name": name}
        if detail:
            found = _bounded(self.redactor.value(plain(detail)))
            size = len(line_bytes(found))
            row["detail"] = found if size <= FACT_DETAIL_LIMIT else {"dropped_bytes": size}
        with self._lock:
            self._refuse_settled()
            if len(self.facts) >= FACTS_LIMIT:
                self._facts_dropped += 1
                return
            self.facts.append(row)
            with self.layout.facts.open("ab", buffering=0) as stream:
                stream.write(line_bytes(row))

    def model_call(self, surface: Surface, row: Mapping[str, Any]) -> None:
        """Add a model call that passed the gateway. After the result has been written: nothing."""
        line = line_bytes(self._clean({"schema": CALL_SCHEMA, **row}))
        path = self.layout.model_calls(surface)
        with self._lock:
            if self._settled:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as stream:
                stream.write(line)

    # -- documents -------------------------------------------------------------------------------

    def _refuse_settled(self) -> None:
        if self._settled:
            raise AgevalError("evidence_settled", f"{self.root} has its result")

    def _clean(self, value: Any) -> Any:
        return self.redactor.value(plain(value))

    def _document(self, path: Path, document: Any) -> None:
        with self._lock:
            self._refuse_settled()
            write_atomic(path, document_bytes(self._clean(document)))

    def write_lock(self, document: Mapping[str, Any]) -> Path:
        """Write lock.json. Raises AgevalError ``evidence_unwritable``."""
        try:
            self._document(self.layout.lock, document)
        except OSError as error:
            raise unwritable(self.root, error) from error
        return self.layout.lock

    def write_collected(self, entries: Sequence[Mapping[str, Any]]) -> Path:
        """Write what ``evaluation.collect`` fetched."""
        self.layout.collected.mkdir(exist_ok=True)
        self._document(self.layout.collected_manifest, {"entries": entries})
        return self.layout.collected_manifest

    def write_private(self, name: str, document: Any) -> Path:
        """Write a JSON document that may hold gold."""
        path = self.private(name)
        self._document(path, document)
        return path

    def write_reward(self, document: Mapping[str, Any]) -> Path:
        """Write the rewards of a Harbor task, by step."""
        self.layout.evaluation.mkdir(exist_ok=True)
        self._document(self.layout.reward, document)
        return self.layout.reward

    def write_harbor_manifest(self, step: str, entries: Sequence[Mapping[str, Any]]) -> Path:
        """Write what was kept of a step, and what could not be."""
        path = self.layout.harbor_artifacts(step) / "manifest.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._document(path, {"entries": list(entries)})
        return path

    def verifier_directory(self, step: str) -> Path:
        """Where the files that a step's verifier left go; they may hold gold."""
        self.private("verifier").mkdir(mode=0o700, exist_ok=True)
        return self.layout.verifier_logs(step)

    def write_verifier_output(self, step: str, stdout: str, stderr: str) -> None:
        """Write what a step's test.sh printed, masked."""
        for stream, text in (("stdout", stdout), ("stderr", stderr)):
            path = self.log_path(f"verifier-{step}", stream)
            path.write_text(self.redactor.text(text), encoding="utf-8", errors="replace")

    def write_invocation(
        self, surface: Surface, number: int, invocation_id: str, document: Mapping[str, Any]
    ) -> Path:
        """Write metadata.json of an invoke that another program has recorded."""
        path = self.layout.invocation(surface, number, invocation_id) / INVOCATION_METADATA
        path.parent.mkdir(parents=True, exist_ok=True)
        self._document(path, document)
        return path

    def write_session(self, session_id: str, surface: Surface, document: Mapping[str, Any]) -> Path:
        """Write what another process needs to continue a session, in place of what was written before."""
        path = self.layout.session(surface, session_id)
        if surface == "evaluate":
            self.private(path.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._document(path, document)
        return path

    def read_session(self, session_id: str, surface: Surface) -> dict[str, Any] | None:
        """What `write_session` wrote, if anything."""
        return read_document(self.layout.session(surface, session_id))

    def write_checks(self, rows: Iterable[Any]) -> list[dict[str, Any]]:
        """Write the evaluator's checks, if there are any good ones; returns what was kept."""
        kept: list[dict[str, Any]] = self._clean(check_rows(rows))
        if kept:
            self.layout.evaluation.mkdir(exist_ok=True)
            self._document(self.layout.checks, {"schema": CHECKS_SCHEMA, "checks": kept})
        return kept

    def write_trajectory(self, turns: Iterable[Iterable[Mapping[str, Any]]]) -> Path:
        """Write the rows of all turns to trajectory.jsonl; also when there are none."""
        with self._lock:
            self._refuse_settled()
            write_lines(self.layout.trajectory, map(self._clean, flatten(turns)))
        return self.layout.trajectory

    def write_observation(self, turns: Sequence[Sequence[Mapping[str, Any]]]) -> Path | None:
        """Write the rows of the judges' turns, if any, to evaluation/observation.jsonl."""
        rows = flatten(turns)
        if not rows:
            return None
        self.layout.evaluation.mkdir(exist_ok=True)
        with self._lock:
            self._refuse_settled()
            write_lines(self.layout.observation, map(self._clean, rows))
        return self.layout.observation

    def write_summary(
        self,
        result: Mapping[str, Any],
        phase_timing: Mapping[str, Any],
        extra: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write summary.json: the facts so far, `result`, `phase_timing`, and `extra` if any."""
        with self._lock:
            document: dict[str, Any] = {
                "schema": SUMMARY_SCHEMA,
                "attempt_id": self.attempt_id,
                "run_id": self.run_id or result.get("run_id") or self.attempt_id,
                "evidence_root": result.get("evidence_path") or str(self.root),
                "result": result,
                "facts": self.facts,
                "phase_timing": phase_timing,
                "keep_vendor_raw": self.keep_raw,
            }
            if extra:
                document["extra"] = extra
            if self._facts_dropped:
                document["facts_dropped"] = self._facts_dropped
            self._document(self.layout.summary, document)
        return self.layout.summary

    def write_result(self, result: Mapping[str, Any]) -> Path:
        """Write result.json, durably and last. Raises `AgevalError` ``attempt_already_settled``."""
        with self._lock:
            if self._settled or self.layout.result.exists():
                raise AgevalError("attempt_already_settled", f"{self.root} has a result")
            data = document_bytes(self._clean(result))
            write_atomic(self.layout.result, data, sync_directory=True)
            self._settled = True
            if self.layout.summary.exists():
                self.layout.facts.unlink(missing_ok=True)
        return self.layout.result

    # -- the end ---------------------------------------------------------------------------------

    def scrub(self) -> list[str]:
        """Mask secrets in what others wrote: artifacts, collected files, the scripts' own output.

        Returns the changed files, relative to the attempt.
        """
        with self._lock:
            self._refuse_settled()
            places = [self.layout.artifacts, self.layout.collected, self.layout.logs]
            places.append(self.layout.private / "verifier")
            changed = [path for place in places for path in scrub_tree(place, self.redactor)]
        return [str(path.relative_to(self.root)) for path in changed]

    def drop_raw(self) -> list[str]:
        """Delete the raw events and vendor logs, or, when they are kept, mask secrets in them.

        Returns the paths, relative to the attempt, of what was deleted or changed.
        """
        for record in self.invocations:
            record.close()
        surfaces: tuple[Surface, Surface] = ("run", "evaluate")
        directories = [self.layout.surface(surface) / "backend_raw" for surface in surfaces]
        if self.keep_raw:
            changed = [path for each in directories for path in scrub_tree(each, self.redactor)]
            return [path.relative_to(self.root).as_posix() for path in changed]
        files = [
            path
            for surface in surfaces
            for name in INVOCATION_RAW
            for path in self.layout.invocations(surface).glob(f"*/{name}")
        ]
        for path in files:
            path.unlink(missing_ok=True)
        gone = [path for path in directories if path.is_dir()]
        for path in gone:
            shutil.rmtree(path)
        return [path.relative_to(self.root).as_posix() for path in (*files, *gone)]

    def close(self) -> None:
        """Close every file and let another writer in. Idempotent; called on every path."""
        with self._lock:
            for record in self.invocations:
                record.close()
            self.activity.close()
            if self._private_activity is not None:
                self._private_activity.close()
            self._writer.release()

    def __enter__(self) -> EvidenceStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return clip(value, FACT_STRING_LIMIT)
    if isinstance(value, dict):
        return {key: _bounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_bounded(item) for item in value]
    return value


def read_result(path: Path) -> dict[str, Any] | None:
    """The result of an attempt directory (or the file itself); None when it is not settled.

    Raises `AgevalError` ``evidence_corrupt`` when the file is not a JSON object.
    """
    return read_document(Layout(path).result if path.is_dir() else path)
