"""How the pipeline reaches its extension points.

Hooks are synchronous functions that may block, so they run in a thread. When nobody but the engine
implements a slot its own default is awaited directly: no thread, no cost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pytest_ageval.attempt import defaults

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


async def call(attempt: Attempt, slot: str, value: Any = None) -> Any:
    """Pass `value` through the slot and return what comes out."""
    hook = getattr(attempt.hooks, f"pytest_ageval_{slot}")
    if all(implementation.plugin is defaults for implementation in hook.get_hookimpls()):
        return await defaults.innermost(attempt, slot, value)
    try:
        return await asyncio.to_thread(hook, attempt=attempt, value=value)
    except Exception as error:
        if slot not in FAIL_OPEN:
            raise
        attempt.evidence.fact(
            attempt.phase,
            "slot_failed_open",
            {"slot": slot, "error": f"{type(error).__name__}: {error}"},
        )
        return value
