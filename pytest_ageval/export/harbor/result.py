"""What Harbor's config.json and result.json say of an attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.evidence.files import read_document
from pytest_ageval.evidence.layout import Layout
from pytest_ageval.evidence.usage import sum_usage
from pytest_ageval.export import atif
from pytest_ageval.export.harbor.names import job_name, uuid_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_ageval.export.source import Invocation, Recorded

Row = dict[str, Any]

#: Kinds of boxes that Harbor has under the same name.
_SHARED_KINDS = frozenset({"docker", "e2b", "daytona"})

#: Harbor's names of what our titles mean; every other title stands for itself.
_EXCEPTIONS = {
    "reward_missing": "RewardFileNotFoundError",
    "reward_ambiguous": "VerifierOutputParseError",
    "reward_conflict": "VerifierOutputParseError",
    "reward_invalid": "VerifierOutputParseError",
    "reward_key_missing": "VerifierOutputParseError",
    "reward_not_a_file": "VerifierOutputParseError",
    "reward_out_of_range": "VerifierOutputParseError",
    "reward_too_large": "VerifierOutputParseError",
    "verifier_timeout": "VerifierTimeoutError",
    "environment_unhealthy": "HealthcheckError",
    "environment_timeout": "EnvironmentStartTimeoutError",
    "environment_oom_killed": "SandboxLikelyOutOfMemoryError",
}

#: How an agent ended whose work was judged all the same.
_ENDINGS = {
    "timeout": "AgentTimeoutError",
    "crashed": "NonZeroAgentExitCodeError",
    "refused": "AgentSafetyRefusalError",
}

#: Keys of result.json that have no field there; they are in the agent's metadata.
_MORE = ("status", "score", "limit", "agent_status", "stop_reason", "digest", "flags", "agent_invocations")


@dataclass(frozen=True, slots=True)
class Told:
    """The two documents, and what the files beside them are made of."""

    config: Row
    result: Row
    steps: list[Row]
    multi_step: bool
    rewards: Mapping[str, float] | None
    exception: Row | None


def describe(attempt: Recorded, target: Path, task_root: Path | None) -> Told:
    """The trial that `target` will hold."""
    locked: Row = attempt.lock.get("locked") or {}
    task: Row = locked.get("harbor") or {}
    multi_step = bool(task.get("multi_step"))
    steps: list[Row] = (read_document(Layout(attempt.root).reward) or {}).get("steps") or []
    if task and not steps:  # it did not get to its verifier
        steps = [{"step_name": str(row["name"])} for row in task.get("steps") or [{"name": "main"}]][:1]
    rewards = _rewards(attempt, steps)
    exception = _exception(attempt, native=not task)
    config = _config(attempt, target, task, task_root)
    clock = _Clock(attempt, multi_step=multi_step)
    result: Row = {
        "schema_version": 1,
        "id": uuid_of(attempt.attempt_id),
        "task_name": task.get("package") or str(attempt.result.get("task_id")),
        "trial_name": target.name,
        "trial_uri": target.absolute().as_uri(),
        "task_id": _task_id(config["task"]),
        "source": attempt.result.get("dataset_id"),
        "task_checksum": str(locked.get("task_checksum") or attempt.lock.get("eval_digest") or ""),
        "config": config,
        "agent_info": _agent_info(attempt),
        "agent_result": None if multi_step else _agent_result(attempt, attempt.invocations),
        "verifier_result": None if rewards is None else {"rewards": dict(rewards)},
        "verifier_environment_mode": None if multi_step or not task else _mode(task),
        "exception_info": exception,
        **clock.phases(),
        "step_results": None,
    }
    if multi_step:
        result["step_results"] = _step_results(attempt, steps, clock, result)
    return Told(config, result, steps, multi_step, rewards, exception)


def _rewards(attempt: Recorded, steps: Sequence[Row]) -> dict[str, float] | None:
    """Those that the verdict was made of; None for an ERROR, which has none."""
    result = attempt.result
    if result.get("status") not in ("PASS", "FAIL"):
        return None
    names = {name for step in steps for name in step.get("rewards") or ()}
    found = {
        name: value
        for name in sorted(names)
        if isinstance(value := (result.get("metrics") or {}).get(name), int | float)
    }
    if found:
        return found
    score = result.get("score")
    if isinstance(score, int | float) and not isinstance(score, bool):
        return {"reward": float(score)}
    return {"reward": 1.0 if result["status"] == "PASS" else 0.0}


def _exception(attempt: Recorded, *, native: bool) -> Row | None:
    result, error = attempt.result, attempt.result.get("error")
    found = {"exception_traceback": "", "occurred_at": _Clock(attempt).finished}
    if isinstance(error, dict):
        title, message = str(error.get("title")), str(error.get("message") or "")
        if native and error.get("phase") == "evaluate":
            # The evaluator's own words may show what it compares with.
            message = f"the evaluator gave no verdict; see result.json of {attempt.attempt_id}"
        else:
            found["exception_traceback"] = str(error.get("detail") or "")
        return {**found, "exception_type": _EXCEPTIONS.get(title, title), "exception_message": message}
    ending = _ENDINGS.get(str(result.get("agent_status")))
    if ending is None:
        return None
    limit = f" (limit reached: {result['limit']})" if result.get("limit") else ""
    message = f"the agent's status is {result['agent_status']}{limit}; its work was judged"
    return {**found, "exception_type": ending, "exception_message": message}


def _mode(task: Mapping[str, Any]) -> str:
    verifier = (task.get("steps") or [{}])[0].get("verifier") or {}
    return "separate" if verifier.get("separate") else "shared"


# -- config.json -----------------------------------------------------------------------------------


def _config(attempt: Recorded, target: Path, task: Mapping[str, Any], task_root: Path | None) -> Row:
    kind = str(attempt.result.get("kind") or attempt.lock.get("environment") or "")
    environment: Row = (
        {"type": kind} if kind in _SHARED_KINDS else {"import_path": f"pytest_ageval.box:{kind}"}
    )
    binding, name = _binding(attempt)
    effort = ((binding.get("model") or {}).get("reasoning") or {}).get("effort")
    path = task_root if task_root is not None else Path(str(attempt.result.get("task_id")))
    return {
        "schema_version": 1,
        "task": {"path": str(path), "source": attempt.result.get("dataset_id")},
        "trial_name": target.name,
        "trials_dir": str(target.parent.absolute()),
        "agent": {
            "name": name,
            "model_name": attempt.result.get("model"),
            "kwargs": {"reasoning_effort": effort} if effort else {},
        },
        "environment": environment,
        "verifier": {},
        "job_id": uuid_of(job_name(attempt)),
    }


def _task_id(task: Mapping[str, Any]) -> Row:
    return {"path": task["path"]}


def _binding(attempt: Recorded) -> tuple[Mapping[str, Any], str]:
    """Who played, and under which name; of several roles the first, and all names."""
    rows = (attempt.lock.get("job_overlay") or {}).get("agent_profiles") or {}
    first: Mapping[str, Any] = next(iter(rows.values()), {})
    return first, str(attempt.result.get("agent") or first.get("agent") or "unknown")


def _agent_info(attempt: Recorded) -> Row:
    _, name = _binding(attempt)
    found: Row = {"name": name, "version": "unknown", "model_info": None}
    if attempt.invocations:
        first = attempt.invocations[0]
        found["version"] = atif.agent_version(attempt, [first])
    model = attempt.result.get("model")
    if model:
        provider, _, short = str(model).rpartition("/")
        found["model_info"] = {"name": short, "provider": provider or None}
    return found


# -- result.json -----------------------------------------------------------------------------------


def _agent_result(attempt: Recorded, invocations: Iterable[Invocation]) -> Row:
    usage = sum_usage(each.usage for each in invocations)
    result = attempt.result
    more = {name: result[name] for name in _MORE if result.get(name) not in (None, [], "")}
    return {
        "n_input_tokens": usage.get("prompt_tokens"),
        "n_cache_tokens": usage.get("cached_tokens"),
        "n_output_tokens": usage.get("completion_tokens"),
        "cost_usd": usage.get("cost_usd"),
        "metadata": {"pytest_ageval": {"attempt_id": attempt.attempt_id, **more}},
    }


def _step_results(attempt: Recorded, steps: Sequence[Row], clock: _Clock, result: Row) -> list[Row]:
    """As Harbor: the exception of a step is at the step, not at the trial as well."""
    found = []
    for number, step in enumerate(steps):
        sessions = attempt.sessions().items()
        mine = [each for name, rows in sessions if name.endswith(f"_{number}") for each in rows]
        failed = step.get("error") is not None or step.get("limit") is not None
        rewards = step.get("rewards")
        found.append(
            {
                "step_name": step["step_name"],
                "agent_result": _agent_result(attempt, mine),
                "verifier_result": None if rewards is None else {"rewards": rewards},
                "exception_info": result["exception_info"] if failed else None,
                **clock.step(mine, step.get("seconds") or {}),
            }
        )
    if any(step["exception_info"] for step in found):
        result["exception_info"] = None
    return found


class _Clock:
    """Begin and end of the phases. The evidence has how long each took: they are laid end to end."""

    def __init__(self, attempt: Recorded, *, multi_step: bool = False) -> None:
        started = attempt.timing.get("started_at")
        self._start = datetime.fromisoformat(started) if isinstance(started, str) else None
        self._timing = attempt.result.get("timing") or {}
        self._multi_step = multi_step

    @property
    def finished(self) -> str | None:
        return self._at(sum(self._timing.values()))

    def _at(self, milliseconds: float) -> str | None:
        if self._start is None:
            return None
        return _stamp(self._start + timedelta(milliseconds=milliseconds))

    def phases(self) -> Row:
        took = [float(self._timing.get(name, 0.0)) for name in ("environment", "run", "evaluate")]
        edges = [self._at(sum(took[:count])) for count in range(4)]
        spans: list[Row | None] = [
            {"started_at": begun, "finished_at": ended} if took[number] else None
            for number, (begun, ended) in enumerate(pairwise(edges))
        ]
        return {
            "started_at": edges[0],
            "finished_at": self.finished,
            "environment_setup": spans[0],
            "agent_setup": None,
            "agent_execution": None if self._multi_step else spans[1],
            "verifier": None if self._multi_step else spans[2],
        }

    def step(self, invocations: Sequence[Invocation], seconds: Mapping[str, float]) -> Row:
        """Of one step: from its first invoke on."""
        begun = next((each.started_at for each in invocations if each.started_at), None)
        if begun is None:
            return {"agent_execution": None, "verifier": None}
        first = datetime.fromisoformat(begun)
        middle = first + timedelta(seconds=float(seconds.get("agent") or 0.0))
        end = middle + timedelta(seconds=float(seconds.get("verifier") or 0.0))
        stamps = [_stamp(moment) for moment in (first, middle, end)]
        return {
            "agent_execution": {"started_at": stamps[0], "finished_at": stamps[1]},
            "verifier": {"started_at": stamps[1], "finished_at": stamps[2]},
        }


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
