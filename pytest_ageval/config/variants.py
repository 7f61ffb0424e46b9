"""The variants of a run: one for each cell of the matrix and each attempt, with an id that can be read."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_ageval.config.agents import agent_name
from pytest_ageval.config.matrix import Cell, agent_axes, canonical, cells
from pytest_ageval.config.overrides import Override, make_override

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_ageval.config.job import JobOptions

#: Characters of an id, and those of one value in it.
ID_LENGTH = 120
VALUE_LENGTH = 32


@dataclass(frozen=True, slots=True)
class Variant:
    """One point of the matrix. None means: what the data set says.

    `agent` binds every role that `role_agents` does not name. `overrides` are the values of parameters
    (and of whatever else ``--set`` could set). `attempt` counts from 1. `id` is unique in the plan and
    holds only letters, digits, ``.``, ``_`` and ``-``; `name` is what all attempts of the cell share of it.
    """

    agent: str | None = None
    role_agents: tuple[tuple[str, str], ...] = ()
    model: str | None = None
    box: str | None = None
    attempt: int = 1
    id: str = "default"
    effort: str | None = None
    overrides: tuple[Override, ...] = ()
    name: str = "default"

    def agent_for(self, role: str) -> str | None:
        """The agent package that the command line binds to `role`."""
        return dict(self.role_agents).get(role, self.agent)

    @property
    def settings(self) -> dict[str, Any]:
        """The values of the matrix by a short name: ``seed``, ``limits.wall_time_seconds``."""
        return {setting_name(override.tokens): override.value for override in self.overrides}

    @property
    def marks(self) -> dict[str, Any]:
        """`settings` as ``-m`` can compare them: texts, whole numbers, true, false and null."""
        plain = (str, int, type(None))
        rows = {
            name: value if isinstance(value, plain) else canonical(value)
            for name, value in self.settings.items()
        }
        return {re.sub(r"\W", "_", name): value for name, value in rows.items()}

    def words(self) -> str:
        """``agent codex, effort high, seed 1``; for error messages."""
        named = {"agent": self.agent, "model": self.model, "effort": self.effort, "box": self.box}
        rows = [f"{name} {value}" for name, value in named.items() if value is not None]
        rows += [f"agent {role}={ref}" for role, ref in self.role_agents]
        return ", ".join(rows + [f"{name} {canonical(value)}" for name, value in self.settings.items()])


def plan_variants(job: JobOptions) -> list[Variant]:
    """Every cell of the matrix of agents, models, efforts, boxes and other values, with all its attempts.

    Raises ConfigError ``invalid_option`` for a value that is given twice and for a matrix without cells.
    """
    axes = _axes(job)
    rows = cells(job.parsed_matrix, axes)
    varying = _varying(rows, axes)
    names = _unique([_name(row, axes, varying) for row in rows])
    return [
        _variant(row, attempt, name, name if job.attempts == 1 else f"{name}-{attempt}")
        for row, name in zip(rows, names, strict=True)
        for attempt in range(1, job.attempts + 1)
    ]


def _axes(job: JobOptions) -> dict[str, Sequence[Any]]:
    """All axes in the order of the id: agents by role, model, effort, box, the rest."""
    matrix = dict(job.parsed_matrix.axes)
    agents = {f"agent:{role}" if role else "agent": values for role, values in agent_axes(job.agents).items()}
    found: dict[str, Sequence[Any]] = {**agents}
    found |= {axis: matrix.pop(axis) for axis in list(matrix) if axis.partition(":")[0] == "agent"}
    for axis, values in (("model", job.models), ("effort", job.efforts), ("box", job.boxes)):
        found[axis] = matrix.pop(axis, ()) or values or (None,)
    return {**found, **matrix}


def more_axes(job: JobOptions) -> str:
    """`` x 2 of effort x 3 of seed``: the axes besides agent, model and box, for the header of a run."""
    axes = {"effort": job.efforts, **job.parsed_matrix.axes}
    usual = ("agent", "model", "box")
    named = {a: len(v) for a, v in axes.items() if a.partition(":")[0] not in usual and len(v) > 1}
    return "".join(f" x {count} of {axis.removeprefix('/parameters/')}" for axis, count in named.items())


def _varying(rows: Sequence[Cell], axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """The axes on which the cells differ; those that only rows of ``include`` have come last."""
    order = dict.fromkeys([*axes, *(axis for row in rows for axis in row)])
    return [axis for axis in order if len({_value(row, axis) for row in rows}) > 1]


def _value(row: Cell, axis: str) -> str:
    """The value as text; empty when the row has none. The null of a parameter is a value."""
    found = row.get(axis)
    return canonical(found) if axis in row and (axis[0] == "/" or found is not None) else ""


def _name(row: Cell, axes: Mapping[str, Sequence[Any]], varying: Sequence[str]) -> str:
    """The parts of `row` that differ from row to row; the agent's (or the box's) name when none does."""
    if varying:
        return "-".join(_part(axis, row[axis]) for axis in varying if _value(row, axis)) or "default"
    first = next((row[axis] for axis in axes if axis.partition(":")[0] == "agent" and row[axis]), None)
    return _part("agent", first) if first else _safe(row.get("box") or "default")


def _part(axis: str, value: Any) -> str:
    """``codex``, ``high``, ``seed_1``."""
    if axis.partition(":")[0] == "agent":
        return _safe(agent_name(str(value)))
    if not axis.startswith("/"):
        return _safe(str(value))
    name = setting_name(tuple(axis.split("/")[1:])).rpartition(".")[2]
    text = value if isinstance(value, str) else canonical(value)
    shown = _safe(text)
    if len(shown) > VALUE_LENGTH:
        shown = f"{shown[: VALUE_LENGTH - 9]}-{_digest(text)}"
    return f"{_safe(name)}_{shown}"


def setting_name(tokens: Sequence[str]) -> str:
    """``/parameters/seed`` is ``seed``, anything else is named in full: ``limits.wall_time_seconds``."""
    return ".".join(tokens[1:] if tokens[0] == "parameters" else tokens)


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-") or "x"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _unique(names: Sequence[str]) -> list[str]:
    """`names`; those that collide after their unsafe characters were replaced get a number."""
    given, found, counts = set(names), dict[str, None](), dict[str, int]()
    for name in names:
        candidate, count = name, counts.get(name, 1)
        while candidate in found or (candidate != name and candidate in given):
            count += 1
            candidate = f"{name}.{count}"
        counts[name] = count
        found[candidate] = None
    return list(found)


def _variant(row: Cell, attempt: int, name: str, full: str) -> Variant:
    roles = {axis.partition(":")[2]: value for axis, value in row.items() if axis.startswith("agent:")}
    return Variant(
        agent=row.get("agent"),
        role_agents=tuple((role, ref) for role, ref in roles.items() if ref is not None),
        model=row.get("model"),
        box=row.get("box"),
        attempt=attempt,
        id=_short(full),
        effort=row.get("effort"),
        overrides=tuple(
            make_override(axis, value, "--matrix") for axis, value in row.items() if axis[0] == "/"
        ),
        name=_short(name),
    )


def _short(name: str) -> str:
    return name if len(name) <= ID_LENGTH else f"{name[:100]}-{_digest(name)}"
