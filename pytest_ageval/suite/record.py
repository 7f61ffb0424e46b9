"""What each slot of a suite run came to. Appended as attempts settle, by one process, never rewritten.

A *slot* is one item: one task with one agent, model, box and attempt number. Its node id names it, so
the record can be moved with the data set. A slot can settle again (an error that is tried once more);
its last line counts, and the earlier ones are its history.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence.files import (
    document_bytes,
    line_bytes,
    now,
    read_document,
    read_jsonl,
    repair_tail,
    write_all,
    write_atomic,
)
from pytest_ageval.suite.places import SuiteLayout

HEADER_SCHEMA = "ageval.suite/1"

_T = TypeVar("_T")

#: Characters of a parameter's value in `Settled.setting`.
SHOWN = 40

Source = Literal["run", "resumed", "reused", "regraded", "imported"]


class SuiteHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. `arguments` is the command line, `rootdir` pytest's at the time."""

    suite_run_id: str
    created_at: str
    schema: str = HEADER_SCHEMA
    run_id: str = ""
    dataset_id: str | None = None
    dataset_version: str | None = None
    rootdir: str = ""
    arguments: tuple[str, ...] = ()
    n_attempts: int = 1
    #: Suite runs whose record this one goes on with, or whose attempts it judges again.
    parents: tuple[str, ...] = ()
    #: Options of the first session that say what is run, and the cells of its matrix in words.
    options: Mapping[str, Any] = {}
    cells: tuple[str, ...] = ()
    note: str | None = None


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """One settled attempt.

    `slot` is the node id. `attempt_dir` is relative to the root of the evidence where it lies below it.
    `timing` holds milliseconds by phase, `usage` the agents' summed usage. `source` says how it came
    here, and `of` the attempt that it was taken from (reused, regraded, imported) or went on with.
    """

    slot: str
    status: Literal["PASS", "FAIL", "ERROR"]
    task_id: str
    dataset_id: str | None = None
    agent: str | None = None
    model: str | None = None
    effort: str | None = None
    box: str | None = None
    parameters: Mapping[str, Any] = {}
    variant: str = ""
    attempt: int = 1
    attempt_id: str | None = None
    attempt_dir: str | None = None
    score: float | None = None
    metrics: Mapping[str, Any] = {}
    failed_checks: Sequence[str] = ()
    error: Mapping[str, Any] | None = None
    limit: str | None = None
    flags: Sequence[str] = ()
    digest: str | None = None
    settled_at: str = ""
    timing: Mapping[str, float] = {}
    usage: Mapping[str, Any] = {}
    source: Source = "run"
    of: str | None = None
    #: What the report said of a FAIL.
    message: str | None = None
    #: What else the report held, so that it can be shown again without the evidence.
    details: Mapping[str, Any] = {}

    @property
    def seconds(self) -> float | None:
        """What the attempt's phases took, together; None when it is not known."""
        return sum(self.timing.values()) / 1000 if self.timing else None

    @property
    def setting(self) -> str:
        """The box, and the parameters that the command line gave: ``docker seed=1``."""
        return " ".join([self.box or "", *(f"{k}={_short(v)}" for k, v in self.parameters.items())]).strip()

    @property
    def group(self) -> tuple[str, str, str, str, str]:
        """Data set, agent, model, effort and `setting`: attempts that may be counted together."""
        return (
            self.dataset_id or "",
            self.agent or "",
            self.model or "",
            self.effort or "",
            self.setting,
        )


def _short(value: Any) -> str:
    """A value as JSON; a long one as its beginning and its digest."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    if len(text) <= SHOWN:
        return text
    return f"{text[: SHOWN - 9]}~{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


class Suite(msgspec.Struct, frozen=True):
    """A suite run as it stands. `settled` holds the line that counts for each slot."""

    root: Path
    header: SuiteHeader
    settled: dict[str, Settled]
    history: dict[str, list[Settled]]

    @property
    def rows(self) -> list[Settled]:
        """The lines that count, in the order in which their slots settled first."""
        return list(self.settled.values())


class SuiteWriter:
    """The one writer of a suite run.

    Raises AgevalError ``suite_in_progress`` when another process that lives writes it.
    """

    def __init__(self, root: Path, descriptor: int, lock: int) -> None:
        self.layout = SuiteLayout(root)
        self._descriptor = descriptor
        self._lock = lock
        self._end = os.fstat(descriptor).st_size

    @classmethod
    def create(cls, root: Path, header: SuiteHeader) -> SuiteWriter:
        """Begin a suite run in a directory that does not exist yet (FileExistsError)."""
        root.mkdir(parents=True)
        write_atomic(SuiteLayout(root).header, document_bytes(msgspec.to_builtins(header)))
        return cls.open(root)

    @classmethod
    def open(cls, root: Path) -> SuiteWriter:
        """Go on with a suite run. A line that was torn by a crash is cut off first."""
        lock = _exclusive(root)
        path = SuiteLayout(root).attempts
        repair_tail(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        return cls(root, descriptor, lock)

    def add(self, row: Settled) -> None:
        """Append one settled attempt, durably.

        Raises OSError, such as for a full disk; what was written of the line is taken back then.
        """
        if not row.settled_at:
            row = msgspec.structs.replace(row, settled_at=now())
        line = line_bytes(msgspec.to_builtins(row))
        try:
            write_all(self._descriptor, line)
            os.fsync(self._descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(line)

    def close(self) -> None:
        """Let others write. Idempotent."""
        for name in ("_descriptor", "_lock"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                setattr(self, name, -1)
                os.close(descriptor)


def _exclusive(root: Path) -> int:
    """A lock that ends with the process that holds it."""
    import fcntl

    descriptor = os.open(SuiteLayout(root).lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise AgevalError(
            "suite_in_progress", f"{root} is being written by process {holder or 'unknown'}"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def read_suite(root: Path) -> Suite:
    """The record of a suite run, also while it runs.

    Raises AgevalError ``suite_invalid`` when the header is missing or a line cannot be understood.
    """
    layout = SuiteLayout(root)
    header = read_header(root)
    settled: dict[str, Settled] = {}
    history: dict[str, list[Settled]] = {}
    for number, line in enumerate(read_jsonl(layout.attempts, broken="suite_invalid"), start=1):
        row = _convert(line, Settled, f"{layout.attempts} line {number}")
        if row.slot in settled:
            history.setdefault(row.slot, []).append(settled[row.slot])
        settled[row.slot] = row
    for slot in superseded(settled.values()):
        del settled[slot]
    return Suite(root, header, settled, history)


def superseded(rows: Iterable[Settled]) -> list[str]:
    """The slots of tasks that were broken, so that they had no attempts, and have been mended since."""
    found = list(rows)
    made = {row.slot.partition("::")[0] for row in found if row.attempt_id is not None}
    broken = (row.slot for row in found if row.attempt_id is None and not row.slot.endswith("]"))
    return [slot for slot in broken if slot.partition("::")[0] in made]


def read_header(root: Path) -> SuiteHeader:
    """What was asked for. Raises AgevalError ``suite_invalid`` when that is missing or unknown."""
    path = SuiteLayout(root).header
    document = read_document(path)
    if document is None:
        raise AgevalError("suite_invalid", f"{path} does not exist")
    return _convert(document, SuiteHeader, path)


def _convert(document: Any, kind: type[_T], where: object) -> _T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise AgevalError("suite_invalid", f"{where}: {error}") from error
