"""summary.json and progress.json of a suite run, with the keys of the reference and ours beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pytest_ageval.config.hashing import digest_of
from pytest_ageval.suite.tally import Figures, Tally, rolled

if TYPE_CHECKING:
    from pytest_ageval.suite.record import Settled, SuiteHeader

SUMMARY_SCHEMA = "ageval.suite.summary/1"
PROGRESS_SCHEMA = "ageval.suite.progress/1"

#: ``incomplete``: the session ended before every slot was settled, and nobody had cancelled it.
Status = Literal["running", "cancelling", "complete", "cancelled", "incomplete"]

NOTE = "figures are per attempt; ERRORs are apart and never zeros; there is no verdict on a suite"


def summary(
    header: SuiteHeader,
    status: Status,
    rows: Mapping[str, Settled],
    history: Mapping[str, Sequence[Settled]],
    tally: Tally,
    session: Mapping[str, Any],
) -> dict[str, Any]:
    """The figures as they stand. `session` is what this session did (see `SuiteRun`).

    One pass over the rows.
    """
    total = tally.total
    groups = [_group(tally, group) for group in sorted(tally.groups)]
    attempts = [_attempt(slot, row, history.get(slot, ())) for slot, row in rows.items()]
    tasks = _tasks(rows)
    return {
        "schema": SUMMARY_SCHEMA,
        "suite_run_id": header.suite_run_id,
        "dataset_id": header.dataset_id,
        "dataset_version": header.dataset_version,
        "created_at": header.created_at,
        "status": status,
        "task_ids": [row["task_id"] for row in tasks],
        "attempts": attempts,
        "tasks": tasks,
        "task_refs": [_reference(row) for row in tasks],
        "counts": {
            "pass": total.passed,
            "fail": total.failed,
            "error": total.errors,
            "skipped": session["skipped"],
        },
        "metrics": {**tally.metrics(), "usage": total.usage()},
        "groups": groups,
        "exit_code": 2 if total.errors else 1 if total.failed else 0,
        "agent_label": _label(groups, "agent"),
        "model_label": _label(groups, "model"),
        "actors_summary": [{name: row[name] for name in _ACTOR} for row in groups],
        "config_fingerprint": digest_of([[row[name] for name in _ACTOR] for row in groups]),
        "config_homogeneous": len(groups) <= 1,
        "job_overlay": None,
        "note": header.note or NOTE,
        "amended": any(history.values()),
        **session,
    }


_ACTOR = ("agent", "model", "effort", "box")


def _group(tally: Tally, group: tuple[str, str, str, str, str]) -> dict[str, Any]:
    figures = Figures()
    for task in tally.groups[group].values():
        for name in Figures.__slots__:
            setattr(figures, name, getattr(figures, name) + getattr(task, name))
    names = ("dataset_id", *_ACTOR)
    counts = {"pass": figures.passed, "fail": figures.failed, "error": figures.errors}
    metrics = {**tally.metrics(group), "usage": figures.usage()}
    return {**dict(zip(names, group, strict=True)), "counts": counts, "metrics": metrics}


def _label(groups: Sequence[Mapping[str, Any]], name: str) -> str:
    return ", ".join(dict.fromkeys(str(row[name]) for row in groups if row[name]))


def _attempt(slot: str, row: Settled, before: Sequence[Settled]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "slot": slot,
        "task_id": row.task_id,
        "attempt_index": row.attempt,
        "status": row.status,
        "exit_code": {"PASS": 0, "FAIL": 1}.get(row.status, 2),
        "score": row.score,
        "limit": row.limit,
        "metrics": dict(row.metrics),
        "run_id": row.attempt_id,
        "error": None if row.error is None else dict(row.error),
        "phase": "error" if row.status == "ERROR" else "terminal",
        "agent": row.agent,
        "model": row.model,
        "effort": row.effort,
        "box": row.box,
        "duration_s": None if row.seconds is None else round(row.seconds, 3),
        "source": row.source,
        "digest": row.digest,
    }
    if before:
        found["previous"] = [
            {
                "run_id": old.attempt_id,
                "status": old.status,
                "score": old.score,
                "attempt_index": old.attempt,
                "replaced_at": row.settled_at,
            }
            for old in before
        ]
    return found


def _tasks(rows: Mapping[str, Settled]) -> list[dict[str, Any]]:
    """One row for each task, over all its attempts."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows.values():
        task = found.setdefault(row.task_id, {"task_id": row.task_id, "rows": []})
        task["rows"].append(row)
    return [_task(task["task_id"], task["rows"]) for task in found.values()]


def _task(task_id: str, rows: Sequence[Settled]) -> dict[str, Any]:
    tally = Tally()
    for row in rows:
        tally.replace(None, row)
    status = rolled(tally.total)
    best = next(row for row in rows if row.status == status)
    metrics = tally.metrics()
    return {
        "task_id": task_id,
        "status": status,
        "score": metrics["mean_score"],
        "n": tally.total.scored,
        "c": tally.total.passed,
        "n_errors": tally.total.errors,
        "pass_at_k": metrics["pass_at_k"],
        "pass_power_k": metrics["pass_power_k"],
        "attempt_indices": sorted({row.attempt for row in rows}),
        "attempt_run_ids": [row.attempt_id for row in rows if row.attempt_id],
        "run_id": best.attempt_id,
        "error": None if best.error is None else dict(best.error),
        "limit": best.limit,
    }


def _reference(task: Mapping[str, Any]) -> dict[str, Any]:
    names = ("task_id", "status", "score", "run_id", "n", "c", "attempt_run_ids")
    return {name: task[name] for name in names}
