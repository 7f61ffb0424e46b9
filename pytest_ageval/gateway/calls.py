"""What is known of model calls, and what the calls of one turn say about how it went."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pytest_ageval.executor import Usage
from pytest_ageval.gateway.usage import SOURCE, added
from pytest_ageval.gateway.wires import GENERATING, Wire

#: How a call ended. ``ok``: a whole answer. ``http_error``: a status of 400 or more. ``unreachable``:
#: no answer. ``cut``: it ended too early. ``garbage``: not the API's. ``provider_error``: an error
#: within the stream. ``cancelled``: the agent went away. ``refused``: a budget was used up.
#: ``replay_miss``: not in the recording. ``too_large``: over the gateway's bounds.
Outcome = Literal[
    "ok",
    "http_error",
    "unreachable",
    "cut",
    "garbage",
    "provider_error",
    "cancelled",
    "refused",
    "replay_miss",
    "too_large",
]

#: What marks an answer that says: the conversation is too long. That is the agent's doing.
_TOO_LONG = re.compile(
    r"context.?length|context.?window|prompt is too long|maximum.{0,20}tokens|too many tokens"
    r"|input token count|request_too_large",
    re.IGNORECASE,
)
#: Statuses after which trying again may help.
_TRANSIENT = frozenset({408, 409, 425, 429})
#: Codes with such a status that do not go away by themselves.
_FOR_GOOD = re.compile(r"insufficient_quota|billing|credit balance", re.IGNORECASE)


@dataclass(slots=True, eq=False)
class CallRecord:
    """One request of an agent, as it passed. Seconds are from the request's arrival.

    `tools`: the request offered tools to the model. `usage` is None before the answer ended.
    """

    wire: Wire
    method: str
    path: str
    started_at: str
    model: str | None = None
    tools: bool = False
    status: int | None = None
    outcome: Outcome | None = None
    first_byte_seconds: float | None = None
    seconds: float | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    error: str = ""
    retry_after: float | None = None
    request_bytes: int = 0
    response_bytes: int = 0
    streamed: bool = False
    replayed: bool = False

    @property
    def generates(self) -> bool:
        """A model answers it."""
        return self.wire in GENERATING

    def as_dict(self) -> dict[str, Any]:
        """The row of the evidence. What is not known is null, never 0."""
        return {
            "wire": self.wire,
            "method": self.method,
            "path": self.path,
            "model": self.model,
            "status": self.status,
            "outcome": self.outcome,
            "started_at": self.started_at,
            "first_byte_seconds": self.first_byte_seconds,
            "seconds": self.seconds,
            "usage": self.usage.as_dict() if self.usage is not None else None,
            "stop_reason": self.stop_reason,
            "error": self.error or None,
            "tools": self.tools,
            "streamed": self.streamed,
            "request_bytes": self.request_bytes,
            "response_bytes": self.response_bytes,
            **({"replayed": True} if self.replayed else {}),
        }


@dataclass(frozen=True, slots=True)
class Failure:
    """What the provider did to a turn. `error` is a token with detail."""

    error: str
    transient: bool
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """The calls of one turn that have ended, and how many have not."""

    calls: Sequence[CallRecord]
    running: int = 0

    @property
    def usage(self) -> Usage | None:
        """The sum over the calls that a model answered; None: there was none.

        A call that was refused or failed before an answer began has no usage, and nothing is missing.
        """
        rows = [
            call.usage or Usage(source=SOURCE, unavailable="not_reported")
            for call in self.calls
            if call.generates and _answered(call)
        ]
        if not rows:
            return None
        found = added(rows)
        if self.running and found.unavailable is None:
            return Usage(**{**found.as_dict(), "unavailable": "partial"})
        return found

    @property
    def refused(self) -> CallRecord | None:
        """The last call that a budget did not let out."""
        return _last(call for call in self.calls if call.outcome == "refused")

    @property
    def missed(self) -> CallRecord | None:
        """The first call that was not in the recording."""
        missed = (call for call in self.calls if call.outcome == "replay_miss" and call.generates)
        return next(missed, None)

    @property
    def failure(self) -> Failure | None:
        """The provider's failure that the turn ended with, None if its last call was answered.

        Calls without tools (titles, summaries) count only where no other was made. What the agent
        itself dropped says nothing.
        """
        made = [call for call in self.calls if call.generates and call.outcome != "cancelled"]
        last = _last([call for call in made if call.tools] or made)
        return None if last is None else failure_of(last)


def failure_of(call: CallRecord) -> Failure | None:
    """The provider's failure in `call`; None if it was answered, or the fault is not the provider's."""
    text = f": {call.error}" if call.error else ""
    if call.outcome == "http_error" and call.status is not None:
        if call.status in (400, 413) and _TOO_LONG.search(call.error):
            return None
        waits = call.status in _TRANSIENT or call.status >= 500
        transient = waits and not _FOR_GOOD.search(call.error)
        return Failure(f"provider_failed:HTTP {call.status}{text}", transient, call.retry_after)
    if call.outcome in ("unreachable", "cut", "garbage", "provider_error"):
        return Failure(f"provider_failed:{call.outcome}{text}", True)
    return None


def _answered(call: CallRecord) -> bool:
    if call.outcome in ("ok", "cut", "provider_error"):
        return True
    return call.outcome == "cancelled" and call.status is not None


def _last(calls: Iterable[CallRecord]) -> CallRecord | None:
    found = None
    for call in calls:
        if found is None or call.started_at >= found.started_at:
            found = call
    return found
