"""From what the reports of a run say of attempts to what gates look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_ageval.suite.record import Settled

if TYPE_CHECKING:
    from collections.abc import Mapping


def of_reports(results: Mapping[str, Mapping[str, Any]]) -> list[Settled]:
    """The attempts of a run by node id, as the reports carried them. `attempt_dir` is a whole path."""
    return [_settled(nodeid, data) for nodeid, data in results.items()]


def _settled(nodeid: str, data: Mapping[str, Any]) -> Settled:
    score = data.get("score")
    return Settled(
        slot=nodeid,
        status=data["status"],
        task_id=str(data.get("task") or nodeid.rpartition("::")[2].partition("[")[0]),
        dataset_id=data.get("dataset"),
        agent=data.get("agent"),
        model=data.get("model"),
        effort=data.get("effort"),
        box=data.get("box"),
        attempt=data.get("attempt") or 1,
        attempt_dir=data.get("attempt_dir"),
        score=float(score) if isinstance(score, int | float) else None,
        error=data.get("error"),
        failed_checks=list(data.get("failed_checks") or ()),
        timing=data.get("timing") or {},
        usage=data.get("usage") or {},
    )
