"""How jobs and trials are called. Names and ids depend on the attempt only: a second export is the same."""

from __future__ import annotations

import hashlib
import string
import uuid
from typing import TYPE_CHECKING

from pytest_ageval.evidence.layout import safe_name

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_ageval.export.source import Recorded

#: Below the root of the evidence, beside ``runs``.
DIRECTORY = "harbor-jobs"

#: As Harbor's names of trials: characters of the task's name, and of what tells trials apart.
_TASK_CHARACTERS = 32
_SUFFIX = 7
#: Without those that look alike.
_ALPHABET = "".join(
    c for c in string.digits + string.ascii_uppercase + string.ascii_lowercase if c not in "01IOl"
)


def jobs_directory(attempt: Path) -> Path:
    """Where the jobs of an attempt's evidence are; `attempt` is its directory, below ``runs``."""
    return attempt.parent.parent / DIRECTORY


def job_name(attempt: Recorded) -> str:
    """The run that the attempt belongs to."""
    return safe_name(str(attempt.summary.get("run_id") or attempt.attempt_id))


def trial_name(attempt: Recorded) -> str:
    """``hello-file__4kQzT9a``."""
    task = safe_name(str(attempt.result.get("task_id") or "task").rpartition("/")[2])
    number = int.from_bytes(hashlib.sha256(attempt.attempt_id.encode()).digest(), "big")
    suffix = ""
    for _ in range(_SUFFIX):
        number, digit = divmod(number, len(_ALPHABET))
        suffix += _ALPHABET[digit]
    return f"{task[:_TASK_CHARACTERS].rstrip('_-')}__{suffix}"


def uuid_of(name: str) -> str:
    """The UUID in an id (``run_<32 hex>``), or one that is made of it."""
    digits = name.rpartition("_")[2]
    try:
        return str(uuid.UUID(hex=digits))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, name))
