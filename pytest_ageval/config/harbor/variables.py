"""The variables of the host that a Harbor task needs: all that are missing are told at once, at lock."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_ageval.config.env import resolve_secret
from pytest_ageval.config.harbor.templates import required

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_ageval.config.dataset import Dataset
    from pytest_ageval.config.harbor.document import HarborTask
    from pytest_ageval.config.tasks import TaskDocument

_EMBEDDED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def check_variables(task: TaskDocument, dataset: Dataset, *, solution: bool, mcp: bool) -> None:
    """Raise ConfigError ``unset_variable`` with the name and the place of each that is not set.

    `solution`: an agent of the run plays the reference solution, which has variables of its own. `mcp`: one
    takes the task's MCP servers.
    """
    assert task.harbor is not None
    missing: dict[str, list[str]] = {}
    rows = [*required_variables(task.harbor, solution=solution), *(_headers(task) if mcp else ())]
    for where, name in rows:
        if resolve_secret(name, dataset) is None:
            missing.setdefault(name, []).append(where)
    if missing:
        names = "; ".join(f"{name} ({', '.join(places)})" for name, places in missing.items())
        raise task.source.error(
            "unset_variable",
            f"the task needs variables of this machine that are not set: {names}",
            hint="export them, or write them into .env beside the tasks",
        )


def required_variables(task: HarborTask, *, solution: bool = True) -> Iterator[tuple[str, str]]:
    """Where the task names a variable of the host without a default, and the variable."""
    for key, name in required(task.env):
        yield f"environment.env.{key}", name
    for step in task.steps:
        where = f"steps.{step.name}.verifier.env" if task.multi_step else "verifier.env"
        for key, name in required(step.verifier.env):
            yield f"{where}.{key}", name
    if solution:
        for key, name in required(task.solution_env):
            yield f"solution.env.{key}", name
    for name, needed in task.compose_variables.items():
        if needed and name not in task.env:
            yield "the compose file", name


def _headers(task: TaskDocument) -> Iterator[tuple[str, str]]:
    for server in task.mcp_servers:
        for key, value in (server.headers or {}).items():
            for name in _EMBEDDED.findall(value):
                yield f"mcp_servers.{server.name}.headers.{key}", name
