"""How each attempt of a run ended, in the words that a CI system shows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Characters of a message.
MESSAGE = 500

Kind = Literal["FAIL", "ERROR", "known", "unexpected"]


class Ended(NamedTuple):
    """An attempt that did not just pass. `file` is the task's, relative to the checkout if it lies in it.

    ``known`` is a FAIL that was expected, ``unexpected`` a known failure that passed.
    """

    kind: Kind
    name: str
    file: str
    message: str
    evidence: str | None


def ended(nodeid: str, data: Mapping[str, Any], kind: Kind, rootpath: Path, checkout: str | None) -> Ended:
    """What is to be said of one attempt. `checkout` is the directory that the CI system has checked out."""
    path, _, name = nodeid.partition("::")
    return Ended(
        kind,
        name or path,
        _below(rootpath / path, checkout),
        _one_line(_message(kind, data)),
        data.get("attempt_dir"),
    )


def _one_line(text: str) -> str:
    """What an evaluator or an agent wrote, without what a log would act on."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MESSAGE]).split())
    return flat if len(flat) <= MESSAGE else f"{flat[:MESSAGE]}..."


def _below(path: Path, checkout: str | None) -> str:
    if checkout:
        found = os.path.relpath(path, checkout)
        if not found.startswith(".."):
            return found
    return str(path)


def _message(kind: Kind, data: Mapping[str, Any]) -> str:
    if kind == "unexpected":
        return "a known failure passed"
    if kind == "ERROR":
        error = data.get("error") or {}
        phase = f"in {error['phase']}: " if error.get("phase") else ""
        first = str(error.get("message") or "").strip().partition("\n")[0]
        return f"{phase}{error.get('title') or 'error'}{f': {first}' if first else ''}"
    parts = [] if data.get("score") is None else [f"score {data['score']:.2f}"]
    if data.get("limit"):
        parts.append(f"limit reached: {data['limit']}")
    if data.get("failed_checks"):
        parts.append(f"failed checks: {', '.join(map(str, data['failed_checks']))}")
    return "; ".join(parts) or "the verdict is FAIL"
