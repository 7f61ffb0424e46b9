"""What the job changes in a task: parameters, limits, the budget of an attempt."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pytest_ageval.accounting.budget import Budget
from pytest_ageval.config.check import Source
from pytest_ageval.config.locked import Limits, Resolution
from pytest_ageval.config.tasks import TaskDocument, check_active_profile
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_ageval.config.job import JobOptions
    from pytest_ageval.config.overrides import Override


def effective_parameters(
    task: TaskDocument, job: JobOptions, overrides: Sequence[Override]
) -> tuple[dict[str, Any], list[Resolution]]:
    """The task's parameters with what the job sets in them, and where each set value comes from.

    Raises ConfigError, ``invalid_override`` or ``invalid_schema``.
    """
    parameters = copy.deepcopy(dict(task.parameters))
    rows: list[Resolution] = []
    for override in overrides:
        if override.tokens[0] == "parameters":
            created = _set_parameter(parameters, override)
            note = "new" if created else ""
            rows.append(Resolution(override.pointer, job.source_of(override), override.value, note))
    source = Source(None, overrides[-1].option) if rows else task.source
    check_turn_limit(parameters, source)
    check_active_profile(parameters, task.roles, source)
    return parameters, rows


def check_turn_limit(parameters: Mapping[str, Any], source: Source) -> None:
    """``agent_timeout_seconds``, the ceiling of one invoke, is a number of seconds. Raises ConfigError."""
    value = parameters.get("agent_timeout_seconds")
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < float("inf"):
        raise source.error(
            "invalid_schema",
            f"must be a number of seconds above 0, found {value!r}",
            "/parameters/agent_timeout_seconds",
        )


def _set_parameter(parameters: dict[str, Any], override: Override) -> bool:
    target = parameters
    for token in override.tokens[1:-1]:
        inner = target.setdefault(token, {})
        if not isinstance(inner, dict):
            raise ConfigError(
                "invalid_override",
                f"{token!r} is not a mapping, so nothing can be set in it",
                file=override.option,
                pointer=override.pointer,
            )
        target = inner
    created = override.tokens[-1] not in target
    target[override.tokens[-1]] = copy.deepcopy(override.value)
    return created


def effective_limits(
    task: TaskDocument, job: JobOptions, overrides: Sequence[Override]
) -> tuple[Limits, list[Resolution]]:
    """The task's limits, lowered by the job, and where each comes from.

    Raises ConfigError, ``invalid_override``, for one that would be raised.
    """
    limits = task.limits
    rows = {
        name: Resolution(f"/limits/{name}", "task.yaml" if name in task.limits_set else "default", value)
        for name, value in asdict(limits).items()
    }
    for override in overrides:
        if override.tokens[0] == "limits":
            name = override.tokens[1]
            before = getattr(task.limits, name)
            _check_lower(name, before, override)
            limits = replace(limits, **{name: override.value})
            rows[name] = Resolution(
                override.pointer, job.source_of(override), override.value, f"lowered from {before}"
            )
    return limits, list(rows.values())


def budget_of(job: JobOptions) -> tuple[Budget, list[Resolution]]:
    """What one attempt may spend. It can change the outcome, so it is part of the digest."""
    budget = Budget(job.max_cost_per_attempt, job.max_tokens_per_attempt)
    fields = {"max_cost_usd": "max_cost_per_attempt", "max_tokens": "max_tokens_per_attempt"}
    rows = [
        Resolution(f"/budget/{name}", job.source(fields[name]), value)
        for name, value in budget.as_dict().items()
    ]
    return budget, rows


def _check_lower(name: str, before: int, override: Override) -> None:
    value = override.value
    unlimited = name.endswith("_seconds")  # there, 0 means no limit
    ok = isinstance(value, int) and not isinstance(value, bool)
    ok = ok and value >= (1 if name == "agent_concurrency" else 0)
    if ok and unlimited:
        ok = before == 0 or 0 < value <= before
    elif ok:
        ok = value <= before
    if not ok:
        shown = "no limit" if unlimited and before == 0 else str(before)
        raise ConfigError(
            "invalid_override",
            f"a limit can only be lowered: the task has {shown}, found {value!r}",
            file=override.option,
            pointer=override.pointer,
        )
