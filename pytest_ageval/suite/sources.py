"""Recorded attempts that are to be judged again: found by suite run, by attempt id, or by path."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ageval.errors import ConfigError
from pytest_ageval.evidence.files import read_document
from pytest_ageval.evidence.layout import INVOCATION_METADATA, Layout, Surface
from pytest_ageval.suite.places import SuiteLayout, find_suite, suites
from pytest_ageval.suite.record import Settled, read_suite

#: Where `Resolution` says that a value of the lock came from, if it was a command line's.
ASKED_FOR = frozenset(("cli", "env", "ini", "recorded"))


@dataclass(frozen=True, slots=True)
class Recorded:
    """One settled attempt. `directory` is its evidence, None when it is gone or there never was any.

    `item` is what stood in brackets in its node id; `name` what all attempts of its variant share of it.
    """

    attempt_id: str
    directory: Path | None
    task_id: str
    dataset_id: str | None = None
    agent: str | None = None
    model: str | None = None
    effort: str | None = None
    box: str | None = None
    attempt: int = 1
    item: str = ""
    name: str = ""
    suite_run_id: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def result(self) -> dict[str, Any]:
        """result.json; empty when it is gone. Raises AgevalError ``evidence_corrupt``."""
        return self._read("result")

    def lock(self) -> dict[str, Any]:
        """lock.json, likewise."""
        return self._read("lock")

    def _read(self, name: str) -> dict[str, Any]:
        return {} if self.directory is None else read_document(getattr(Layout(self.directory), name)) or {}

    def asked_for(self) -> dict[str, Any]:
        """The values that its command line gave, by pointer into the configuration."""
        rows = self.lock().get("resolution") or ()
        return {row["pointer"]: row["value"] for row in rows if row.get("source") in ASKED_FOR}

    def agents_roles(self) -> set[str]:
        """Roles that were played in the run phase, of an attempt that was judged again: in its source's."""
        earlier = (self.lock().get("regrade") or {}).get("agents_roles")
        return set(earlier) if earlier is not None else self._roles("run")

    def judges_roles(self) -> set[str]:
        """Roles that were played in the evaluate phase."""
        return self._roles("evaluate")

    def _roles(self, surface: Surface) -> set[str]:
        if self.directory is None:
            return set()
        files = Layout(self.directory).invocations(surface).glob(f"*/{INVOCATION_METADATA}")
        found = (read_document(file) or {} for file in files)
        return {str(row["profile_id"]) for row in found if row.get("profile_id")}


def find_recorded(
    names: Sequence[str], evidence: Path, this_run: str = ""
) -> tuple[list[Recorded], set[str]]:
    """What `names` name below the root `evidence`, and those of them that name nothing there.

    ``last`` is never the suite run of `this_run`. Raises ConfigError: ``suite_ambiguous``,
    ``regrade_unsettled`` for an attempt that has no result.
    """
    found: list[Recorded] = []
    unknown = set()
    for name in names:
        here = _attempts(name, evidence, this_run)
        if here is None:
            unknown.add(name)
        else:
            found += here
    return _named(found), unknown


def _attempts(name: str, evidence: Path, this_run: str) -> list[Recorded] | None:
    given = Path(name).expanduser()
    if Layout(given).lock.is_file():
        # Of another data set's evidence: that data set finds it.
        return [_of_directory(given.absolute())] if _below(given, evidence) else None
    if name.startswith("attempt_") and "/" not in name:
        directories = sorted((evidence / "runs").glob(f"{name}*"))
        if len(directories) > 1:
            raise ConfigError("suite_ambiguous", f"{name!r} is the beginning of {len(directories)} attempts")
        return [_of_directory(path) for path in directories] or None
    if name == "last":
        before = (path for path in reversed(suites(evidence)) if _run_of(path) != this_run or not this_run)
        name = str(next(before, name))
    try:
        root = find_suite(name, evidence)
    except ConfigError as error:
        if error.code == "suite_not_found":
            return None
        raise
    if not _below(root, evidence):
        return None
    suite = read_suite(root)
    rows = [row for row in suite.rows if not _interrupted(row)]
    return [_of_row(row, SuiteLayout(root).evidence, suite.header.suite_run_id) for row in rows]


