"""Phase 4, record: trajectory and summary are sealed. Nothing after it can say more about the work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_ageval.attempt import slots
from pytest_ageval.evidence import phase_timing, tail_text

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.evidence import Surface


async def record(attempt: Attempt) -> None:
    """Write trajectory.jsonl, observation.jsonl and summary.json."""
    evidence = attempt.evidence
    if attempt.past is not None and attempt.past.recorded:
        # The events may be gone already, and nothing has been added to them.
        attempt.tails["trajectory"] = tail_text(evidence.layout.trajectory)
        attempt.summary_extra = await slots.call(attempt, "summary_enrich", {})
        summarize(attempt)
        return
    turns = await fold(attempt, "run")
    await slots.call(attempt, "trajectory_seal", turns)
    attempt.fact("trajectory_recorded", {"file": "trajectory.jsonl", "turns": len(turns)})
    judged = await fold(attempt, "evaluate")
    if judged:
        evidence.write_observation(judged)
        attempt.fact("evaluation_observation_recorded", {"turns": len(judged)})
    attempt.tails["trajectory"] = tail_text([row for turn in turns for row in turn])
    await asyncio.to_thread(evidence.scrub)
    if not attempt.interrupted:  # who goes on with it writes the trajectory anew
        evidence.drop_raw()
    attempt.summary_extra = await slots.call(attempt, "summary_enrich", {})
    summarize(attempt)


def summarize(attempt: Attempt) -> None:
    """Write summary.json; once more after the cleanup, which has facts of its own."""
    attempt.evidence.write_summary(
        attempt.outcome.as_dict(),
        phase_timing(list(attempt.timing.items()), started_at=attempt.started_at),
        extra=attempt.summary_extra or None,
    )


async def fold(attempt: Attempt, surface: Surface) -> list[list[Mapping[str, Any]]]:
    """Each invocation's rows, after the hooks have seen its payload."""
    turns: list[list[Mapping[str, Any]]] = []
    for invocation in attempt.evidence.invocations:
        if invocation.info.surface != surface:
            continue
        payload = invocation.payload()
        for slot in ("trajectory_collect", "trajectory_enrich"):
            changed = await slots.call(attempt, slot, payload)
            # A hook that lost a key has misunderstood; the original is better than a hole.
            if isinstance(changed, dict) and payload.keys() <= changed.keys():
                payload = changed
        turns.append(list(invocation.rows(payload)))
    return turns
