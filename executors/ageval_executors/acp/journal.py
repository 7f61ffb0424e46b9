"""What an agent writes into its own journal and tells nobody else (pi): failures, and token counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_ageval.box import HOME
from pytest_ageval.errors import BoxError
from pytest_ageval.executor import Usage

if TYPE_CHECKING:
    from ageval_executors.acp.native import NativeSession

#: Bytes of the journal's end that are read; a box hands over no more of one stream in one piece.
TAIL = 200_000

_READ = f'cd "$1" 2>/dev/null && tail -c {TAIL} -- */*"$2"*.jsonl'


@dataclass(frozen=True, slots=True)
class JournalTurn:
    """The last turn in a journal: how it failed (None: it did not), and what it used."""

    error: str | None = None
    usage: Usage | None = None


async def read_journal(native: NativeSession) -> JournalTurn:
    """The session's last turn, from the agent's own journal; empty if there is none.

    pi-acp ends a turn whose provider failed with ``end_turn``; only pi's session file says
    ``"stopReason": "error"`` with an ``errorMessage``. It also holds the usage of every model call,
    where the protocol shows the context's size only.
    """
    box = native.session.box
    if box is None or native.entry.journal is None or not native.id:
        return JournalTurn()
    directory = box.visible_path(f"{HOME}/{native.entry.journal}")
    try:
        found = await box.exec(["sh", "-c", _READ, "sh", directory, native.id], timeout=15)
    except BoxError as error:
        native.warn("acp_journal_unreadable", str(error))
        return JournalTurn()
    return last_turn(found.stdout) if found.ok else JournalTurn()


def last_turn(text: str) -> JournalTurn:
    """Read JSON Lines (the first may be torn) back to the last message of the user."""
    whole = False
    answers = []
    for message in _messages_from_the_end(text):
        if message.get("role") == "user":
            whole = True
            break
        if message.get("role") == "assistant":
            answers.append(message)
    if not answers:
        return JournalTurn()
    error = None
    if answers[0].get("stopReason") == "error":
        error = str(answers[0].get("errorMessage") or "the model call failed")[:2000]
    return JournalTurn(error, _sum([message.get("usage") for message in answers], whole))


def _messages_from_the_end(text: str) -> Iterator[Mapping[str, Any]]:
    for line in reversed(text.split("\n")):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        message = record.get("message") if isinstance(record, dict) else None
        if isinstance(message, dict):
            yield message


def _sum(rows: list[Any], whole: bool) -> Usage | None:
    """The sum over the calls of a turn. ``input`` excludes the cache, ``output`` includes reasoning."""
    found = [row for row in rows if isinstance(row, Mapping)]
    if not found:
        return None

    def total(key: str) -> int:
        values = [row.get(key) for row in found]
        return sum(value for value in values if isinstance(value, int) and value > 0)

    if not any(total(key) for key in ("input", "output", "cacheRead", "cacheWrite")):
        return None
    costs = [row["cost"].get("total") for row in found if isinstance(row.get("cost"), Mapping)]
    cost = sum(value for value in costs if isinstance(value, int | float))
    return Usage(
        prompt_tokens=total("input") + total("cacheRead") + total("cacheWrite"),
        completion_tokens=total("output"),
        cached_tokens=total("cacheRead"),
        cache_write_tokens=total("cacheWrite"),
        reasoning_tokens=total("reasoning"),
        # For a model that we defined ourselves the price is unknown, which pi writes as zero.
        cost_usd=float(cost) or None,
        source="agent journal",
        unavailable=None if whole and len(found) == len(rows) else "partial",
    )
