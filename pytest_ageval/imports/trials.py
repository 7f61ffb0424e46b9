"""Finds and reads trial directories of Harbor. Fields that are not needed are passed over."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pytest_ageval.config.where import display
from pytest_ageval.errors import ConfigError

_T = TypeVar("_T")

#: Bytes of one JSON document that are read.
LIMIT = 64 * 1024 * 1024


class Span(msgspec.Struct):
    """Begin and end of a phase, as ISO 8601."""

    started_at: str | None = None
    finished_at: str | None = None


class Failure(msgspec.Struct):
    """What went wrong. `policy` is Harbor's own opinion of it, in files that have it."""

    exception_type: str
    exception_message: str = ""
    exception_traceback: str = ""
    policy: dict[str, Any] = {}


class ModelInfo(msgspec.Struct):
    """The model that the agent says it used."""

    name: str
    provider: str | None = None


class AgentInfo(msgspec.Struct):
    """The agent."""

    name: str
    version: str = "unknown"
    model_info: ModelInfo | None = None


class Spent(msgspec.Struct):
    """Tokens (cached ones are part of the input) and US dollars."""

    n_input_tokens: int | None = None
    n_cache_tokens: int | None = None
    n_output_tokens: int | None = None
    cost_usd: float | None = None


class Verified(msgspec.Struct):
    """What the verifier left."""

    rewards: dict[str, Any] | None = None


class StepResult(msgspec.Struct):
    """One step of a task that has several."""

    step_name: str
    agent_result: Spent | None = None
    verifier_result: Verified | None = None
    exception_info: Failure | None = None
    agent_execution: Span | None = None
    verifier: Span | None = None


class TrialResult(msgspec.Struct):
    """result.json of a trial."""

    task_name: str
    trial_name: str
    agent_info: AgentInfo
    id: str | None = None
    source: str | None = None
    task_checksum: str = ""
    config: dict[str, Any] = {}
    agent_result: Spent | None = None
    verifier_result: Verified | None = None
    verifier_environment_mode: str | None = None
    exception_info: Failure | None = None
    started_at: str | None = None
    finished_at: str | None = None
    environment_setup: Span | None = None
    agent_setup: Span | None = None
    agent_execution: Span | None = None
    verifier: Span | None = None
    step_results: list[StepResult] | None = None


class JobResult(msgspec.Struct):
    """What is needed of result.json of a job."""

    id: str


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial that ended. `digest` names the bytes of its result.json."""

    path: Path
    result: TrialResult

    @property
    def trial_id(self) -> str:
        """Its UUID as 32 hexadecimal digits; without one, made of its name and its job's."""
        return _hex(self.result.id, f"{self.path.parent.name}/{self.path.name}")

    @property
    def steps(self) -> list[StepResult]:
        """The steps; of a task that has none, the trial itself under the name ``main``."""
        whole = self.result
        if whole.step_results:
            return whole.step_results
        return [
            StepResult(
                "main",
                whole.agent_result,
                whole.verifier_result,
                whole.exception_info,
                whole.agent_execution,
                whole.verifier,
            )
        ]

    def directory(self, step: StepResult) -> Path:
        """Where ``agent/``, ``verifier/`` and ``artifacts/`` of a step are."""
        return self.path / "steps" / step.step_name if self.result.step_results else self.path

    def setting(self, *keys: str) -> Any:
        """A value of its configuration; None when it is not there."""
        found: Any = self.result.config
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    @property
    def task_id(self) -> str:
        """The name of the task's directory; of a task without one (of a registry), its own name."""
        path = self.setting("task", "path")
        name = str(path) if isinstance(path, str) and path else self.result.task_name
        return name.rstrip("/").rpartition("/")[2] or "task"

    @property
    def model(self) -> str | None:
        """The model that was asked for, else the one that was reported."""
        given = self.setting("agent", "model_name")
        info = self.result.agent_info.model_info
        if isinstance(given, str) and given:
            return given
        return None if info is None else "/".join(filter(None, (info.provider, info.name)))

    @property
    def effort(self) -> str | None:
        """The reasoning effort that was asked for."""
        found = self.setting("agent", "kwargs", "reasoning_effort")
        return found if isinstance(found, str) and found else None

    @property
    def kind(self) -> str:
        """The kind of environment; of one of ours, that an export wrote, its kind of box."""
        given = self.setting("environment", "type")
        path = self.setting("environment", "import_path")
        if isinstance(path, str) and path:
            return path.removeprefix("pytest_ageval.box:")
        return given if isinstance(given, str) and given else "docker"


