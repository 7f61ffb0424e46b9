"""ATIF documents as rows of trajectory.jsonl. What they hold beyond that is in the copy of the file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_ageval.executor import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Row = dict[str, Any]

_SOURCES = {"user": "user", "system": "system", "agent": "assistant"}


class NotAtifError(ValueError):
    """The document is no trajectory; says why."""


def rows(document: Mapping[str, Any], common: Row) -> list[Row]:
    """The rows of one trajectory, without a terminal row. `common` goes into each.

    Raises NotAtifError.
    """
    version, steps = document.get("schema_version"), document.get("steps")
    if not isinstance(version, str) or not version.startswith("ATIF-v1."):
        raise NotAtifError(f"schema_version is {version!r}, not ATIF-v1")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise NotAtifError("steps is not a list of objects")
    told = document.get("agent")
    name = str(told.get("name") or "agent") if isinstance(told, dict) else "agent"
    return [{**row, **common} for step in steps for row in _step(step, name)]


def _step(step: Mapping[str, Any], agent: str) -> Iterator[Row]:
    role = _SOURCES.get(str(step.get("source")))
    if role is None:
        yield {"type": "unknown", "raw": dict(step), "source": agent}
        return
    known: Row = {"source": agent if role == "assistant" else "harbor"}
    if isinstance(step.get("timestamp"), str):
        known["started_at"] = step["timestamp"]
    if step.get("is_copied_context"):
        known["copied"] = True
    thought = step.get("reasoning_content")
    if isinstance(thought, str) and thought:
        yield {"type": "turn", "role": role, "part": "thought", "content": thought, **known}
    text = content(step.get("message"))
    if text or role != "assistant":
        yield {"type": "turn", "role": role, "content": text, **known}
    yield from _calls(step, known)


def _calls(step: Mapping[str, Any], known: Row) -> Iterator[Row]:
    """Each call with its results; then the results that belong to none."""
    observation = step.get("observation")
    found = observation.get("results") if isinstance(observation, dict) else None
    results = [row for row in found or () if isinstance(row, dict)]
    for call in step.get("tool_calls") or ():
        if not isinstance(call, dict):
            continue
        call_id = str(call.get("tool_call_id"))
        arguments = call.get("arguments")
        yield {
            "type": "tool_call",
            "tool_call_id": call_id,
            "function_name": str(call.get("function_name") or "tool"),
            "args": arguments if isinstance(arguments, dict) else {"value": arguments},
            **known,
        }
        for row in results:
            if row.get("source_call_id") == call_id:
                yield _observation(row, call_id, known)
    ids = {str(call.get("tool_call_id")) for call in step.get("tool_calls") or () if isinstance(call, dict)}
    for row in results:
        if row.get("source_call_id") not in ids:
            yield _observation(row, f"step_{step.get('step_id')}", known)


def _observation(row: Mapping[str, Any], call_id: str, known: Row) -> Row:
    return {"type": "observation", "tool_call_id": call_id, "content": content(row.get("content")), **known}


def content(found: Any) -> str:
    """A message as text; pictures and sounds as the paths of their files."""
    if isinstance(found, str):
        return found
    if not isinstance(found, list):
        return "" if found is None else json.dumps(found, ensure_ascii=False)
    parts = []
    for part in found:
        if isinstance(part, dict) and part.get("type") == "text":
            parts.append(str(part.get("text") or ""))
        else:
            parts.append(f"[{json.dumps(part, ensure_ascii=False, sort_keys=True)}]")
    return "\n".join(parts)


def usage(document: Mapping[str, Any]) -> Usage | None:
    """The totals of a trajectory; None when it has no figures."""
    totals = document.get("final_metrics")
    if not isinstance(totals, dict):
        return None
    known: dict[str, Any] = {
        name: totals[f"total_{name}"]
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
        if isinstance(totals.get(f"total_{name}"), int | float)
    }
    return Usage(**known, source="atif") if known else None
