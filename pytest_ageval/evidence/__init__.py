"""Evidence: what an attempt leaves behind, and the only owner of its path names.

`EvidenceStore` writes an attempt directory, `Redactor` keeps secrets out of it, `ActivityLog` is
the step log, `InvocationRecord` one invoke. The functions read evidence back or compute on it.
"""

from __future__ import annotations

from pytest_ageval.evidence.activity import ActivityLog, Scope, read_activity
from pytest_ageval.evidence.files import now, plain, read_jsonl, repair_tail
from pytest_ageval.evidence.invocation import InvocationInfo, InvocationRecord, structured
from pytest_ageval.evidence.layout import Layout, Surface
from pytest_ageval.evidence.redact import Redactor, StreamRedactor
from pytest_ageval.evidence.scrub import scrub_file, scrub_tree
from pytest_ageval.evidence.store import EvidenceStore, phase_timing, read_result
from pytest_ageval.evidence.trajectory import rows, tail_text
from pytest_ageval.evidence.usage import (
    by_role,
    from_exclusive,
    from_inclusive,
    from_unknown,
    since,
    sum_usage,
)

__all__ = [
    "ActivityLog",
    "EvidenceStore",
    "InvocationInfo",
    "InvocationRecord",
    "Layout",
    "Redactor",
    "Scope",
    "StreamRedactor",
    "Surface",
    "by_role",
    "from_exclusive",
    "from_inclusive",
    "from_unknown",
    "now",
    "phase_timing",
    "plain",
    "read_activity",
    "read_jsonl",
    "read_result",
    "repair_tail",
    "rows",
    "scrub_file",
    "scrub_tree",
    "since",
    "structured",
    "sum_usage",
    "tail_text",
]
