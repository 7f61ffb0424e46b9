"""One trial as a settled attempt directory that can be looked at, compared and judged anew."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_ageval._version import __version__
from pytest_ageval.attempt.links import remove_outward_links
from pytest_ageval.attempt.outcome import Outcome
from pytest_ageval.config.harbor.document import AGENT_LOGS, MAIN
from pytest_ageval.config.harbor.task import ROLE
from pytest_ageval.config.hashing import digest_of
from pytest_ageval.config.where import display
from pytest_ageval.errors import ConfigError
from pytest_ageval.evidence import EvidenceStore, phase_timing, scrub_tree
from pytest_ageval.evidence.files import read_document
from pytest_ageval.evidence.layout import Layout, safe_name
from pytest_ageval.imports import verdict
from pytest_ageval.imports.sessions import Session, sessions
from pytest_ageval.trees import copy_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_ageval.imports.trials import Job, Span, StepResult, Trial

#: Where the artifacts of a step have what is at /logs/agent.
_AGENT_DIRECTORY = "agent-logs"

#: What of a trial is not copied as it is, since it has a place of its own.
_PLACED = ("agent", "artifacts", "verifier")

LOCK_FORMAT = "ageval.lock/1"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the user says of the import. `tasks` is the directory in which the tasks are."""

    reward_key: str | None = None
    threshold: float | None = None
    tasks: Path | None = None
    dataset_id: str | None = None


def attempt_id(trial: Trial) -> str:
    """The id of the attempt that a trial becomes: always the same."""
    return f"attempt_{trial.trial_id}"


def import_trial(trial: Trial, job: Job, runs: Path, rules: Rules) -> bool:
    """Write the attempt below `runs`; False when it is there already.

    What an import that was killed has left is removed first. Raises ConfigError ``attempt_exists`` when
    the place belongs to an attempt that was not imported.
    """
    _refuse_links(trial)
    root = runs / attempt_id(trial)
    layout = Layout(root)
    if root.exists():
        lock = read_document(layout.lock)
        if lock is not None and "imported" not in lock:
            raise ConfigError(
                "attempt_exists",
                f"{display(root)} is the attempt that this trial was exported from",
                hint="name another directory with --into",
            )
        if layout.result.exists():
            return False
        shutil.rmtree(root)
    with EvidenceStore.create(root, run_id=job.run_id, sync="none") as store:
        _Writer(trial, job, store, rules).write()
    return True


def _refuse_links(trial: Trial) -> None:
    """The directories that are read are the trial's own. (Links below them are judged one by one.)"""
    places = [trial.directory(step) for step in trial.steps]
    places = [*places, *(place / name for place in places for name in _PLACED)]
    for place in (trial.path / "steps", *places):
        if place.is_symlink() and place != trial.path:
            raise ConfigError(
                "invalid_trial",
                "this is a symbolic link",
                file=display(place),
                hint="put what it leads to in its place",
            )


