"""From what is known of an attempt to its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_ageval.across import shown
from pytest_ageval.attempt.outcome import Outcome
from pytest_ageval.evidence import by_role, sum_usage

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.attempt.regrade import Source
    from pytest_ageval.executor import AgentResult


def outcome(attempt: Attempt) -> Outcome:
    """The outcome now: ERROR while something failed or no verdict is bound."""
    verdict, error = attempt.verdict, _error(attempt)
    found = _known(attempt)
    if attempt.source is not None:
        _of_source(found, attempt.source)
    if error is None and verdict is not None:
        found.status = "PASS" if verdict.status == "PASS" else "FAIL"
        found.score = verdict.score
    found.error = error
    if verdict is not None:
        found.metrics = attempt.metrics
        found.checks = verdict.checks
        found.failed_checks = verdict.failed_checks
    return found


def _of_source(found: Outcome, source: Source) -> None:
    """The agents' side is that of the attempt whose work is judged."""
    found.regraded_of = source.attempt_id
    found.agent, found.model = source.agent, source.model
    found.agent_status = source.result.get("agent_status")
    found.stop_reason = source.result.get("stop_reason")


def _error(attempt: Attempt) -> Mapping[str, Any] | None:
    if attempt.error is not None:
        return attempt.error.as_dict()
    if attempt.verdict is None:
        return {"phase": attempt.phase, "title": "no_verdict", "message": "no verdict was bound"}
    return None


def _known(attempt: Attempt) -> Outcome:
    """Everything that is not the verdict."""
    locked, service = attempt.locked, attempt.service
    last = service.last if service is not None else None
    agents = {binding.agent or binding.executor for binding in locked.bindings.values()}
    models = {binding.model.id for binding in locked.bindings.values() if binding.model.id}
    return Outcome(
        limit=attempt.limit,
        terminal=attempt.terminal,
        agent_status=_agent_status(attempt, last),
        stop_reason=None if last is None else last.stop_reason,
        agent_invocations=0 if service is None else service.quota.used,
        usage=_usage(attempt),
        timing=dict(attempt.timing),
        kind=attempt.raw_box.kind or locked.box.kind,
        capabilities=sorted(attempt.raw_box.capabilities),
        cleanup_warning=attempt.cleanup_warning,
        workspace=attempt.kept_workspace,
        not_produced=attempt.not_produced,
        flags=(*attempt.flags, *_suspicions(last)),
        attempt_id=attempt.identity.attempt_id,
        evidence_path=shown(attempt.evidence.root),
        dataset_id=locked.dataset_id,
        task_id=locked.task_id,
        digest=locked.digest,
        resumed=attempt.resumed,
        agent="+".join(sorted(agents)) or None,
        model="+".join(sorted(models)) or None,
        suite_run_id=attempt.identity.suite_run_id,
        slot=attempt.identity.slot,
    )


def _usage(attempt: Attempt) -> Mapping[str, Any]:
    """The agents' usage of the run phase, also of each role; the judges' is not the agent's and apart."""
    rows = [
        (each.info.surface, each.info.profile_id, each.usage_row) for each in attempt.evidence.invocations
    ]
    found = sum_usage(row for surface, _, row in rows if surface == "run")
    if roles := by_role((role, row) for surface, role, row in rows if surface == "run"):
        found["by_role"] = roles
    if judges := by_role((role, row) for surface, role, row in rows if surface == "evaluate"):
        found["judges"] = judges
    return found


def _agent_status(attempt: Attempt, last: AgentResult | None) -> str | None:
    if attempt.limit == "wall_time_seconds":
        return "timeout"
    if attempt.limit is not None:
        return "limit"
    return None if last is None else last.status


def _suspicions(last: AgentResult | None) -> tuple[str, ...]:
    """Signs that a reader should know of; none of them changes the verdict."""
    marks = ("agent_error_suspected", "suspicious_end")
    return () if last is None else tuple(mark for mark in marks if last.metadata.get(mark))
