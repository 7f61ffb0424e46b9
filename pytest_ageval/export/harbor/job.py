"""The two files of a job, from the trials that are in its directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.config.where import display
from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence.files import document_bytes, now, read_document, write_atomic
from pytest_ageval.export.harbor.names import job_name, jobs_directory, uuid_of
from pytest_ageval.export.source import Recorded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Row = dict[str, Any]

_TOKENS = ("n_input_tokens", "n_cache_tokens", "n_output_tokens", "cost_usd")


def write_jobs(attempts: Iterable[str]) -> Iterator[str]:
    """Write the files of the jobs that attempts at these directories have trials in; a line for each.

    What goes wrong is such a line too: the trials are there all the same.
    """
    jobs = dict.fromkeys(
        jobs_directory(root) / job_name(found)
        for directory in attempts
        if (found := Recorded(root := Path(directory))).result
    )
    for job in filter(Path.is_dir, jobs):  # where no trial could be written, that has been told
        try:
            count = write_job(job)
        except (OSError, AgevalError) as error:
            yield f"{job} has no config.json and result.json of the job: {error}"
        else:
            yield f"{count} Harbor trials in {display(job)}; harbor view {display(job.parent)}"


def write_job(job: Path) -> int:
    """Write config.json and result.json of the job directory `job`; returns how many trials it has."""
    trials = [
        found
        for path in sorted(job.iterdir())
        if path.is_dir() and not path.name.startswith(".")
        if (found := read_document(path / "result.json")) is not None
    ]
    _write(job / "config.json", _config(job, trials))
    _write(job / "result.json", _result(job, trials))
    return len(trials)


def _write(path: Path, document: Row) -> None:
    write_atomic(path, document_bytes(document))


def _config(job: Path, trials: Sequence[Row]) -> Row:
    agents = {str(row["config"]["agent"]): row["config"]["agent"] for row in trials}
    repeated: dict[tuple[str, str], int] = {}
    for row in trials:
        slot = str(row["config"]["agent"]), str(row["config"]["task"])
        repeated[slot] = repeated.get(slot, 0) + 1
    return {
        "schema_version": 1,
        "job_name": job.name,
        "jobs_dir": str(job.parent.absolute()),
        "n_attempts": max(repeated.values(), default=1),
        "environment": trials[0]["config"]["environment"] if trials else {},
        "agents": list(agents.values()),
        "datasets": _datasets(trials),
    }


def _datasets(trials: Sequence[Row]) -> list[Row]:
    """The directories that the tasks are in, with their names; of tasks nobody found, the data set's id."""
    found: dict[str, set[str]] = {}
    for row in trials:
        path = Path(row["config"]["task"]["path"])
        parent = path.parent.parent if path.parent.name == "tasks" else path.parent
        place = str(parent) if path.is_absolute() else str(row.get("source") or "adhoc")
        found.setdefault(place, set()).add(path.name)
    return [{"path": place, "task_names": sorted(names)} for place, names in found.items()]


def _result(job: Path, trials: Sequence[Row]) -> Row:
    groups: dict[str, list[Row]] = {}
    for row in trials:
        groups.setdefault(_group(row), []).append(row)
    ended = max((str(row["finished_at"]) for row in trials if row.get("finished_at")), default=now())
    return {
        "schema_version": 1,
        "id": uuid_of(job.name),
        "started_at": min((str(row["started_at"]) for row in trials if row.get("started_at")), default=ended),
        "updated_at": ended,
        "finished_at": ended,
        "n_total_trials": len(trials),
        "stats": {
            "n_completed_trials": len(trials),
            "n_errored_trials": sum(1 for row in trials if _exceptions(row)),
            "n_running_trials": 0,
            "n_pending_trials": 0,
            "n_cancelled_trials": 0,
            "n_retries": 0,
            "evals": {name: _figures(rows) for name, rows in groups.items()},
            **_usage(trials),
        },
    }


def _group(row: Row) -> str:
    model = row["agent_info"].get("model_info") or {}
    parts = (row["agent_info"]["name"], model.get("name"), row.get("source") or "adhoc")
    return "__".join(part for part in parts if part)


def _exceptions(row: Row) -> set[str]:
    infos = [row.get("exception_info"), *(step.get("exception_info") for step in row["step_results"] or ())]
    return {info["exception_type"] for info in infos if info}


def _figures(rows: Sequence[Row]) -> Row:
    """As Harbor counts them: the mean is over the trials that have a reward."""
    scored = [
        (row["trial_name"], row["verifier_result"]["rewards"]) for row in rows if row["verifier_result"]
    ]
    stats: dict[str, dict[str, list[str]]] = {}
    for trial, rewards in scored:
        for name, value in rewards.items():
            stats.setdefault(name, {}).setdefault(str(float(value)), []).append(trial)
    failed: dict[str, list[str]] = {}
    for row in rows:
        for kind in sorted(_exceptions(row)):
            failed.setdefault(kind, []).append(row["trial_name"])
    return {
        "n_trials": len(scored),
        "n_errors": sum(1 for row in rows if _exceptions(row)),
        "metrics": [_mean([rewards for _, rewards in scored])] if scored else [],
        "pass_at_k": {},
        "reward_stats": stats,
        "exception_stats": failed,
    }


def _mean(rewards: Sequence[dict[str, float]]) -> dict[str, float]:
    names = sorted({name for row in rewards for name in row})
    means = {name: sum(row.get(name, 0.0) for row in rewards) / len(rewards) for name in names}
    return {"mean": next(iter(means.values()))} if len(means) == 1 else means


def _usage(trials: Iterable[Row]) -> Row:
    contexts = [
        context
        for row in trials
        for context in ([row["agent_result"]] if row["agent_result"] else _of_steps(row))
        if context
    ]
    found: Row = {}
    for name in _TOKENS:
        values = [context[name] for context in contexts if context.get(name) is not None]
        found[name] = sum(values) if values else None
    return found


def _of_steps(row: Row) -> list[Row | None]:
    return [step.get("agent_result") for step in row["step_results"] or ()]
