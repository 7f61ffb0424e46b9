"""``--matrix``: which values are combined, and what is added to the combinations or left out of them.

An axis is ``agent`` (``agent:ROLE`` for one role), ``model``, ``effort``, ``box``, or the pointer of a
value that ``--set`` could set. A cell is one value for some of the axes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.config.check import Source, check_format, convert
from pytest_ageval.config.formats import MATRIX_FORMAT, MatrixFile, MatrixRow
from pytest_ageval.config.overrides import ROLE, Override, make_override, refuse_constant
from pytest_ageval.config.where import join_pointer, listed
from pytest_ageval.config.yamlio import load_yaml
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

Cell = Mapping[str, Any]

#: Axes that are no pointers, besides ``agent:ROLE``.
NAMED = ("agent", "model", "effort", "box")

#: Cells that a matrix may have: more of them are a slip of the pen.
MAX_CELLS = 10_000


@dataclass(frozen=True, slots=True)
class Matrix:
    """`axes` in their order; `include` and `exclude` with the place of each row, for error messages."""

    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    include: tuple[tuple[str, Cell], ...] = ()
    exclude: tuple[tuple[str, Cell], ...] = ()

    def keys(self) -> AbstractSet[str]:
        """Every axis that has a value somewhere in it."""
        return {*self.axes, *(axis for _, row in self.include for axis in row)}

    @property
    def roles(self) -> list[str]:
        """Roles whose agent is an axis."""
        return sorted(axis.partition(":")[2] for axis in self.keys() if axis.startswith("agent:"))

    def overrides(self) -> list[Override]:
        """One override for each pointer that is an axis."""
        return [make_override(axis, None, "--matrix") for axis in sorted(self.keys()) if axis[0] == "/"]


def read_matrix(given: Sequence[str]) -> Matrix:
    """All of ``--matrix`` together. Raises ConfigError: what is wrong in a file or in an argument."""
    axes: dict[str, tuple[Any, ...]] = {}
    include: list[tuple[str, Cell]] = []
    exclude: list[tuple[str, Cell]] = []
    for text in given:
        if text.startswith("/") and "=" in text:
            found = _from_text(text)
        else:
            found = _from_file(Path(text).expanduser())
        for axis, values in found.axes.items():
            if axis in axes:
                raise ConfigError("invalid_option", f"--matrix gives {axis} twice")
            axes[axis] = values
        include += found.include
        exclude += found.exclude
    return Matrix(axes, tuple(include), tuple(exclude))


def _from_text(text: str) -> Matrix:
    """``/parameters/seed=[1,2]``, ``/agent=["codex","pi"]``."""
    pointer, _, value = text.partition("=")
    try:
        values = json.loads(value, parse_constant=refuse_constant)
    except ValueError:
        values = None
    if not isinstance(values, list) or not values:
        raise ConfigError(
            "invalid_option",
            f"--matrix takes FILE or POINTER=[VALUE, ...], found {text!r}",
            hint="the values are a JSON list that is not empty; keep its quotes from the shell: "
            '--matrix \'/agent=["codex", "pi"]\'',
        )
    name = pointer[1:]
    if name in NAMED:
        if not all(isinstance(one, str) and one for one in values):
            raise ConfigError("invalid_option", f"--matrix {pointer} takes texts, found {value}")
        return Matrix(_axes({name: values}, "--matrix"))
    make_override(pointer, None, "--matrix")
    return Matrix(_axes({pointer: values}, "--matrix"))


def _from_file(path: Path) -> Matrix:
    if not path.is_file():
        raise ConfigError(
            "invalid_option",
            f"--matrix: there is no file {path}",
            hint="a file, or POINTER=[VALUE, ...] such as '/parameters/seed=[1, 2, 3]'",
        )
    source = Source(path)
    data = load_yaml(path)
    check_format(data, MATRIX_FORMAT, source)
    file = convert(data, MatrixFile, source)
    given: dict[str, Any] = {axis: values for axis in NAMED if (values := getattr(file, axis)) is not None}
    given |= {join_pointer("parameters", name): values for name, values in (file.parameters or {}).items()}
    given |= _pointers(file.set, source, "/set")
    axes = _axes(given, source.shown or "")
    rows: dict[str, list[tuple[str, Cell]]] = {"include": [], "exclude": []}
    for name, found in rows.items():
        for number, row in enumerate(getattr(file, name) or ()):
            at = join_pointer(name, number)
            cell = _cell(row, source, at)
            if not cell:
                raise source.error("invalid_schema", "the row is empty", at)
            found.append((f"{source.shown}:{at}", cell))
    return Matrix(axes, tuple(rows["include"]), tuple(rows["exclude"]))


def _pointers(table: Mapping[str, Any] | None, source: Source, at: str) -> dict[str, Any]:
    found = {}
    for pointer, value in (table or {}).items():
        if not pointer.startswith("/"):
            raise source.error("invalid_schema", f"{pointer!r} is no pointer", at, "as in --set: /limits/...")
        make_override(pointer, None, source.shown or "--matrix")
        found[pointer] = value
    return found


def _cell(row: MatrixRow, source: Source, at: str) -> Cell:
    agents = [row.agent] if isinstance(row.agent, str) else row.agent or []
    cell: dict[str, Any] = {}
    for text in agents:
        axis, ref = _agent(text)
        if axis in cell:
            raise source.error("invalid_schema", f"the row names {axis} twice", f"{at}/agent")
        cell[axis] = ref
    cell |= {axis: value for axis in NAMED[1:] if (value := getattr(row, axis)) is not None}
    cell |= {join_pointer("parameters", name): value for name, value in (row.parameters or {}).items()}
    return cell | _pointers(row.set, source, f"{at}/set")


def _axes(given: Mapping[str, Sequence[Any]], where: str) -> dict[str, tuple[Any, ...]]:
    """`given` with the agents by role; ConfigError for a value that an axis has twice."""
    found: dict[str, list[Any]] = {}
    for axis, values in given.items():
        for value in values:
            name, one = _agent(value) if axis == "agent" else (axis, value)
            found.setdefault(name, []).append(one)
    for axis, values in found.items():
        texts = [canonical(value) for value in values]
        if len(set(texts)) < len(texts):
            twice = next(text for index, text in enumerate(texts) if text in texts[:index])
            raise ConfigError("invalid_option", f"{where}: {axis} has {twice} twice")
    return {axis: tuple(values) for axis, values in found.items()}


def agent_axes(agents: Sequence[str]) -> dict[str, list[str | None]]:
    """``--agent`` by role; the role of a bare agent is the empty text."""
    axes: dict[str, list[str | None]] = {"": []}
    for text in agents:
        axis, ref = _agent(text)
        role = axis.partition(":")[2]
        values = axes.setdefault(role, [])
        if ref in values:
            raise ConfigError("invalid_option", f"--agent {text} is given twice")
        values.append(ref)
    axes[""] = axes[""] or [None]
    return axes


def _agent(text: str) -> tuple[str, str]:
    """The axis and the agent of ``NAME`` or ``ROLE=NAME``."""
    role, equals, ref = text.partition("=")
    if not equals or not ROLE.fullmatch(role):
        role, ref = "", text
    if not ref.strip():
        raise ConfigError("invalid_option", f"--agent takes NAME or ROLE=NAME, found {text!r}")
    return (f"agent:{role}" if role else "agent"), ref


def cells(matrix: Matrix, axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of `axes` without those that a row of ``exclude`` is a part of; then ``include``.

    A row of ``include`` is added to every combination whose values it does not change; if there is none
    it becomes a cell of its own, for which the options besides ``--matrix`` hold too that give one value.
    """
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MAX_CELLS:
        raise ConfigError("invalid_option", f"the matrix has {count} combinations; {MAX_CELLS} are allowed")
    found = list(_without(matrix, axes))
    original = [dict(cell) for cell in found]
    single = {axis: row[0] for axis, row in axes.items() if len(row) == 1 and axis not in matrix.axes}
    for _, row in matrix.include:
        taken = False
        for cell, before in zip(found, original, strict=False):
            if all(
                axis not in before or before[axis] is None or _same(before[axis], row[axis]) for axis in row
            ):
                cell.update(row)
                taken = True
        if not taken:
            found.append({**single, **row})
    if not found:
        raise ConfigError("invalid_option", "--matrix: exclude leaves no combination")
    return found


def _without(matrix: Matrix, axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    import itertools

    used: set[str] = set()
    for values in itertools.product(*axes.values()):
        cell = dict(zip(axes, values, strict=True))
        hits = [where for where, row in matrix.exclude if _contains(cell, row)]
        used.update(hits)
        if not hits:
            yield cell
    for where, row in matrix.exclude:
        if where not in used:
            unknown = sorted(axis for axis in row if not any(v is not None for v in axes.get(axis, ())))
            why = f"{listed(unknown)} is no axis" if unknown else "no combination has these values"
            raise ConfigError("invalid_option", f"{where} excludes nothing: {why}")


def _contains(cell: Cell, row: Cell) -> bool:
    return all(axis in cell and _same(cell[axis], value) for axis, value in row.items())


def _same(one: Any, other: Any) -> bool:
    return canonical(one) == canonical(other)


def canonical(value: Any) -> str:
    """`value` as JSON: 1, 1.0, true and "1" are four values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
