"""Failures that an agent writes into its own journal and tells nobody else (pi)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pytest_ageval.box import HOME

if TYPE_CHECKING:
    from ageval_executors.acp.native import NativeSession

# The end of the newest journal; only its last records matter.
_TAIL = 'cd "$1" 2>/dev/null && tail -c 65536 -- "$(ls -t -- */*.jsonl | head -n 1)"'


async def journal_error(native: NativeSession) -> str | None:
    """The error of the last message in the agent's journal, or None if that turn was answered.

    pi-acp ends a turn whose provider failed with ``end_turn``; only pi's session file says
    ``"stopReason": "error"`` with an ``errorMessage``.
    """
    box = native.session.box
    if box is None or native.entry.journal is None:
        return None
    directory = box.visible_path(f"{HOME}/{native.entry.journal}")
    found = await box.exec(["sh", "-c", _TAIL, "sh", directory], timeout=15)
    return last_error(found.stdout) if found.ok else None


def last_error(text: str) -> str | None:
    """The ``errorMessage`` of the last assistant message in JSON Lines, if that ended in an error."""
    for line in reversed(text.split("\n")):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        message = record.get("message") if isinstance(record, dict) else None
        if isinstance(message, dict) and message.get("role") == "assistant":
            if message.get("stopReason") != "error":
                return None
            return str(message.get("errorMessage") or "the model call failed")[:2000]
    return None
