"""ATIF, the Agent Trajectory Interchange Format of Harbor: one document for each session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_ageval._version import __version__
from pytest_ageval.evidence.usage import sum_usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_ageval.export.source import Invocation, Recorded

Step = dict[str, Any]

VERSION = "ATIF-v1.8"

#: Figures that ATIF has no field for; they are in ``extra``.
_MORE = (
    *("cache_write_tokens", "reasoning_tokens", "unavailable", "cost_source", "cost_unavailable"),
    *("price_table", "price_tables", "cost_estimated_usd", "source"),
)


def documents(attempt: Recorded) -> Iterator[tuple[str, dict[str, Any]]]:
    """Session id and document, for each session of the run phase in which something was asked."""
    for session_id, invocations in attempt.sessions().items():
        yield session_id, document(attempt, session_id, invocations)


def document(attempt: Recorded, session_id: str, invocations: Sequence[Invocation]) -> dict[str, Any]:
    """One session."""
    role = invocations[0].role
    steps = [step for invocation in invocations for step in _steps(attempt, invocation)]
    for number, step in enumerate(steps, start=1):
        step["step_id"] = number
    found: dict[str, Any] = {
        "schema_version": VERSION,
        "session_id": session_id,
        "trajectory_id": f"{attempt.attempt_id}:{session_id}",
        "agent": _agent(attempt, role, invocations),
        "steps": steps,
        "final_metrics": _totals(invocations, len(steps)),
        "extra": _without_none(
            {
                "exporter": f"pytest-ageval {__version__}",
                "attempt_id": attempt.attempt_id,
                "dataset_id": attempt.lock.get("dataset_id"),
                "task_id": attempt.lock.get("task_id"),
                "role": role,
                "digest": attempt.lock.get("digest"),
                "status": attempt.result.get("status"),
                "score": attempt.result.get("score"),
                "limit": attempt.result.get("limit"),
            }
        ),
    }
    return found


def agent_version(attempt: Recorded, invocations: Sequence[Invocation]) -> str:
    """What the agent said of itself; a model loop of ours has the version of the package it is part of."""
    infos = [info for each in invocations if isinstance(info := each.metadata.get("agent"), dict)]
    told: dict[str, Any] = infos[0] if infos else {}
    locked = attempt.lock.get("locked") or {}
    return str(told.get("version") or locked.get("pytest_ageval") or "unknown")


def _agent(attempt: Recorded, role: str, invocations: Sequence[Invocation]) -> dict[str, Any]:
    binding = attempt.binding(role)
    model = next((each.model for each in invocations if each.model), None)
    return _without_none(
        {
            "name": attempt.agent_name(role),
            "version": agent_version(attempt, invocations),
            "model_name": model,
            "extra": {"executor": binding.get("executor")} if binding.get("executor") else None,
        }
    )


def _steps(attempt: Recorded, invocation: Invocation) -> list[Step]:
    folded = _Fold(invocation, (attempt.binding(invocation.role).get("model") or {}).get("reasoning") or {})
    for row in invocation.rows:
        folded.row(row)
    return folded.end()


class _Fold:
    """Rows of one invoke to steps: what the agent said, the calls it made then, and their results."""

    def __init__(self, invocation: Invocation, reasoning: Mapping[str, Any]) -> None:
        self.steps: list[Step] = []
        self._invocation = invocation
        self._effort = reasoning.get("effort")
        self._step: Step | None = None
        self._calls: dict[str, Step] = {}

    def row(self, row: Mapping[str, Any]) -> None:
        kind = row.get("type")
        if kind == "turn" and row.get("role") in ("user", "system"):
            self.steps.append(self._user(row))
        elif kind == "turn":
            self._said(row)
        elif kind == "tool_call":
            self._called(row)
        elif kind == "observation":
            self._observed(row)
        else:
            kept = {key: value for key, value in row.items() if key not in ("session_id", "turn_index")}
            self._agent(row).setdefault("extra", {}).setdefault("events", []).append(kept)

    def _user(self, row: Mapping[str, Any]) -> Step:
        return _without_none(
            {
                "source": str(row["role"]),
                "timestamp": self._invocation.started_at,
                "message": str(row.get("content") or ""),
            }
        )

    def _agent(self, row: Mapping[str, Any], *, new: bool = False) -> Step:
        if self._step is None or new:
            self._step = _without_none(
                {
                    "source": "agent",
                    "timestamp": row.get("started_at") or self._invocation.finished_at,
                    "model_name": self._invocation.model,
                    "reasoning_effort": self._effort,
                    "message": "",
                }
            )
            self.steps.append(self._step)
        return self._step

    def _said(self, row: Mapping[str, Any]) -> None:
        text, thought = str(row.get("content") or ""), row.get("part") == "thought"
        last = self._step or {}
        # After its calls an agent begins anew; so it does when it thinks after it has spoken.
        step = self._agent(row, new="tool_calls" in last or (thought and bool(last.get("message"))))
        name = "reasoning_content" if thought else "message"
        step[name] = f"{step[name]}\n{text}" if step.get(name) else text

    def _called(self, row: Mapping[str, Any]) -> None:
        step = self._agent(row)
        call_id = str(row.get("tool_call_id"))
        more = {name: row[name] for name in ("title", "kind", "status", "elapsed_ms", "late") if name in row}
        call: dict[str, Any] = {
            "tool_call_id": call_id,
            "function_name": str(row.get("function_name") or "tool"),
            "arguments": row.get("args") or {},
        }
        if more:
            call["extra"] = more
        step.setdefault("tool_calls", []).append(call)
        self._calls[call_id] = step

    def _observed(self, row: Mapping[str, Any]) -> None:
        call_id = str(row.get("tool_call_id"))
        step = self._calls.get(call_id)
        result: dict[str, Any] = {}
        if step is not None:
            result["source_call_id"] = call_id
        if row.get("content") is not None:
            result["content"] = str(row["content"])
        more = {name: row[name] for name in ("raw_output", "status", "elapsed_ms") if name in row}
        if more:
            result["extra"] = more
        target = self._agent(row) if step is None else step
        target.setdefault("observation", {"results": []})["results"].append(result)

    def end(self) -> list[Step]:
        """All steps; the figures of the invoke are at the last one."""
        terminal = self._invocation.terminal
        step = self._agent({})
        metrics = _metrics(self._invocation.usage)
        if metrics:
            step["metrics"] = metrics
        more = {name: terminal[name] for name in ("error", "stop_reason", "structured") if terminal.get(name)}
        if more:
            step.setdefault("extra", {}).update(more)
        return self.steps


def _metrics(usage: Mapping[str, Any]) -> dict[str, Any]:
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
    found: dict[str, Any] = {name: usage[name] for name in names if usage.get(name) is not None}
    more = {name: usage[name] for name in _MORE if usage.get(name) is not None}
    if more:
        # They are of all calls of the invoke; ATIF has no place for that.
        found["extra"] = {**more, "scope": "invocation"}
    return found


def _totals(invocations: Sequence[Invocation], steps: int) -> dict[str, Any]:
    usage = sum_usage(each.usage for each in invocations)
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
    found = {f"total_{name}": usage[name] for name in names if usage.get(name) is not None}
    more = {name: usage[name] for name in (*_MORE, "partial") if usage.get(name)}
    return {**found, "total_steps": steps, **({"extra": more} if more else {})}


def _without_none(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}
