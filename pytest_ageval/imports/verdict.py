"""From a trial of Harbor to a verdict, by the rules that hold for Harbor tasks here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_ageval.attempt.harbor.reward import Found, primary, read_rewards
from pytest_ageval.errors import AgevalError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_ageval.imports.trials import Failure, StepResult, Trial

#: The reward at which an attempt has passed, unless another one is named.
PASSED = 1.0

#: Ways in which an agent ends and its work is judged all the same: its status, and the limit reached.
_ENDINGS: Mapping[str, tuple[str, str | None]] = {
    "AgentTimeoutError": ("timeout", "wall_time_seconds"),
    "NonZeroAgentExitCodeError": ("crashed", None),
    "AgentSafetyRefusalError": ("refused", None),
    "ContentPolicyViolationError": ("refused", None),
    "ContextWindowExceededError": ("limit", "context_window"),
    "ContextLengthExceededError": ("limit", "context_window"),
    "OutputTokenExceededError": ("limit", "output_tokens"),
    "OutputLengthExceededError": ("limit", "output_tokens"),
}

_OF_ENVIRONMENT = ("Environment", "Sandbox", "Healthcheck", "AgentSetup", "Memory", "SSH", "GKE", "Runtime")
_OF_VERIFIER = ("Verifier", "Reward", "AddTestsDir", "DownloadVerifierDir")

#: Characters of a traceback that are kept in result.json; the whole of it is in ``imported/``.
_DETAIL = 8000


@dataclass(slots=True)
class Judged:
    """What a trial came to. `rewards` are those of the whole task; of an ERROR there are none."""

    status: str = "ERROR"
    score: float | None = None
    rewards: dict[str, float] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    limit: str | None = None
    agent_status: str = "completed"
    checks: list[dict[str, Any]] = field(default_factory=list)


def judge(trial: Trial, *, reward_key: str | None, threshold: float | None) -> Judged:
    """PASS or FAIL by the reward; ERROR for every exception but those after which work is judged.

    A reward that is missing, not finite or not from 0 to 1 is ERROR, as in an attempt of ours.
    """
    found = Judged()
    failures = [info for info in (trial.result.exception_info, *_of_steps(trial)) if info is not None]
    for failure in failures:
        ending = _ENDINGS.get(failure.exception_type)
        if ending is None or failure.policy.get("has_valid_reward") is False:
            found.error = found.error or _error(failure)
        else:
            found.agent_status, found.limit = ending
    if found.error is not None:
        return found
    try:
        whole = trial.result.verifier_result
        rewards = checked(whole.rewards if whole is not None else None)
        score = primary(rewards, reward_key)
    except AgevalError as error:
        found.error = error.as_dict() if not failures else _error(failures[0])
        return found
    least = PASSED if threshold is None else threshold
    found.rewards, found.score = rewards, score
    found.status = "PASS" if score >= least else "FAIL"
    found.checks = [_check(step, reward_key, least) for step in trial.steps]
    return found


def checked(rewards: Mapping[str, Any] | None) -> dict[str, float]:
    """Rewards of a result.json, by the rules for a reward.json. Raises AgevalError."""
    if rewards is None:
        return read_rewards(Found(), Found())
    content = json.dumps(rewards).encode()
    return read_rewards(Found(), Found("file", content, len(content)))


def _of_steps(trial: Trial) -> list[Failure | None]:
    return [step.exception_info for step in trial.result.step_results or ()]


def _error(failure: Failure) -> dict[str, Any]:
    """The exception's type is the title: Harbor's names mean more to its users than one of ours would."""
    kind = failure.exception_type
    phase = "run"
    if kind.startswith(_OF_ENVIRONMENT):
        phase = "environment"
    elif kind.startswith(_OF_VERIFIER):
        phase = "evaluate"
    found = {"phase": phase, "title": kind, "message": failure.exception_message}
    detail = failure.exception_traceback[-_DETAIL:]
    return {**found, "detail": detail} if detail else found


def _check(step: StepResult, reward_key: str | None, least: float) -> dict[str, Any]:
    try:
        rewards = checked(step.verifier_result.rewards if step.verifier_result is not None else None)
        passed = primary(rewards, reward_key) >= least
    except AgevalError as error:
        return {"id": step.step_name, "status": "fail", "message": str(error)}
    words = ", ".join(f"{name} {value:g}" for name, value in rewards.items())
    return {"id": step.step_name, "status": "pass" if passed else "fail", "message": words}
