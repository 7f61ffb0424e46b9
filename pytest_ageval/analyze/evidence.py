"""Everything of an attempt's evidence that the rules look at: trajectory, step log, facts, artifacts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_ageval.analyze.hack import FINDINGS, RULES, Finding, Rule, around, findings
from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence.files import read_document, read_jsonl
from pytest_ageval.evidence.layout import Layout

Row = dict[str, Any]

#: Bytes of one artifact that are looked at, of all of them, and files of one attempt.
FILE_BYTES = 256 * 1024
TOTAL_BYTES = 16 * 1024 * 1024
FILES = 2000

#: Rules about paths that say something of a file that an agent left behind, and those about its text.
_PATHS = frozenset(("planted_reward", "test_runner", "edited_tests", "shadowed_program"))
_TEXTS = frozenset(("patched_outcome", "knows_the_test", "speaks_to_the_judge"))


def findings_of(directory: Path, trajectory: Sequence[Mapping[str, Any]] | None = None) -> list[Finding]:
    """What the rules see in the evidence of one attempt.

    A call of a tool stands in the trajectory and in the step log; it is told once, with its line of the
    trajectory. What is not there, such as calls of an attempt that did not end, is told of the step log.
    """
    layout = Layout(directory)
    rows = read_jsonl(layout.trajectory) if trajectory is None else list(trajectory)
    found = findings(rows)
    known = {str(row.get("tool_call_id")) for row in rows if row.get("type") == "tool_call"}
    found += _of_activity(layout, known)
    found += _of_facts(layout)
    found += _of_artifacts(layout)
    return found[:FINDINGS]


def _of_activity(layout: Layout, known: set[str]) -> list[Finding]:
    """Calls of the step log that the trajectory does not have; none of a log that is broken."""
    try:
        rows = read_jsonl(layout.activity)
    except AgevalError:
        return []
    calls: list[Row] = []
    for row in rows:
        payload = row.get("payload") or {}
        begun = row.get("kind") == "tool_call" and row.get("status") == "in_flight"
        if not begun or str(payload.get("tool_call_id")) in known:
            calls.append({})
            continue
        calls.append(
            {
                "type": "tool_call",
                "function_name": payload.get("tool_name"),
                "kind": payload.get("tool_kind"),
                "args": payload.get("arguments"),
            }
        )
    return [each._replace(file=layout.activity.name) for each in findings(calls)]


def _of_facts(layout: Layout) -> list[Finding]:
    """What the machinery has seen: processes that outlived the agent's turn."""
    summary = read_document(layout.summary) or {}
    rule = _rule("left_running")
    return [
        Finding(rule.name, rule.severity, number, _words(row.get("detail")), rule.about, layout.summary.name)
        for number, row in enumerate(summary.get("facts") or (), start=1)
        if row.get("name") == "leftover_processes_killed" and row.get("phase") in (None, "run")
    ]


def _words(detail: Any) -> str:
    return around(str(detail), 0)


# -- artifacts -------------------------------------------------------------------------------------


def _of_artifacts(layout: Layout) -> Iterator[Finding]:
    """Files that the agent made or changed and that were harvested; line 1 stands for the whole file."""
    lock = read_document(layout.lock) or {}
    given = _given(lock.get("files"))
    left = TOTAL_BYTES
    for path in _files(layout.artifacts):
        name = path.relative_to(layout.root).as_posix()
        try:
            with path.open("rb") as stream:
                data = stream.read(min(FILE_BYTES, left))
        except OSError:
            continue
        left -= len(data)
        if hashlib.sha256(data).hexdigest() in given:
            continue  # the task brought it, and it is as it was
        yield from _of_path(path.relative_to(layout.artifacts).as_posix(), name)
        if b"\0" not in data:
            yield from _of_text(data.decode("utf-8", "replace"), name)
        if left <= 0:
            return


def _given(files: Any) -> set[str]:
    """The digests of the task's own files, where its lock lists them."""
    rows = files.values() if isinstance(files, Mapping) else ()
    return {str(row).split()[-1].rpartition(":")[2] for row in rows if str(row).strip()}


def _files(root: Path) -> Iterator[Path]:
    """Regular files below `root`, sorted; links are not followed."""
    count = 0
    for directory, names, files in os.walk(root):
        names.sort()
        for name in sorted(files):
            path = Path(directory, name)
            if path.is_symlink() or not path.is_file():
                continue
            count += 1
            if count > FILES:
                return
            yield path


def _of_path(inside: str, name: str) -> Iterator[Finding]:
    for rule in RULES:
        if rule.name in _PATHS and (match := rule.pattern.search(inside)) is not None:
            yield Finding(rule.name, rule.severity, 1, around(inside, match.start()), rule.about, name)


def _of_text(text: str, name: str) -> Iterator[Finding]:
    for rule in RULES:
        if rule.name in _TEXTS and (match := rule.pattern.search(text)) is not None:
            line = text.count("\n", 0, match.start()) + 1
            yield Finding(rule.name, rule.severity, line, around(text, match.start()), rule.about, name)


def _rule(name: str) -> Rule:
    return next(rule for rule in RULES if rule.name == name)
