"""The engine's own implementation of every slot: innermost of each chain, last choice of each exclusive one.

As a plugin this module holds plain hook functions; the asynchronous work behind them is in `innermost`,
which `slots.call` awaits directly when no other plugin takes part.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from pytest_ageval import portal
from pytest_ageval.box import ImageLayer
from pytest_ageval.errors import BoxError
from pytest_ageval.sessions.build import executor_options

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.box import Box, BoxSpec
    from pytest_ageval.executor import Executor, Session

#: Exclusive slots for which a profile may choose a plugin.
CHOSEN_BY_PROFILE = ("evaluation_runtime", "trajectory_seal")


async def innermost(attempt: Attempt, slot: str, value: Any) -> Any:
    """What the slot does when no hook implements it."""
    if attempt.plugins is not None and slot in CHOSEN_BY_PROFILE:
        found = await attempt.plugins.exclusive(slot, value)
        if found is not None:
            return found
    if slot == "environment_setup":
        return await run_setup_script(attempt)
    if slot == "image_layers":
        return await image_layers(attempt)
    if slot == "environment":
        return make_box(attempt, value)
    if slot == "executor":
        return make_executor(attempt, value)
    if slot == "evaluation_runtime":
        return await run_evaluator(attempt, value)
    if slot == "trajectory_seal":
        return attempt.evidence.write_trajectory(value)
    if slot == "permission":
        return None
    return value


#: How a plugin's Dockerfile says that it is stacked on whatever image a box has.
_FROM_BASE = re.compile(r"(?m)^\s*(ARG\s+BASE_IMAGE\b.*|FROM\s+\$\{?BASE_IMAGE\}?\s*)$")


async def image_layers(attempt: Attempt) -> list[ImageLayer]:
    """What the roles' executors need in the image, then what their plugins add."""
    found: list[ImageLayer] = []
    for binding in attempt.locked.bindings.values():
        executor = attempt.registry.executor(binding.executor)
        found += await executor.image_layers(executor_options(attempt, binding))
    for name, root, file in attempt.plugins.layers if attempt.plugins is not None else ():
        text = await asyncio.to_thread(file.read_text, "utf-8")
        found.append(ImageLayer(name, _FROM_BASE.sub("", text), context=root))
    return found


def make_box(attempt: Attempt, spec: BoxSpec) -> Box:
    """The box of the kind that the lock names."""
    return attempt.registry.box(spec.kind)(spec)


def make_executor(attempt: Attempt, session: Session) -> Executor:
    """The executor that the role binds."""
    return attempt.registry.executor(attempt.locked.bindings[session.role].executor)(session)


async def run_setup_script(attempt: Attempt) -> None:
    """``environment/setup.sh``, in the box; a non-zero exit fails the phase."""
    source = attempt.locked.directory("environment")
    if attempt.locked.harbor is not None or source is None or not (source / "setup.sh").is_file():
        return
    from pytest_ageval.box import ENVIRONMENT

    script = attempt.raw_box.visible_path(f"{ENVIRONMENT}/setup.sh")
    done = await attempt.raw_box.exec(["sh", script], cwd=ENVIRONMENT, timeout=attempt.clock.remaining())
    attempt.fact("environment_setup", {"exit_code": done.exit_code})
    if done.timed_out:
        raise BoxError("environment_timeout", "environment/setup.sh was still running")
    if not done.ok:
        raise BoxError(
            "environment_setup_failed",
            f"environment/setup.sh exited {done.exit_code}",
            detail=attempt.redactor.text((done.stderr or done.stdout)[-2000:]) or None,
        )


async def run_evaluator(attempt: Attempt, inputs: Mapping[str, Any]) -> Any:
    """The task's evaluator.py in a child process; of a Harbor task its test.sh in the box."""
    if attempt.locked.harbor is not None:
        from pytest_ageval.attempt.harbor.evaluate import evaluate

        return await evaluate(attempt)
    from pytest_ageval.attempt.scripts import run_evaluator_script

    return await run_evaluator_script(attempt, inputs)


hookimpl = pluggy.HookimplMarker("pytest")


def _outermost_last(function: Any) -> Any:
    return hookimpl(trylast=True)(function)


def _bridge(slot: str) -> Any:
    """A hook function that does the default work from the hook's thread."""

    def implementation(attempt: Any, value: Any) -> Any:
        return portal.run(innermost(attempt, slot, value))

    implementation.__name__ = f"pytest_ageval_{slot}"
    implementation.__doc__ = f"The engine's default of {slot}."
    return _outermost_last(implementation)


def _pass_on(slot: str) -> Any:
    """A hook function that hands the value on."""

    def implementation(attempt: Any, value: Any) -> Any:
        return value

    implementation.__name__ = f"pytest_ageval_{slot}"
    implementation.__doc__ = f"The engine's default of {slot}: the value as it is."
    return _outermost_last(implementation)


pytest_ageval_image_layers = _bridge("image_layers")
pytest_ageval_environment = _bridge("environment")
pytest_ageval_environment_setup = _bridge("environment_setup")
pytest_ageval_executor = _bridge("executor")
pytest_ageval_evaluation_runtime = _bridge("evaluation_runtime")
pytest_ageval_trajectory_seal = _bridge("trajectory_seal")

pytest_ageval_before_agent_open = _pass_on("before_agent_open")
pytest_ageval_after_agent_open = _pass_on("after_agent_open")
pytest_ageval_before_agent_invoke = _pass_on("before_agent_invoke")
pytest_ageval_after_agent_invoke = _pass_on("after_agent_invoke")
pytest_ageval_normalize_agent_result = _pass_on("normalize_agent_result")
pytest_ageval_before_agent_close = _pass_on("before_agent_close")
pytest_ageval_after_agent_close = _pass_on("after_agent_close")
pytest_ageval_after_evaluate = _pass_on("after_evaluate")
pytest_ageval_trajectory_collect = _pass_on("trajectory_collect")
pytest_ageval_trajectory_enrich = _pass_on("trajectory_enrich")
pytest_ageval_summary_enrich = _pass_on("summary_enrich")
pytest_ageval_cleanup_report = _pass_on("cleanup_report")