class _Writer:
    def __init__(self, trial: Trial, job: Job, store: EvidenceStore, rules: Rules) -> None:
        self.trial = trial
        self.job = job
        self.store = store
        self.layout = store.layout
        self.rules = rules
        self.judged = verdict.judge(trial, reward_key=rules.reward_key, threshold=rules.threshold)
        self.lock = self._lock()
        self.left: list[str] = []

    def write(self) -> None:
        self.store.write_lock(self.lock)
        self._copy()
        for step in self.trial.steps:
            self._artifacts(step)
            self._verifier(step)
        found = sessions(self.trial, self.judged)
        self._reward()
        self.store.write_checks(self.judged.checks)
        self.store.write_trajectory(each.rows for each in found)
        for number, each in enumerate(found, start=1):
            document = each.metadata(self.store.attempt_id, number)
            self.store.write_invocation("run", number, each.invocation_id, document)
        self.store.scrub()
        self.left += remove_outward_links(self.layout.imported)
        scrub_tree(self.layout.imported, self.store.redactor)
        self._facts(found)
        outcome = self._outcome(found)
        started, finished = self.trial.result.started_at, self.trial.result.finished_at
        timing = phase_timing(list(outcome.timing.items()), started_at=started, finished_at=finished)
        self.store.write_summary(outcome.as_dict(), timing)
        self.store.write_result(outcome.as_dict())

    # -- lock ------------------------------------------------------------------------------------

    def _lock(self) -> dict[str, Any]:
        trial, rules = self.trial, self.rules
        dataset = rules.dataset_id or trial.result.source or "harbor"
        model = {"id": trial.model, "reasoning": {"effort": trial.effort} if trial.effort else None}
        model = {name: value for name, value in model.items() if value}
        name = trial.result.agent_info.name
        package = trial.result.task_name if "/" in trial.result.task_name else None
        checksum = trial.result.task_checksum
        locked: dict[str, Any] = {
            "format": "harbor.trial/1",
            "dataset_id": dataset,
            "dataset_version": "0",
            "task_id": trial.task_id,
            # Harbor's checksum is made in another way: it says nothing of whether two tasks are the same.
            "eval_digest": checksum if checksum.startswith("sha256:") else "",
            "task_checksum": checksum,
            "environment": trial.kind,
            "environment_options": {},
            "agent_profiles": {ROLE: {"executor": "harbor", "model": model, "version": self._agent_version}},
            "harbor": {
                "package": package,
                "multi_step": bool(trial.result.step_results),
                "reward_key": rules.reward_key,
                "pass_threshold": rules.threshold,
                "steps": [self._locked_step(step) for step in trial.steps],
            },
            "pytest_ageval": __version__,
        }
        return {
            "format": LOCK_FORMAT,
            **{key: locked[key] for key in ("dataset_id", "dataset_version", "task_id", "eval_digest")},
            "digest": digest_of(locked),
            "environment": trial.kind,
            "job_overlay": {
                "environment": trial.kind,
                "agent_profiles": {
                    ROLE: {"executor": "harbor", "agent": name, "label": name, "model": model or None}
                },
            },
            "locked": locked,
            "imported": self._source(),
        }

    @property
    def _agent_version(self) -> str:
        return self.trial.result.agent_info.version

    def _locked_step(self, step: StepResult) -> dict[str, Any]:
        mode = self.trial.result.verifier_environment_mode
        return {"name": step.step_name, "verifier": {"separate": mode == "separate"}}

    def _source(self) -> dict[str, Any]:
        """Where it comes from, and where its task is, if it is on this machine."""
        trial = self.trial
        root = self._task_root()
        return {
            "from": "harbor",
            "trial": trial.result.trial_name,
            "trial_id": trial.result.id,
            "job": self.job.path.name,
            "job_id": self.job.job_id,
            "path": str(trial.path),
            "task": {k: v for k, v in (trial.setting("task") or {}).items() if v not in (None, False)},
            "task_root": None if root is None else str(root),
        }

    def _task_root(self) -> Path | None:
        given = self.trial.setting("task", "path")
        places = [] if self.rules.tasks is None else [self.rules.tasks / self.trial.task_id]
        if isinstance(given, str) and given:
            # A relative path is one of the directory in which Harbor was started, above its jobs.
            places += [*(above / given for above in self.trial.path.parents[:3]), Path(given)]
        return next((place.absolute() for place in places if (place / "task.toml").is_file()), None)

    # -- files -----------------------------------------------------------------------------------

    def _copy(self) -> None:
        """Everything else as it is, below ``imported/``."""
        trial = self.trial
        for path in sorted(trial.path.iterdir()):
            if path.name == "steps" and trial.result.step_results:
                self._copy_steps(path)
            elif path.name not in _PLACED or trial.result.step_results:
                self._take(path, self.layout.imported / path.name)

    def _copy_steps(self, steps: Path) -> None:
        known = {step.step_name for step in self.trial.result.step_results or ()}
        for directory in sorted(steps.iterdir()):
            for path in sorted(directory.iterdir()) if directory.is_dir() else ():
                if path.name not in _PLACED or directory.name not in known:
                    self._take(path, self.layout.imported / "steps" / directory.name / path.name)

    def _take(self, source: Path, target: Path) -> None:
        left = copy_tree(source, target)
        self.left += [path.relative_to(self.trial.path).as_posix() for path in left]

    def _artifacts(self, step: StepResult) -> None:
        source, target = self.trial.directory(step), self.layout.harbor_artifacts(step.step_name)
        artifacts = source / "artifacts"
        for path in sorted(artifacts.iterdir()) if artifacts.is_dir() else ():
            if path.name == _AGENT_DIRECTORY:
                self._take(path, self.layout.imported / "artifacts" / path.name)
            elif path.name != "manifest.json":
                self._take(path, target / path.name)
        entries = self._manifest(source / "artifacts" / "manifest.json", target)
        row = {"source": AGENT_LOGS, "destination": _AGENT_DIRECTORY, "service": MAIN}
        if (source / "agent").is_dir():
            self._take(source / "agent", target / _AGENT_DIRECTORY)
            empty = not any((target / _AGENT_DIRECTORY).iterdir())
            entries.append({**row, "type": "directory", "status": "empty" if empty else "ok"})
        else:
            entries.append({**row, "status": "failed"})
        if target.is_dir():
            self.left += remove_outward_links(target)
        self.store.write_harbor_manifest(step.step_name, entries)

    def _manifest(self, path: Path, target: Path) -> list[dict[str, Any]]:
        """Harbor's rows, with paths as ours have them. What is not there is not ``ok``."""
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return []
        rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
        return [_entry(row, target) for row in rows]

    def _verifier(self, step: StepResult) -> None:
        """What the verifier left, where nothing is exported; what it printed, where ours is."""
        verifier = self.trial.directory(step) / "verifier"
        texts = []
        for stream in ("stdout", "stderr"):
            path = verifier / f"test-{stream}.txt"
            there = path.is_file() and not path.is_symlink()
            texts.append(path.read_text(encoding="utf-8", errors="replace") if there else "")
        if verifier.is_dir():
            target = self.store.verifier_directory(step.step_name)
            self._take(verifier, target)
            self.left += remove_outward_links(target)
            self.store.write_verifier_output(safe_name(step.step_name), *texts)

    def _reward(self) -> None:
        rows = []
        for step in self.trial.steps:
            rewards = None if step.verifier_result is None else step.verifier_result.rewards
            row: dict[str, Any] = {
                "step_name": step.step_name,
                "status": "INDETERMINATE" if rewards is None else "SCORED",
                "rewards": rewards,
                "evaluator_exit": None,
                "limit": self.judged.limit if step.exception_info is not None else None,
                "seconds": {
                    "agent": seconds(step.agent_execution),
                    "verifier": seconds(step.verifier),
                },
            }
            if step.exception_info is not None and row["limit"] is None:
                info = step.exception_info
                row["error"] = {"title": info.exception_type, "message": info.exception_message}
            rows.append(row)
        self.store.write_reward({"steps": rows})

    # -- what it came to -------------------------------------------------------------------------

    def _facts(self, found: list[Session]) -> None:
        self.store.fact("import", "imported", self.lock["imported"])
        if self.left:
            self.store.fact("import", "files_left_out", {"files": self.left[:50], "count": len(self.left)})
        for each in found:
            if each.problem is not None:
                self.store.fact("import", "trajectory_not_read", {"why": each.problem})

    def _outcome(self, found: list[Session]) -> Outcome:
        judged, trial = self.judged, self.trial
        return Outcome(
            status=judged.status,  # type: ignore[arg-type]
            score=judged.score,
            metrics=judged.rewards,
            checks=judged.checks,
            failed_checks=tuple(row["id"] for row in judged.checks if row["status"] == "fail"),
            error=judged.error,
            limit=judged.limit,
            agent_status=judged.agent_status,
            agent_invocations=len(found),
            usage=_usage(found),
            timing=self._timing(),
            kind=trial.kind,
            flags=("imported",),
            attempt_id=self.store.attempt_id,
            evidence_path=str(self.store.root),
            dataset_id=self.lock["dataset_id"],
            task_id=trial.task_id,
            digest=self.lock["digest"],
            agent=trial.result.agent_info.name,
            model=trial.model,
        )

    def _timing(self) -> dict[str, float]:
        """Milliseconds. Setting the agent up is part of the environment, as an install is here."""
        result = self.trial.result
        took: Mapping[str, list[Span | None]] = {
            "environment": [result.environment_setup, result.agent_setup],
            "run": [step.agent_execution for step in self.trial.steps],
            "evaluate": [step.verifier for step in self.trial.steps],
        }
        return {
            phase: round(1000 * sum(seconds(span) or 0.0 for span in spans), 1)
            for phase, spans in took.items()
            if any(seconds(span) is not None for span in spans)
        }


