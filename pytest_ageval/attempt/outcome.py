"""What an attempt came to: the content of result.json and of the test report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["PASS", "FAIL", "ERROR"]

#: Schema of result.json. The keys of the reference are all there; the rest is ours.
RESULT_SCHEMA = "ageval.result/1"


@dataclass(slots=True)
class Outcome:
    """One attempt's result. `status` is ERROR unless the evaluator's verdict was bound and counts.

    `not_produced` are declared artifacts that the run did not leave. `limit` names the first ceiling
    that was reached; `terminal` is what run.py returned; `timing` holds milliseconds by phase; `usage`
    the summed usage of the run phase; `resumed` says how often the attempt was continued; `workspace` is
    where the box's files are when they were kept;
    `regraded_of` the attempt whose work was judged.
    """

    status: Status = "ERROR"
    score: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    checks: Sequence[Mapping[str, Any]] = ()
    failed_checks: tuple[str, ...] = ()
    error: Mapping[str, Any] | None = None
    limit: str | None = None
    terminal: Mapping[str, Any] | None = None
    agent_status: str | None = None
    stop_reason: str | None = None
    agent_invocations: int = 0
    usage: Mapping[str, Any] = field(default_factory=dict)
    timing: Mapping[str, float] = field(default_factory=dict)
    kind: str = ""
    capabilities: Sequence[str] = ()
    cleanup_warning: str | None = None
    workspace: str | None = None
    flags: Sequence[str] = ()
    not_produced: Sequence[str] = ()
    attempt_id: str = ""
    evidence_path: str = ""
    dataset_id: str = ""
    task_id: str = ""
    digest: str = ""
    resumed: int = 0
    agent: str | None = None
    model: str | None = None
    suite_run_id: str | None = None
    slot: str | None = None
    regraded_of: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """result.json, in plain JSON types."""
        return {
            "schema": RESULT_SCHEMA,
            "status": self.status,
            "score": self.score,
            "metrics": dict(self.metrics),
            "failed_checks": list(self.failed_checks),
            "error": None if self.error is None else dict(self.error),
            "limit": self.limit,
            "terminal": None if self.terminal is None else dict(self.terminal),
            "agent_status": self.agent_status,
            "stop_reason": self.stop_reason,
            "agent_invocations": self.agent_invocations,
            "usage": dict(self.usage),
            "timing": dict(self.timing),
            "kind": self.kind,
            "capabilities_used": sorted(self.capabilities),
            "cleanup_warning": self.cleanup_warning,
            "workspace": self.workspace,
            "flags": list(self.flags),
            "not_produced": list(self.not_produced),
            "gold_materialized_at": "evaluate",
            "attempt_id": self.attempt_id,
            "evidence_path": self.evidence_path,
            "logs": self.evidence_path,
            "dataset_id": self.dataset_id,
            "task_id": self.task_id,
            "digest": self.digest,
            "resumed": self.resumed,
            "agent": self.agent,
            "model": self.model,
            "suite_run_id": self.suite_run_id,
            "slot": self.slot,
            **({} if self.regraded_of is None else {"regraded_of": self.regraded_of}),
        }
