"""How the pipeline reaches its extension points.

Hooks are synchronous functions that may block, so they run in a thread. When nobody but the engine
implements a slot its own default is awaited directly: no thread, no cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_ageval import portal
from pytest_ageval.attempt import defaults
from pytest_ageval.errors import AgevalError
from pytest_ageval.executor import AgentResult

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt

#: An exception in one of these is recorded as a warning, and the value goes on unchanged.
FAIL_OPEN = frozenset(
    {
        "before_run",
        "after_run",
        "trajectory_collect",
        "trajectory_enrich",
        "summary_enrich",
        "cleanup_report",
    }
)

#: Every hook of one of these answers, and all answers are one list: the engine's own first, then those of
#: the plugins as they were registered.
GATHERED = frozenset({"image_layers"})

#: What must come out of a slot, where run.py or the record would otherwise go on with nonsense.
RESULTS = {
    "before_agent_invoke": str,
    "after_agent_invoke": AgentResult,
    "normalize_agent_result": AgentResult,
}

#: Seconds for the hooks of a phase that has no limit of its own.
PATIENCE = {"record": 60.0, "cleanup": 5.0}


async def call(attempt: Attempt, slot: str, value: Any = None, *, role: str | None = None) -> Any:
    """Pass `value` through the slot and return what comes out.

    `role` is the one of the session that a slot belongs to: the plugins of its profile take part.
    """
    hook = getattr(attempt.hooks, f"pytest_ageval_{slot}")
    plain = all(implementation.plugin is defaults for implementation in hook.get_hookimpls())
    plugins = attempt.plugins
    if plain and plugins is None:
        return await defaults.innermost(attempt, slot, value)

    async def inner(value: Any) -> Any:
        if plain:
            return await defaults.innermost(attempt, slot, value)
        found = await portal.in_thread(hook, attempt=attempt, value=value)
        return gathered(slot, found) if slot in GATHERED else found

    try:
        calling = inner(value) if plugins is None else plugins.call(slot, value, role, inner)
        found = await asyncio.wait_for(calling, PATIENCE.get(attempt.phase))
    except Exception as error:
        if slot not in FAIL_OPEN:
            raise
        text = f"{type(error).__name__}: {error}"
        attempt.evidence.fact(attempt.phase, "slot_failed_open", {"slot": slot, "error": text})
        return value
    expected = RESULTS.get(slot)
    if expected is not None and not isinstance(found, expected):
        raise AgevalError(
            "plugin_contract",
            f"pytest_ageval_{slot} must return {expected.__name__}, not {type(found).__name__}; "
            "a wrapper returns what `yield` gave it",
        )
    return found


def gathered(slot: str, answers: Sequence[Any]) -> list[Any]:
    """The rows of all answers; pluggy calls whoever was registered last first."""
    for answer in answers:
        if not isinstance(answer, list | tuple):
            raise AgevalError(
                "plugin_contract", f"pytest_ageval_{slot} must return a list, not {type(answer).__name__}"
            )
    return [row for answer in reversed(answers) for row in answer]
