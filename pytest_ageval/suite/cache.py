"""Results by what they are results of: the digest of the lock and the number of the attempt.

A cache is a directory, ``results/<digest>/<attempt>.json``, which any number of processes may share: an
entry is written aside and linked into its place, so that it is whole, and the first one stays. Only
verdicts are kept. An entry names the evidence of its attempt and does not hold it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec

from pytest_ageval.errors import AgevalError, ConfigError
from pytest_ageval.evidence.files import document_bytes, read_document, write_atomic
from pytest_ageval.suite.record import Settled

SCHEMA = "ageval.cached_result/1"

#: Below the root of the evidence.
DIRECTORY = "cache"
_RESULTS = "results"


class ResultCache:
    """One cache. `where` is its directory; nothing is made before there is something to keep."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def path(self, digest: str, attempt: int) -> Path:
        """The file of one result."""
        return self.where / _RESULTS / digest.removeprefix("sha256:") / f"{attempt}.json"

    def get(self, digest: str, attempt: int) -> Settled | None:
        """The result of an attempt with this lock; None when there is none, or it cannot be read.

        `attempt_dir` of what is returned is absolute.
        """
        try:
            document = read_document(self.path(digest, attempt))
            if document is None or document.get("schema") != SCHEMA:
                return None
            row = msgspec.convert(document["row"], Settled)
        except (AgevalError, OSError, KeyError, msgspec.ValidationError):
            return None
        usable = row.status != "ERROR" and row.digest == digest and row.attempt == attempt
        return row if usable else None

    def put(self, row: Settled, evidence: Path, *, replace: bool = False) -> bool:
        """Keep a verdict, unless there is one and `replace` is not meant. True when it was written.

        Raises OSError.
        """
        if row.status == "ERROR" or row.digest is None or row.source == "reused":
            return False
        path = self.path(row.digest, row.attempt)
        if path.exists() and not replace:
            return False
        where = None if row.attempt_dir is None else str((evidence / row.attempt_dir).absolute())
        kept = msgspec.structs.replace(row, attempt_dir=where)
        document = document_bytes({"schema": SCHEMA, "row": msgspec.to_builtins(kept)})
        path.parent.mkdir(parents=True, exist_ok=True)
        if replace:
            write_atomic(path, document)
            return True
        return _link(path, document)

    def forget(self, row: Settled) -> None:
        """Drop the entry that was made of this row."""
        if row.digest is None:
            return
        found = self.get(row.digest, row.attempt)
        if found is not None and found.attempt_id == row.attempt_id:
            path = self.path(row.digest, row.attempt)
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty
                path.parent.rmdir()


def _link(path: Path, data: bytes) -> bool:
    """Write a file that is not there; False when another process was first."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        aside.write_bytes(data)
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True


def check_directory(where: Path, option: str) -> None:
    """ConfigError ``invalid_option`` for a directory that holds something else than a cache.

    ``--reuse datasets/`` would otherwise take the path of a data set for its value.
    """
    if where.exists() and not where.is_dir():
        raise ConfigError("invalid_option", f"{option}: {where} is not a directory")
    if where.is_dir() and any(where.iterdir()) and not (where / _RESULTS).is_dir():
        raise ConfigError(
            "invalid_option",
            f"{option}: {where} holds other files, so it is no cache of results",
            hint=f"{option} takes what follows it for a directory; write it last, or {option}=DIR",
        )


def as_reused(row: Settled, slot: str, known: dict[str, Any]) -> Settled:
    """The row of a slot for which the result of another attempt is taken."""
    fields = {name: known[name] for name in ("agent", "model", "variant") if known.get(name) is not None}
    return msgspec.structs.replace(
        row, slot=slot, source="reused", of=row.attempt_id, settled_at="", **fields
    )
