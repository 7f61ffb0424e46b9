"""The evaluate phase of a Harbor task: the reward becomes the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_ageval.attempt.harbor.logs import JUDGE_FIGURES
from pytest_ageval.attempt.harbor.regrade import regrade
from pytest_ageval.attempt.harbor.reward import PRIMARY, primary
from pytest_ageval.attempt.harbor.verifier import verify
from pytest_ageval.errors import EvaluatorError

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.attempt.harbor.state import StepRecord
    from pytest_ageval.config.harbor.document import HarborTask

#: The reward at which an attempt has passed.
PASSED = 1.0


async def evaluate(attempt: Attempt) -> dict[str, Any]:
    """The raw verdict. Raises the error of the step that has no reward."""
    task = attempt.locked.harbor
    assert task is not None
    if attempt.source is not None:
        await regrade(attempt)
    elif not task.multi_step:
        await verify(attempt, task.steps[0], attempt.steps[0])
    attempt.evidence.write_reward({"steps": [record.as_dict() for record in attempt.steps]})
    for record in attempt.steps:
        if record.error is not None:
            raise record.error
    rewards = combine(task, attempt.steps)
    score = primary(rewards, task.reward_key)
    least = task.pass_threshold if task.pass_threshold is not None else PASSED
    return {
        "status": "PASS" if score >= least else "FAIL",
        "score": score,
        "metrics": {**judges(attempt.steps), **rewards, "evaluator_exit": attempt.steps[-1].exit_code},
        "checks": [
            {
                "id": record.name,
                "status": "pass" if primary(record.rewards or {}, task.reward_key) >= least else "fail",
                "message": ", ".join(f"{k} {v:g}" for k, v in (record.rewards or {}).items()),
            }
            for record in attempt.steps
        ]
        + [
            {"id": step.name, "status": "fail", "message": "not reached"}
            for step in task.steps[len(attempt.steps) :]
        ],
    }


def judges(records: list[StepRecord]) -> dict[str, float]:
    """What the judges of all steps used, as metrics; none where no verifier says so."""
    found: dict[str, float] = {}
    for record in records:
        for name in JUDGE_FIGURES:
            if name in record.judges:
                found[f"judge_{name}"] = found.get(f"judge_{name}", 0) + record.judges[name]
    return found


def combine(task: HarborTask, records: list[StepRecord]) -> dict[str, float]:
    """The rewards of the task: of its one step, of the last one, or the mean by name over all its steps.

    In the mean a step that was not reached, and a name that a step does not have, count 0.
    """
    done = [record.rewards for record in records if record.rewards is not None]
    if not done:
        raise EvaluatorError("reward_missing", "no step has a reward")
    if not task.multi_step:
        return dict(done[0])
    if task.strategy == "final":
        if len(records) < len(task.steps):
            return {PRIMARY: 0.0}
        return dict(done[-1])
    names = {name for rewards in done for name in rewards}
    return {name: sum(rewards.get(name, 0.0) for rewards in done) / len(task.steps) for name in sorted(names)}
