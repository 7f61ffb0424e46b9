"""Phase 1, environment: the box is opened, seeded and set up; agents' runtimes are made ready."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_ageval.accounting import library
from pytest_ageval.attempt import again as attempt_again
from pytest_ageval.attempt import slots
from pytest_ageval.attempt.checkpoint import keep
from pytest_ageval.attempt.clock import within
from pytest_ageval.attempt.equip import equip
from pytest_ageval.attempt.guard import remember_directories
from pytest_ageval.box import ENVIRONMENT, WORKSPACE, Box, BoxSpec, ImageLayer, work_parent
from pytest_ageval.errors import AgevalError, BoxError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_ageval.attempt.context import Attempt

#: Parameters of a task that ask for resources; a kind enforces what it can.
RESOURCES = ("cpus", "memory_mb", "storage_mb", "gpus", "gpu_types", "pids")


async def environment(attempt: Attempt, box: Box | None) -> None:
    """Open, seed, prepare and set up the box, within the phase's budget."""
    if attempt.past is not None and attempt.past.over:
        await attempt_again.clear_away(attempt)
        return
    budget = attempt.clock.budget
    too_long = BoxError(
        "environment_timeout",
        f"the environment was not ready after {budget or 0:g} s (limits.environment_seconds)",
    )
    try:
        await within(attempt, bring_up(attempt, box), too_long)
    except BoxError as error:
        if error is too_long and (told := told_by(attempt)):
            raise BoxError(error.title, f"{error.message}; {'; '.join(told)}") from error
        raise


def told_by(attempt: Attempt) -> list[str]:
    """The warnings of the box, if there is one."""
    return [str(words) for words in getattr(attempt.raw_box, "warnings", ())] if attempt.raw_box.kind else []


async def bring_up(attempt: Attempt, box: Box | None) -> None:
    """Start the box and give the task's files, the agents and the hooks their turn."""
    await slots.call(attempt, "before_environment")
    if box is None:
        spec = await with_layers(attempt, box_spec(attempt))
        box = await slots.call(attempt, "environment", spec)
    if box is None:
        raise BoxError("environment_missing", "pytest_ageval_environment returned no box")
    attempt.raw_box = box
    if attempt.source is not None and attempt.locked.harbor is not None:
        from pytest_ageval.attempt.harbor.regrade import needs_agents_box

        if not needs_agents_box(attempt):
            return
    taken = attempt.past is not None and await attempt_again.take_over(attempt, box)
    if not taken:
        await start(box)
    attempt.fact("environment_started", {"kind": box.kind, **({"taken_over": True} if taken else {})})
    log_attempt(attempt, box.handle())
    for warning in getattr(box, "warnings", ()):
        attempt.fact("environment_warning", {"message": str(warning)})
    if not taken:
        await seed(attempt, box)
    await prepare_agents(attempt)
    await load_prices(attempt)
    await equip(attempt, box)
    if not taken:  # else what the hooks and setup.sh did is there
        await slots.call(attempt, "after_environment_ready")
        await slots.call(attempt, "environment_setup")
        await slots.call(attempt, "after_environment")
    restored = attempt.past is not None and await attempt_again.restore_files(attempt)
    remember_directories(attempt)
    if not restored:
        await keep(attempt)


async def with_layers(attempt: Attempt, spec: BoxSpec) -> BoxSpec:
    """`spec` with what the executors and plugins put into the image, where the kind makes one."""
    if not attempt.registry.box(spec.kind).makes_images:
        return spec
    found = await slots.call(attempt, "image_layers")
    layers: list[ImageLayer] = []
    for layer in found if found is not None else ():
        if not isinstance(layer, ImageLayer):
            raise AgevalError(
                "plugin_contract",
                f"pytest_ageval_image_layers must return a list of ImageLayer; found {layer!r}",
            )
        if layer not in layers:  # two roles with one agent
            layers.append(layer)
    return replace(spec, layers=tuple(layers))


