"""The sessions of a trial: its trajectories, or, without one, what is known of the agent's work."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pytest_ageval.config.harbor.task import ROLE
from pytest_ageval.evidence.invocation import METADATA_SCHEMA
from pytest_ageval.executor import Usage
from pytest_ageval.imports import atif

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_ageval.imports.trials import Spent, StepResult, Trial
    from pytest_ageval.imports.verdict import Judged

#: Bytes of a trajectory that are read.
LIMIT = 256 * 1024 * 1024

#: How many trajectories inside of others are looked for.
_NESTED = 200


@dataclass(slots=True)
class Session:
    """One session: rows of the trajectory, and what the record of its one invoke says."""

    session_id: str
    invocation_id: str
    model: str | None
    usage: dict[str, Any]
    started_at: str | None = None
    finished_at: str | None = None
    status: str = "completed"
    error: str | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    #: Why the trajectory could not be read.
    problem: str | None = None

    def metadata(self, attempt_id: str, number: int) -> dict[str, Any]:
        """metadata.json of the invoke."""
        return {
            "schema": METADATA_SCHEMA,
            "invocation_id": self.invocation_id,
            "attempt_id": attempt_id,
            "profile_id": ROLE,
            "session_id": self.session_id,
            "executor_kind": "harbor",
            "model": self.model,
            "seq": number,
            "turn": 1,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "status": self.status,
            "latency_ms": _elapsed(self.started_at, self.finished_at),
            "error": self.error,
            "agent_status": self.status,
            "surface": "agent",
            "usage": self.usage,
        }


def sessions(trial: Trial, judged: Judged) -> list[Session]:
    """One session a step, and one for each trajectory inside of its trajectory."""
    found: list[Session] = []
    for number, step in enumerate(trial.steps):
        document, problem = _read(trial.directory(step) / "agent" / "trajectory.json")
        name = f"sess_{ROLE}_{step.step_name}_main_{number}"
        main = _session(trial, step, judged, name, document, len(found) + 1)
        main.problem = main.problem or problem
        found.append(main)
        for inner in _nested(document):
            # Its tokens are part of the step's.
            none = {"unavailable": "not_reported", "source": "harbor"}
            session = Session(
                f"sess_{ROLE}_{step.step_name}_sub{len(found)}_{number}",
                _invocation(trial, len(found) + 1),
                trial.model,
                none,
                main.started_at,
                main.finished_at,
            )
            _fill(session, trial, inner, len(found) + 1)
            found.append(session)
    return found


def _session(
    trial: Trial,
    step: StepResult,
    judged: Judged,
    name: str,
    document: Mapping[str, Any] | None,
    number: int,
) -> Session:
    span = step.agent_execution
    failed = step.exception_info is not None and judged.agent_status != "completed"
    session = Session(
        name,
        _invocation(trial, number),
        trial.model,
        _usage(step.agent_result, document).as_dict(),
        None if span is None else span.started_at,
        None if span is None else span.finished_at,
        judged.agent_status if failed else "completed",
        None if step.exception_info is None else step.exception_info.exception_type,
    )
    _fill(session, trial, document, number)
    return session


def _fill(session: Session, trial: Trial, document: Mapping[str, Any] | None, number: int) -> None:
    """Add the rows, the last of which ends the invoke."""
    common = {"turn_index": number, "session_id": session.session_id, "profile_id": ROLE}
    if document is not None:
        try:
            session.rows = atif.rows(document, common)
        except atif.NotAtifError as error:
            session.problem = str(error)
    latency = _elapsed(session.started_at, session.finished_at)
    told: Any = None if document is None else document.get("agent")
    if not isinstance(told, dict):
        told = {"name": trial.result.agent_info.name, "version": trial.result.agent_info.version}
    row: dict[str, Any] = {
        "type": "terminal",
        "ok": session.error is None,
        "error": session.error,
        "structured": None,
        "usage": session.usage,
        "stop_reason": None,
        "metadata": {
            "invocation_id": session.invocation_id,
            "executor_kind": "harbor",
            "model": session.model,
            "turn_index": number,
            "turn": 1,
            "status": session.status,
            "agent_status": session.status,
            "latency_ms": latency,
            "profile_id": ROLE,
            "agent": {key: told[key] for key in ("name", "version") if key in told},
        },
        "source": "harbor",
        **common,
    }
    if latency is not None:
        row["elapsed_ms"] = latency
    session.rows.append(row)


def _invocation(trial: Trial, number: int) -> str:
    return f"inv_{trial.trial_id[:12]}{number:04d}"


def _usage(spent: Spent | None, document: Mapping[str, Any] | None) -> Usage:
    """What result.json says; if nothing, the totals of the trajectory."""
    if spent is not None:
        figures = {
            "prompt_tokens": spent.n_input_tokens,
            "completion_tokens": spent.n_output_tokens,
            "cached_tokens": spent.n_cache_tokens,
            "cost_usd": spent.cost_usd,
        }
        known: dict[str, Any] = {name: value for name, value in figures.items() if value is not None}
        if known:
            return Usage(**known, source="harbor")
    told = None if document is None else atif.usage(document)
    return told or Usage(source="harbor", unavailable="not_reported")


def _read(path: Path) -> tuple[Mapping[str, Any] | None, str | None]:
    """The document, or why there is none although there is a file."""
    if not path.is_file() or path.is_symlink():
        return None, None
    try:
        if path.stat().st_size > LIMIT:
            return None, f"{path.name} has more than {LIMIT} bytes"
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{path.name}: {error}"
    return (found, None) if isinstance(found, dict) else (None, f"{path.name} is no JSON object")


def _nested(document: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    waiting = [] if document is None else [document]
    found: list[Mapping[str, Any]] = []
    while waiting and len(found) < _NESTED:
        inner = waiting.pop(0).get("subagent_trajectories")
        rows = [row for row in inner if isinstance(row, dict)] if isinstance(inner, list) else []
        found += rows
        waiting += rows
    return found[:_NESTED]


def _elapsed(started: str | None, finished: str | None) -> float | None:
    try:
        begun, ended = (datetime.fromisoformat(text) for text in (started or "", finished or ""))
        return round(max((ended - begun).total_seconds() * 1000, 0.0), 3)
    except (TypeError, ValueError):
        return None
