"""The environment phase of a Harbor task: directories, variables, health."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ageval.attempt.harbor.verifier import as_root, wait_healthy
from pytest_ageval.box import ENVIRONMENT, WORKSPACE
from pytest_ageval.config.harbor import compose
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
    await _bring_files(attempt, box)
    if task.healthcheck is not None:
        await wait_healthy(attempt, box, task.healthcheck)


async def _bring_files(attempt: Attempt, box: Box) -> None:
    """With a prebuilt image and nothing to build, the files of environment/ go over the working directory."""
    task = attempt.locked.harbor
    assert task is not None
    source = attempt.locked.task_root / "environment"
    if task.image is None or not source.is_dir() or not any(source.iterdir()):
        return
    if (source / task.dockerfile).is_file() or compose.find(source) is not None:
        return
    await box.upload(source, ENVIRONMENT)
    script = f"cd -P {WORKSPACE} && cp -a {ENVIRONMENT}/. . && rm -rf {ENVIRONMENT}"
    done = await as_root(box, script)
    if not done.ok:
        raise BoxError("environment_setup_failed", f"environment/: {done.stderr.strip()[:300]}")
    attempt.fact("seed_uploaded", {"source": "environment"})


def compose_variables(attempt: Attempt) -> dict[str, str]:
    """The host's variables that the compose file names, as far as they are set."""
    task = attempt.locked.harbor
    assert task is not None
    found = {name: attempt.secret(name) for name in task.compose_variables if name not in task.env}
    return {name: value for name, value in found.items() if value}


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