async def load_prices(attempt: Attempt) -> None:
    """Read the price table now: it takes half a second, and none of it is the agent's time."""
    bindings = attempt.locked.bindings.values()
    calls_model = [b for b in bindings if attempt.registry.executor(b.executor).supported_model_fields]
    prices = attempt.meter.prices
    if any(b.model.id is None or not prices.own(b.model.id) for b in calls_model):
        await asyncio.to_thread(library.load)


async def start(box: Box) -> None:
    """Start the box, unless whoever made it has started it already."""
    await box.preflight()
    try:
        await box.start()
    except BoxError as error:
        if error.title != "environment_already_started":
            raise


def box_spec(attempt: Attempt) -> BoxSpec:
    """What the box is told: labels, a private host directory, and what it must hide."""
    from pytest_ageval.sessions.build import model_urls

    locked = attempt.locked
    urls, gateway = model_urls(attempt)
    return BoxSpec(
        kind=locked.box.kind,
        attempt_id=attempt.identity.attempt_id,
        task_id=locked.task_id,
        # Short, because socket paths below it are limited to about 100 bytes.
        work_dir=work_parent() / attempt.identity.run_id[:12] / attempt.identity.attempt_id[8:24],
        task_root=locked.task_root,
        dataset_root=locked.dataset_root,
        options=box_options(attempt),
        resources={name: locked.parameters[name] for name in RESOURCES if name in locked.parameters},
        labels=attempt.identity.labels,
        hidden=(locked.dataset_root, attempt.evidence.root.parent),
        model_urls=urls,
        gateway=gateway,
    )


def box_options(attempt: Attempt) -> Mapping[str, Any]:
    """As they are locked; the variables of a Harbor task with their values."""
    locked = attempt.locked
    if locked.harbor is None or not (locked.harbor.env or locked.harbor.compose_variables):
        return locked.box.options
    from pytest_ageval.attempt.harbor.environment import compose_variables, variables

    options = {**locked.box.options, "environment": variables(attempt)}
    if more := compose_variables(attempt):
        options["compose_environment"] = more
    return options


async def seed(attempt: Attempt, box: Box) -> None:
    """``data/`` becomes the workspace; ``environment/`` is there for setup.sh."""
    if attempt.locked.harbor is not None:
        from pytest_ageval.attempt.harbor.environment import seed as seed_harbor

        await seed_harbor(attempt, box)
        return
    data = attempt.locked.directory("data")
    if data is not None:
        await box.upload(data, WORKSPACE)
        attempt.fact("seed_uploaded", {"source": "data"})
    files = attempt.locked.directory("environment")
    if files is not None and (files / "setup.sh").is_file():
        await box.upload(files, ENVIRONMENT)


async def prepare_agents(attempt: Attempt) -> None:
    """Install what the roles' agents need, once for each, before the clock of the run starts."""
    from pytest_ageval.sessions.build import prepare

    for role in attempt.locked.bindings:
        await prepare(attempt, role)


def log_attempt(attempt: Attempt, handle: Mapping[str, Any] | None = None) -> None:
    """The header of the step log: by it an interrupted attempt can be found and continued.

    Written once more when the box runs, with the `handle` by which it is found (see `Box.probe`).
    """
    identity = attempt.identity
    attempt.evidence.activity.append(
        "attempt",
        "completed",
        f"att_{identity.attempt_id}",
        {
            "run_id": identity.run_id,
            "trial_id": identity.trial_id,
            "attempt_id": identity.attempt_id,
            "task_id": attempt.locked.task_id,
            "attempt_index": identity.index,
            "suite_run_id": identity.suite_run_id,
            "locked_config_digest": attempt.locked.digest,
            "environment_kind": attempt.locked.box.kind,
            "environment_nonce": identity.attempt_id[-12:],
            "environment_handle": None if handle is None else dict(handle),
            "resumed": attempt.resumed,
            "started_over": handle is not None and attempt.past is not None and attempt.past.started_over,
            "whole_box": attempt.locked.harbor is not None,
        },
    )
