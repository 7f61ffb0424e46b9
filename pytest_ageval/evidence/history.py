"""What the step log of an attempt tells a process that goes on with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pytest_ageval.evidence.activity import digest
from pytest_ageval.executor import Recorded

Row = Mapping[str, Any]


@dataclass(slots=True)
class PastInvoke:
    """One invoke. `completed` is the payload of its end, None when it was in flight.

    `answers` and `calls` are what had settled inside it, `checkpoint` the newest state that belongs to it.
    """

    request_id: str
    session_id: str
    turn: int
    begun: Row
    completed: Row | None = None
    answers: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    started_calls: dict[str, Row] = field(default_factory=dict)
    last_step: int = 0
    #: A model call was on its way: nobody knows whether it is charged.
    calling: bool = False
    #: From its beginning to the last line that belongs to it, over all processes.
    seconds: float = 0.0
    since: datetime | None = None
    #: The ids of all invocations that it had, the newest last.
    invocations: list[str] = field(default_factory=list)

    @property
    def invocation_id(self) -> str:
        """The id of its newest invocation."""
        return str(self.begun.get("invocation_id") or "")

    def recorded(self, last_step: int) -> Recorded:
        """What an executor can replay of it."""
        return Recorded([dict(row) for row in self.answers], [dict(row) for row in self.calls], last_step)


@dataclass(slots=True)
class PastSession:
    """One session: what it was opened with, and its invokes by their number."""

    opened: Row
    invokes: dict[int, PastInvoke] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        """The highest number of a model call."""
        return max((invoke.last_step for invoke in self.invokes.values()), default=0)


@dataclass(slots=True)
class PastPhase:
    """One phase. `ok`: it has ended well. The milliseconds are those of all processes so far, on the wall
    and on the phase's own clock, which stands still while a provider is down.
    """

    ok: bool = False
    wall_ms: float = 0.0
    clock_ms: float = 0.0
    checkpoint: int | None = None
    payload: Row = field(default_factory=dict)


@dataclass(slots=True)
class History:
    """The step log, read. `header` is its first line, `handle` the newest one of the box."""

    header: Row = field(default_factory=dict)
    started_at: str = ""
    handle: Row | None = None
    #: How often the attempt was continued already.
    resumed: int = 0
    phases: dict[str, PastPhase] = field(default_factory=dict)
    sessions: dict[str, PastSession] = field(default_factory=dict)
    #: The newest checkpoint that a line names.
    checkpoint: int | None = None
    #: A text of a model or an invoke was masked, so that it is not what was said.
    masked: bool = False

    def phase(self, name: str) -> PastPhase:
        """A phase, whether it had begun or not."""
        return self.phases.get(name) or PastPhase()

    def invokes(self) -> list[PastInvoke]:
        """All invokes, by the order of their sessions."""
        return [invoke for session in self.sessions.values() for invoke in session.invokes.values()]


def read_history(rows: Iterable[Row]) -> History:
    """Fold the lines of a log. Of what was begun several times the newest counts."""
    found = _Reader()
    for row in rows:
        found.take(row)
    found.end()
    return found.history


class _Reader:
    def __init__(self) -> None:
        self.history = History()
        self._invokes: dict[str, PastInvoke] = {}
        #: The phase that is running, when it began, and what it had used before.
        self._running: tuple[str, datetime, float, float] | None = None
        self._last: datetime | None = None

    def take(self, row: Row) -> None:
        payload, status, at = row["payload"], row["status"], _time(row["at"])
        kind = row["kind"]
        if kind == "attempt":
            self._attempt(row, payload)
        elif kind == "phase":
            self._phase(payload, status, at)
        elif kind == "session":
            session = self.history.sessions.setdefault(payload["session_id"], PastSession(payload))
            session.opened = payload
        elif kind == "invoke":
            self._invoke(row, payload, status, at)
        elif kind in ("model_turn", "tool_call"):
            invoke = self._invokes.get(payload["invoke_request_id"])
            if invoke is not None:
                _spend(invoke, at)
                (self._turn if kind == "model_turn" else self._call)(invoke, payload, status)
        checkpoint = payload.get("checkpoint_seq")
        if isinstance(checkpoint, int):
            self.history.checkpoint = max(checkpoint, self.history.checkpoint or 0)
        self._last = at

    def _attempt(self, row: Row, payload: Row) -> None:
        history = self.history
        if not history.header:
            history.header, history.started_at = payload, row["at"]
        self._cut()
        if payload.get("started_over"):
            history.sessions.clear()
            self._invokes.clear()
            for past in history.phases.values():
                past.ok, past.clock_ms = False, 0.0
        history.resumed = max(history.resumed, int(payload.get("resumed") or 0))
        if payload.get("environment_handle") is not None:
            history.handle = payload["environment_handle"]

    def _phase(self, payload: Row, status: str, at: datetime) -> None:
        name = payload["phase"]
        past = self.history.phases.setdefault(name, PastPhase())
        if status == "in_flight":
            self._cut()
            self._running = (name, at, past.wall_ms, past.clock_ms)
            return
        if self._running is not None and self._running[0] == name:
            self._running = None
        past.wall_ms = float(payload.get("elapsed_ms") or 0.0)
        past.clock_ms = float(payload.get("clock_ms") or past.wall_ms)
        ok = bool(payload.get("ok", name == "seal_run"))
        if past.ok and not ok:  # a process that went on was interrupted in a phase that had ended before
            return
        past.ok, past.payload = ok, payload
        past.checkpoint = payload.get("checkpoint_seq")

    def _cut(self) -> None:
        """The process was killed in the phase that was running: its time counts up to its last line."""
        if self._running is None or self._last is None:
            return
        name, begun, wall, clock = self._running
        spent = max(0.0, (self._last - begun).total_seconds() * 1000)
        past = self.history.phases[name]
        past.wall_ms, past.clock_ms = wall + spent, clock + spent
        self._running = None

    def _invoke(self, row: Row, payload: Row, status: str, at: datetime) -> None:
        request, session_id = row["request_id"], payload["session_id"]
        if status == "in_flight":
            earlier = self._invokes.get(request)
            if earlier is None or payload.get("fresh"):
                made = PastInvoke(request, session_id, int(payload["turn_index"]), payload)
                made.last_step = 0 if earlier is None else earlier.last_step
                self._invokes[request] = made
                session = self.history.sessions.setdefault(session_id, PastSession({}))
                made.seconds = 0.0 if earlier is None else earlier.seconds
                session.invokes[made.turn] = made
            else:
                earlier.begun, earlier.completed = payload, None
            now = self._invokes[request]
            now.since = at
            now.invocations = [*([] if earlier is None else earlier.invocations), now.invocation_id]
            return
        invoke = self._invokes.get(request)
        if invoke is not None:
            _spend(invoke, at)
        # A turn that was broken off with its process has come to nothing.
        if invoke is not None and not payload.get("cut"):
            invoke.completed = payload
            if payload.get("reply_digest") != digest(reply_of(payload)):
                self.history.masked = True

    def _turn(self, invoke: PastInvoke, payload: Row, status: str) -> None:
        invoke.last_step = max(invoke.last_step, int(payload.get("step_index") or 0))
        invoke.calling = status == "in_flight"
        answer = payload.get("answer")
        if status != "completed" or answer is None:
            return
        said = [payload["assistant_text"], payload["thought"], answer]
        if payload.get("answer_digest") != digest(said):
            self.history.masked = True
        invoke.answers.append(dict(payload))

    def _call(self, invoke: PastInvoke, payload: Row, status: str) -> None:
        call_id = payload["tool_call_id"]
        if status == "in_flight":
            invoke.started_calls[call_id] = payload
            return
        started = invoke.started_calls.pop(call_id, None)
        settled = status == "completed" and payload.get("outcome") != "interrupted"
        if started is None or not settled or payload.get("checkpoint_seq") is None:
            return
        if payload.get("content_digest") != digest([payload["content"], payload["raw_output"]]):
            self.history.masked = True
        invoke.calls.append({**payload, "arguments": started["arguments"]})

    def end(self) -> None:
        self._cut()


def reply_of(payload: Row) -> list[Any]:
    """What of an invoke's end run.py sees, and must see again."""
    return [payload.get("text"), payload.get("structured"), payload.get("tool_calls"), payload.get("error")]


def _spend(invoke: PastInvoke, at: datetime) -> None:
    if invoke.since is not None:
        invoke.seconds += max(0.0, (at - invoke.since).total_seconds())
    invoke.since = at


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
