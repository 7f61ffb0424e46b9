"""The result of an attempt whose process died after its verdict was told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_ageval.attempt.outcome import Outcome
from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence.files import document_bytes, write_atomic
from pytest_ageval.evidence.layout import Layout
from pytest_ageval.evidence.writer import WriterLock


def write_result(data: Mapping[str, Any], warning: str) -> bool:
    """Write result.json from what the report carried, if the attempt has none and nobody writes there.

    An attempt without a verdict is left as it is, so that it can be continued. False when nothing was
    written.
    """
    where = data.get("attempt_dir")
    if not where or data.get("status") not in ("PASS", "FAIL"):
        return False
    layout = Layout(Path(where))
    document = Outcome(evidence_path=where).as_dict()
    document |= {name: data[name] for name in document if name in data}
    document |= {"task_id": data.get("task", ""), "dataset_id": data.get("dataset", "")}
    document["cleanup_warning"] = warning
    try:
        lock = WriterLock(layout.writer)
    except (AgevalError, OSError):
        return False
    try:
        if layout.result.exists():
            return False
        write_atomic(layout.result, document_bytes(document))
    except OSError:
        return False
    finally:
        lock.release()
    return True
