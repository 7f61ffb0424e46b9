"""One attempt as a trial directory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.config.harbor.document import AGENT_LOGS
from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence.files import document_bytes, read_document, write_atomic
from pytest_ageval.evidence.layout import Layout
from pytest_ageval.export import atif
from pytest_ageval.export.harbor.names import job_name, trial_name
from pytest_ageval.export.harbor.result import Told, describe
from pytest_ageval.trees import copy_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_ageval.export.source import Invocation, Recorded

#: Where the evidence of a Harbor task has what is at /logs/agent.
_AGENT_LOGS = "agent-logs"


def write_trial(attempt: Recorded, jobs: Path, *, task_root: Path | None = None) -> Path:
    """Write the trial directory of a settled attempt below the job of its run; returns it.

    A trial that is there already is replaced. `task_root` is the task's directory, if it is known.
    Raises AgevalError ``attempt_not_settled``, or ``export_failed`` when another trial has the place.
    """
    if not attempt.result:
        raise AgevalError("attempt_not_settled", f"{attempt.root} has no result.json")
    job = jobs / job_name(attempt)
    target = job / trial_name(attempt)
    told = describe(attempt, target, task_root or _find_task(attempt) or _told_before(target))
    _refuse_other(target, told)
    aside = job / f".{target.name}.{os.getpid()}.tmp"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        _fill(attempt, aside, told)
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return target


def _refuse_other(target: Path, told: Told) -> None:
    """Nothing that this export did not write is overwritten."""
    if not target.exists():
        return
    there = read_document(target / "result.json") or {}
    if there.get("id") != told.result["id"]:
        raise AgevalError("export_failed", f"{target} exists and is not the trial of {told.result['id']}")


def _find_task(attempt: Recorded) -> Path | None:
    """The task beside the evidence, where the evidence lies in its data set."""
    dataset = attempt.root.absolute().parent.parent.parent
    name = str(attempt.result.get("task_id"))
    places = {dataset / "tasks" / name: "task.yaml", dataset / name: "task.toml"}
    return next((place for place, file in places.items() if (place / file).is_file()), None)


def _told_before(target: Path) -> Path | None:
    """The task's directory as the trial that is replaced has it."""
    found = ((read_document(target / "config.json") or {}).get("task") or {}).get("path")
    return Path(found) if isinstance(found, str) and Path(found).is_absolute() else None


def _fill(attempt: Recorded, directory: Path, told: Told) -> None:
    _document(directory / "config.json", told.config)
    _document(directory / "result.json", told.result)
    if told.exception is not None:
        text = f"{told.exception['exception_type']}: {told.exception['exception_message']}\n"
        (directory / "exception.txt").write_text(
            text + told.exception["exception_traceback"], encoding="utf-8", errors="replace"
        )
    groups = list(attempt.sessions().items())
    if not told.steps:
        _agent(attempt, directory, groups)
        _native_artifacts(attempt, directory / "artifacts")
        _verifier(attempt, directory / "verifier", None, told.rewards)
        return
    for number, step in enumerate(told.steps):
        place = directory / "steps" / step["step_name"] if told.multi_step else directory
        mine = [(name, rows) for name, rows in groups if not told.multi_step or _of_step(name, number)]
        _agent(attempt, place, mine)
        _step_artifacts(attempt, place, step["step_name"])
        _verifier(attempt, place / "verifier", step["step_name"], step.get("rewards"))


def _of_step(session_id: str, number: int) -> bool:
    """The session of a step ends with its number."""
    return session_id.rpartition("_")[2] == str(number)


def _document(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, document_bytes(document), sync=False)


def _agent(attempt: Recorded, place: Path, sessions: Sequence[tuple[str, list[Invocation]]]) -> None:
    """``agent/trajectory.json``; further sessions beside it, since the viewer shows one."""
    directory = place / "agent"
    directory.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    for number, (session_id, invocations) in enumerate(sessions):
        document = atif.document(attempt, session_id, invocations)
        names.append("trajectory.json" if number == 0 else f"trajectory-{number + 1}.json")
        if number == 0 and len(sessions) > 1:
            document["notes"] = (
                f"The first of {len(sessions)} sessions; the others are in the files trajectory-N.json."
            )
        _document(directory / names[-1], document)


def _step_artifacts(attempt: Recorded, place: Path, step: str) -> None:
    source = Layout(attempt.root).harbor_artifacts(step)
    target = place / "artifacts"
    rows = (read_document(source / "manifest.json") or {}).get("entries") or []
    entries = [_manifest_row(source, row) for row in rows if "source" in row and row["source"] != AGENT_LOGS]
    for path in sorted(source.iterdir()) if source.is_dir() else ():
        if path.name == _AGENT_LOGS:
            _agent_logs(path, place / "agent")
        elif path.name != "manifest.json":
            copy_tree(path, target / path.name)
    _document(target / "manifest.json", entries)


def _manifest_row(source: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    destination = str(row.get("destination") or str(row["source"]).lstrip("/"))
    is_file = (source / destination).is_file() or "." in Path(destination).name
    return {
        "source": row["source"],
        "destination": f"artifacts/{destination}",
        "type": row.get("type") or ("file" if is_file else "directory"),
        "status": row.get("status") or "failed",
        "service": None if row.get("service") == "main" else row.get("service"),
        "exclude": list(row.get("exclude") or ()),
    }


def _agent_logs(source: Path, target: Path) -> None:
    """What the agent left at /logs/agent. Its own trajectory.json, if any, does not replace ours."""
    for path in sorted(source.iterdir()):
        name = f"agent-{path.name}" if (target / path.name).exists() else path.name
        copy_tree(path, target / name)


def _native_artifacts(attempt: Recorded, target: Path) -> None:
    """What the run published and what was harvested, with where it was in the workspace."""
    source = Layout(attempt.root).artifacts
    declared = (attempt.lock.get("locked") or {}).get("artifacts") or []
    origin = {str(row.get("id")): f"/attempt/workspace/{row.get('path')}" for row in declared}
    entries: list[dict[str, Any]] = []
    for path in sorted(source.iterdir()) if source.is_dir() else ():
        copy_tree(path, target / path.name)
        kind = "directory" if path.is_dir() else "file"
        entries.append(
            {
                "source": origin.get(path.name) or origin.get(path.stem) or f"/attempt/artifacts/{path.name}",
                "destination": f"artifacts/{path.name}",
                "type": kind,
                "status": "ok",
                "service": None,
                "exclude": [],
            }
        )
    _document(target / "manifest.json", entries)


def _verifier(
    attempt: Recorded, directory: Path, step: str | None, rewards: Mapping[str, float] | None
) -> None:
    """The rewards, and what test.sh printed. An evaluator of our own may print gold: it is left out."""
    directory.mkdir(parents=True, exist_ok=True)
    if rewards is not None and set(rewards) == {"reward"}:
        (directory / "reward.txt").write_text(f"{rewards['reward']}\n", encoding="utf-8")
    elif rewards is not None:
        _document(directory / "reward.json", dict(rewards))
    for stream in ("stdout", "stderr") if step is not None else ():
        printed = Layout(attempt.root).log(f"verifier-{step}", stream)
        if printed.is_file():
            shutil.copyfile(printed, directory / f"test-{stream}.txt")
