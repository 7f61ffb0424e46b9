"""Suite runs written by hand, for what reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_ageval.suite import Settled, SuiteHeader, SuiteWriter

#: One letter for each attempt: passed, failed, no verdict.
STATUS = {"P": "PASS", "F": "FAIL", "E": "ERROR"}


def rows(tasks: dict[str, str], **fields: Any) -> list[Settled]:
    """``{"a": "PPF"}``: three attempts at the task a; `fields` are the same for all."""
    who = "-".join(str(fields[name]) for name in ("agent", "model", "box") if name in fields)
    return [
        Settled(
            **{
                "slot": f"tasks/{task}/task.yaml::{task}[{who}-{number}]",
                "status": STATUS[letter],
                "task_id": task,
                "dataset_id": "demo",
                "attempt": number,
                "score": {"P": 1.0, "F": 0.25, "E": None}[letter],
                **fields,
            }
        )
        for task, letters in tasks.items()
        for number, letter in enumerate(letters, start=1)
    ]


def write(
    evidence: Path, name: str, found: list[Settled], *, created_at: str = "2026-01-01", **header: Any
) -> Path:
    """A suite run below a root of evidence; its directory."""
    root = evidence / "suite-runs" / name
    values = {"dataset_id": "demo", "dataset_version": "1", **header}
    writer = SuiteWriter.create(root, SuiteHeader(suite_run_id=name, created_at=created_at, **values))
    for row in found:
        writer.add(row)
    writer.close()
    return root


def write_foreign(evidence: Path, name: str, tasks: dict[str, str], **summary: Any) -> Path:
    """A suite run as ageval 0.10 leaves it: a summary.json, and nothing beside it."""
    attempts = [
        {
            "task_id": task,
            "attempt_index": index,
            "status": STATUS[letter],
            "score": 1.0 if letter == "P" else 0.0 if letter == "F" else None,
            "phase": "error" if letter == "E" else "terminal",
            "run_id": f"attempt_{name}{task}{index}",
            "metrics": {},
            "error": None,
            "limit": None,
            "exit_code": 0,
        }
        for task, letters in tasks.items()
        for index, letter in enumerate(letters)
    ]
    document = {
        "schema": "ageval.suite.summary/1",
        "suite_run_id": name,
        "dataset_id": "demo",
        "dataset_version": "1",
        "attempts": attempts,
        "created_at": "2025-06-01",
        "agent_label": "codex",
        **summary,
    }
    root = evidence / "suite-runs" / name
    root.mkdir(parents=True)
    (root / "summary.json").write_text(json.dumps(document))
    return root