@dataclass(slots=True)
class Job:
    """Trials that belong together: the directory that they are in."""

    path: Path
    job_id: str
    trials: list[Trial] = field(default_factory=list)

    @property
    def run_id(self) -> str:
        """The run that its attempts belong to."""
        return f"run_{self.job_id}"


@dataclass(slots=True)
class Found:
    """What is at a path. `unfinished` have no result.json, `broken` one that cannot be read."""

    jobs: list[Job] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    broken: list[ConfigError] = field(default_factory=list)


def find(path: Path) -> Found:
    """The trials at `path`: a trial, a job, or a directory of jobs. Raises ConfigError ``no_trial``."""
    path = path.parent if path.name == "result.json" else path
    if not path.is_dir():
        raise ConfigError("no_trial", f"{display(path)} is not a directory")
    found = Found()
    if _is_trial(path):
        _add(found, path.absolute().parent, [path.absolute()])
    else:
        for place in (path, *sorted(child for child in path.iterdir() if child.is_dir())):
            trials = [child for child in sorted(place.iterdir()) if child.is_dir() and _is_trial(child)]
            if trials:
                _add(found, place.absolute(), [trial.absolute() for trial in trials])
    if not (found.jobs or found.unfinished or found.broken):
        raise ConfigError(
            "no_trial",
            f"there is no trial of Harbor at {display(path)}",
            hint="name a trial (with config.json and result.json), a job, or a directory of jobs",
        )
    return found


def _is_trial(path: Path) -> bool:
    """A trial's config.json names it; a job's names the job."""
    if path.name.startswith("."):
        return False
    for name in ("config.json", "result.json"):
        file = path / name
        if file.is_file():
            try:
                document = _load(file)
            except ConfigError:
                # Torn or foreign: that it lies beside agent/ or verifier/ makes it one.
                return any((path / each).is_dir() for each in ("agent", "verifier", "steps"))
            return "trial_name" in document and "job_name" not in document
    return False


def _add(found: Found, place: Path, trials: list[Path]) -> None:
    read: list[Trial] = []
    for path in trials:
        if not (path / "result.json").is_file():
            found.unfinished.append(path)
            continue
        try:
            read.append(Trial(path, _checked(path)))
        except ConfigError as error:
            found.broken.append(error)
    if read:
        job = _job(place, read)
        job.trials = sorted(read, key=lambda trial: (trial.result.started_at or "", trial.path.name))
        found.jobs.append(job)


def _checked(path: Path) -> TrialResult:
    file = path / "result.json"
    result = _convert(_load(file), TrialResult, file)
    for step in result.step_results or ():
        if step.step_name in ("", ".", "..") or "/" in step.step_name or "\0" in step.step_name:
            raise ConfigError(
                "invalid_trial",
                f"the name of a step is not one of a directory: {step.step_name!r}",
                file=display(file),
                pointer="/step_results",
            )
    return result


def _job(place: Path, trials: list[Trial]) -> Job:
    file = place / "result.json"
    if file.is_file():
        try:
            result = _convert(_load(file), JobResult, file)
        except ConfigError:
            pass  # of a job that was killed while it wrote: its trials name it
        else:
            return Job(place, _hex(result.id, place.name))
    named = next((trial.setting("job_id") for trial in trials), None)
    return Job(place, _hex(named, str(place)))


def _hex(given: Any, otherwise: str) -> str:
    try:
        return uuid.UUID(str(given)).hex
    except ValueError:
        return uuid.uuid5(uuid.NAMESPACE_URL, otherwise).hex


def _load(file: Path) -> Mapping[str, Any]:
    """A JSON object. Raises ConfigError ``invalid_trial``."""
    try:
        if file.stat().st_size > LIMIT:
            raise ConfigError("invalid_trial", f"more than {LIMIT} bytes", file=display(file))
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            "invalid_trial",
            f"this is no JSON document: {error}",
            file=display(file),
            hint="a trial that was killed while it wrote this has no result: move it away, and import again",
        ) from None
    if not isinstance(found, dict):
        raise ConfigError("invalid_trial", "this is no JSON object", file=display(file))
    return found


def _convert(document: Mapping[str, Any], kind: type[_T], file: Path) -> _T:
    try:
        return msgspec.convert(document, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError("invalid_trial", str(error), file=display(file)) from None