def _run_of(root: Path) -> str:
    return str((read_document(SuiteLayout(root).header) or {}).get("run_id") or "")


def _below(path: Path, evidence: Path) -> bool:
    return evidence.resolve() in path.resolve().parents


def _interrupted(row: Settled) -> bool:
    """It did not settle: there is nothing to judge again."""
    return row.error is not None and row.error.get("title") == "interrupted"


def _of_row(row: Settled, evidence: Path, suite_run_id: str) -> Recorded:
    directory = None if row.attempt_dir is None else evidence / row.attempt_dir
    item = _bracketed(row.slot)
    return Recorded(
        attempt_id=row.attempt_id or row.slot,
        directory=directory if directory is not None and directory.is_dir() else None,
        task_id=row.task_id,
        dataset_id=row.dataset_id,
        agent=row.agent,
        model=row.model,
        effort=row.effort,
        box=row.box,
        attempt=row.attempt,
        item=item,
        name=row.variant or item,
        suite_run_id=suite_run_id,
        parameters=row.parameters,
    )


def _of_directory(path: Path) -> Recorded:
    layout = Layout(path)
    result, lock = read_document(layout.result), read_document(layout.lock) or {}
    if result is None:
        raise ConfigError(
            "regrade_unsettled",
            f"{path} has no result.json: the attempt did not end, or it still runs",
            hint="only settled attempts can be judged again",
        )
    locked = lock.get("locked") or {}
    bindings = (locked.get("agent_profiles") or {}).values()
    efforts = {str((row["model"].get("reasoning") or {}).get("effort") or "") for row in bindings} - {""}
    item = _bracketed(str(result.get("slot") or ""))
    attempt = _number(layout)
    return Recorded(
        attempt_id=str(result.get("attempt_id") or path.name),
        directory=path,
        task_id=str(result.get("task_id") or lock.get("task_id")),
        dataset_id=result.get("dataset_id"),
        agent=result.get("agent"),
        model=result.get("model"),
        effort="+".join(sorted(efforts)) or None,
        box=result.get("kind") or lock.get("environment"),
        attempt=attempt,
        item=item,
        name=item.removesuffix(f"-{attempt}"),
        suite_run_id=result.get("suite_run_id"),
    )


def _bracketed(slot: str) -> str:
    """``codex-1`` of ``tasks/a/task.yaml::a[codex-1]``."""
    return slot[slot.index("[") + 1 : -1] if "[" in slot and slot.endswith("]") else ""


def _number(layout: Layout) -> int:
    """The attempt's number, from the header of its step log."""
    try:
        with layout.activity.open("rb") as stream:
            head = [json.loads(line) for _, line in zip(range(5), stream, strict=False)]
    except (OSError, ValueError):  # imported, or torn
        return 1
    payloads = (row.get("payload") or row for row in head if isinstance(row, dict))
    return next((int(p["attempt_index"]) for p in payloads if p.get("attempt_index")), 1)


def _named(found: Iterable[Recorded]) -> list[Recorded]:
    """`found` without doubles, each with an item's name that is unique in its task."""
    from dataclasses import replace

    taken: dict[tuple[str | None, str], set[str]] = {}
    rows: list[Recorded] = []
    for row in {row.attempt_id: row for row in found}.values():
        names = taken.setdefault((row.dataset_id, row.task_id), set())
        base = row.item or re.sub(r"[^A-Za-z0-9._-]+", "-", row.agent or "") or "recorded"
        name, count = base, 1
        while name in names:
            count += 1
            name = f"{base}.{count}"
        names.add(name)
        rows.append(replace(row, item=name, name=row.name or base))
    return rows


def error_of_run(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Why an attempt's work could not be done, if that is why it has no verdict."""
    error = result.get("error")
    return error if isinstance(error, Mapping) and error.get("phase") in ("environment", "run") else None
