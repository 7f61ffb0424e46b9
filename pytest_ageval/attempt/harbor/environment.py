"""The environment phase of a Harbor task: directories, variables, health."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ageval.attempt.harbor.verifier import as_root, wait_healthy
from pytest_ageval.config.harbor.document import AGENT_LOGS, ARTIFACTS, SOLUTION, VERIFIER_LOGS
from pytest_ageval.config.harbor.templates import resolve
from pytest_ageval.errors import BoxError, ExecutorError
from pytest_ageval.executor import Solution

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.box import Box


def variables(attempt: Attempt) -> dict[str, str]:
    """``environment.env`` with the values of the host's variables. Raises BoxError ``unset_variable``."""
    task = attempt.locked.harbor
    assert task is not None
    given = attempt.locked.box.options.get("environment") or {}
    try:
        return {**resolve(task.env, attempt.secret), **given}
    except KeyError as error:
        raise BoxError(
            "unset_variable", f"environment.env: the variable {error.args[0]} is not set"
        ) from None


async def seed(attempt: Attempt, box: Box) -> None:
    """Make the directories that a Harbor task expects, and wait until the environment is healthy."""
    task = attempt.locked.harbor
    assert task is not None
    script = f"mkdir -p {AGENT_LOGS} {ARTIFACTS} {VERIFIER_LOGS} && chmod 777 {AGENT_LOGS} {ARTIFACTS}"
    made = await as_root(box, script)
    if not made.ok:
        raise BoxError("environment_start_failed", f"/logs cannot be made: {made.stderr.strip()[:300]}")
    if task.healthcheck is not None:
        await wait_healthy(attempt, box, task.healthcheck)


def solution(attempt: Attempt) -> Solution:
    """The reference solution of the current step. Raises ExecutorError ``unset_variable``."""
    task = attempt.locked.harbor
    assert task is not None
    step = task.steps[max(0, len(attempt.steps) - 1)]
    directory = attempt.locked.task_root / (step.directory or "") / "solution"
    if not directory.is_dir():
        directory = attempt.locked.task_root / "solution"
    try:
        env = resolve(task.solution_env, attempt.secret)
    except KeyError as error:
        raise ExecutorError(
            "unset_variable", f"solution.env: the variable {error.args[0]} is not set"
        ) from None
    return Solution(directory, SOLUTION, env={"DEBIAN_FRONTEND": "noninteractive", **env})