def _entry(row: Mapping[str, Any], target: Path) -> dict[str, Any]:
    """One row of a manifest; `target` is where its file is now."""
    below = PurePosixPath(str(row.get("destination") or "").removeprefix("artifacts/"))
    status = str(row.get("status") or "failed")
    place = target / below
    if status == "ok" and (".." in below.parts or below.is_absolute() or not place.exists()):
        status = "failed"
    elif status == "ok" and place.is_dir() and not any(place.iterdir()):
        status = "empty"
    return {
        **{name: row[name] for name in ("type", "exclude") if row.get(name)},
        "source": str(row.get("source")),
        "destination": str(below),
        "service": row.get("service") or MAIN,
        "status": status,
    }


def _usage(found: list[Session]) -> dict[str, Any]:
    from pytest_ageval.evidence import by_role, sum_usage

    rows = [each.usage for each in found]
    return {**sum_usage(rows), "by_role": by_role((ROLE, row) for row in rows)}


def seconds(span: Span | None) -> float | None:
    """How long a phase took; None when that is not known."""
    if span is None or span.started_at is None or span.finished_at is None:
        return None
    try:
        begun, ended = (datetime.fromisoformat(text) for text in (span.started_at, span.finished_at))
        return round(max((ended - begun).total_seconds(), 0.0), 3)
    except (TypeError, ValueError):
        return None
