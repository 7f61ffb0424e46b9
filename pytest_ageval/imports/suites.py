"""A job of Harbor as a suite run, so that it can be compared with one of ours."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pytest_ageval.evidence import now, read_result
from pytest_ageval.evidence.files import read_document
from pytest_ageval.evidence.layout import Layout
from pytest_ageval.imports.attempt import attempt_id
from pytest_ageval.suite import Settled, SuiteHeader, SuiteLayout, SuiteWriter, read_suite
from pytest_ageval.suite.places import DIRECTORY

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_ageval.imports.trials import Job, Trial


def suite_id(job: Job) -> str:
    """``harbor-7a1664bf9740``: always the same for a job."""
    return f"harbor-{job.job_id[:12]}"


def record(job: Job, trials: list[Trial], evidence: Path) -> Path:
    """Add the imported `trials` of `job` to its suite run, those that are there already excepted.

    Raises AgevalError ``suite_in_progress`` or ``suite_invalid``.
    """
    root = evidence / DIRECTORY / suite_id(job)
    wanted = {trial.path for trial in trials}
    rows = [_row(trial, number, job, evidence) for trial, number in _numbered(job) if trial.path in wanted]
    if SuiteLayout(root).header.is_file():
        known = read_suite(root).settled
        writer = SuiteWriter.open(root)
    else:
        with contextlib.suppress(OSError):
            root.rmdir()  # of an import that was killed before it had written the header
        known = {}
        writer = SuiteWriter.create(root, _header(job, rows))
    try:
        for row in rows:
            if row.slot not in known:
                writer.add(row)
    finally:
        writer.close()
    return root


def _header(job: Job, rows: list[Settled]) -> SuiteHeader:
    datasets = {row.dataset_id for row in rows}
    return SuiteHeader(
        suite_run_id=suite_id(job),
        created_at=_began(job),
        run_id=job.run_id,
        dataset_id=datasets.pop() if len(datasets) == 1 else None,
        n_attempts=max((row.attempt for row in rows), default=1),
        note=f"imported from the Harbor job {job.path.name}",
    )


def _began(job: Job) -> str:
    """When its first trial began. (A job's own time is one of a clock that nobody names.)"""
    return min((each.result.started_at for each in job.trials if each.result.started_at), default=now())


def _numbered(job: Job) -> list[tuple[Trial, int]]:
    """The trials in the order of their beginning, each with its number among those of its kind."""
    counts: dict[tuple[str, str, str | None, str | None], int] = {}
    found = []
    for trial in job.trials:
        slot = (trial.task_id, trial.result.agent_info.name, trial.model, trial.effort)
        counts[slot] = counts.get(slot, 0) + 1
        found.append((trial, counts[slot]))
    return found


def _row(trial: Trial, number: int, job: Job, evidence: Path) -> Settled:
    identity = attempt_id(trial)
    result: dict[str, Any] = read_result(evidence / "runs" / identity) or {}
    summary = read_document(Layout(evidence / "runs" / identity).summary) or {}
    return Settled(
        slot=f"{job.path.name}/{trial.path.name}",
        status=result["status"],
        task_id=result["task_id"],
        dataset_id=result["dataset_id"],
        agent=result["agent"],
        model=result["model"],
        effort=trial.effort,
        box=result["kind"],
        attempt=number,
        attempt_id=identity,
        attempt_dir=f"runs/{identity}",
        score=result["score"],
        metrics=result["metrics"],
        error=result["error"],
        limit=result["limit"],
        flags=result["flags"],
        digest=result["digest"],
        settled_at=str((summary.get("phase_timing") or {}).get("finished_at") or now()),
        timing=result["timing"],
        usage=result["usage"],
        source="imported",
        of=trial.result.id or trial.trial_id,
    )
