"""One invoke of one agent, recorded while it happens."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from pytest_ageval.evidence import trajectory
from pytest_ageval.evidence.files import clip, document_bytes, line_bytes, now, plain, write_atomic
from pytest_ageval.evidence.layout import (
    INVOCATION_EVENTS,
    INVOCATION_METADATA,
    INVOCATION_RESPONSE,
    Surface,
)
from pytest_ageval.evidence.usage import FIGURES, has_figures
from pytest_ageval.executor import AgentResult, AgentStatus, Event, Usage

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_ageval.evidence.redact import Redactor, StreamRedactor

METADATA_SCHEMA = "ageval.trajectory.metadata/1"
EVENT_SCHEMA = "ageval.trajectory.event/1"

#: Bytes of events that one invocation keeps, and characters of one string in an event.
EVENTS_LIMIT = 20 * 1000 * 1000
STRING_LIMIT = 256 * 1024

# Text of one channel is gathered this long, or to this length, before it becomes a line.
_GATHER_SECONDS = 1.0
_GATHER_CHARS = 16 * 1024
# JSON text that a model wrote is parsed up to this length.
_STRUCTURED_LIMIT = 4 * 1024 * 1024

#: Adds the cost to a usage, of a role (profile id) with a model: the ``usage`` object of evidence rows.
Pricer = Callable[[Usage, str, str | None], dict[str, Any]]

_STATUS: dict[AgentStatus, str] = {
    "timeout": "timeout",
    "cancelled": "cancelled",
    "crashed": "crash",
}


@dataclass(frozen=True, slots=True)
class InvocationInfo:
    """What is known of an invocation before it begins.

    `seq` counts the invocations of one surface of the attempt from 1, `turn` those of the session.
    """

    seq: int
    invocation_id: str
    attempt_id: str
    profile_id: str
    session_id: str
    executor_kind: str
    surface: Surface
    prompt: str
    model: str | None = None
    request_id: str | None = None
    turn: int = 1


def structured(text: str) -> dict[str, Any] | None:
    """The object that `text` is, when all of it is one JSON object."""
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")) or len(text) > _STRUCTURED_LIMIT:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _clipped(value: Any) -> Any:
    if isinstance(value, str):
        return clip(value, STRING_LIMIT)
    if isinstance(value, dict):
        return {key: _clipped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clipped(item) for item in value]
    return value


class _Channel:
    """One stream of text on its way into the file."""

    def __init__(self, redactor: StreamRedactor) -> None:
        self.redactor = redactor
        self.ready: list[str] = []
        self.size = 0
        self.since = 0.0
        self.at = ""


class InvocationRecord:
    """Records one invocation into its directory. `emit` may be called from any thread.

    The events are kept in memory too (bounded by `limit` bytes), so that `payload` can redact a
    channel's text as a whole, and each event stands where it happened.
    """

    def __init__(
        self,
        info: InvocationInfo,
        directory: Path,
        redactor: Redactor,
        *,
        limit: int = EVENTS_LIMIT,
        price: Pricer | None = None,
        fresh: bool = True,
    ) -> None:
        self.info = info
        self._price = price
        self._priced: tuple[tuple[Usage, str | None], dict[str, Any]] | None = None
        self.directory = directory
        self.result: AgentResult | None = None
        self._redactor = redactor
        self._limit = limit
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self._burst: dict[str, Any] | None = None
        self._channels: dict[str, _Channel] = {}
        self._file: BinaryIO | None = None
        self._size = 0
        self._written = 0
        self._dropped_events = 0
        self._dropped_bytes = 0
        self._usage: Usage | None = None
        self._elapsed_ms: float | None = None
        self._started_at = now()
        self._finished_at: str | None = None
        self._recalled = not fresh
        if fresh:
            directory.mkdir(parents=True, exist_ok=True)
            self._write(INVOCATION_METADATA, self._metadata_document("running"), sync=False)

    @classmethod
    def again(
        cls,
        info: InvocationInfo,
        directory: Path,
        redactor: Redactor,
        metadata: Mapping[str, Any],
        events: Sequence[Mapping[str, Any]],
        result: AgentResult,
        price: Pricer | None,
    ) -> InvocationRecord:
        """One that another process made, with its events and what it came to."""
        made = cls(info, directory, redactor, price=price, fresh=False)
        made._started_at = str(metadata.get("started_at") or made._started_at)
        made._finished_at = str(metadata.get("finished_at") or now())
        made._elapsed_ms = metadata.get("latency_ms")
        made._written = len(events)
        for event in events:
            row = {key: value for key, value in event.items() if key not in ("schema", "seq")}
            made._size += len(line_bytes(row))
            made._events.append(row)
            if row.get("kind") == "usage":
                made._note_usage(row)
        made.result = result
        if metadata.get("status") == "running":  # it never ended
            made._write(INVOCATION_METADATA, made._metadata_document(made.status), sync=False)
        return made

    def has_result_of(self, tool_call_id: str) -> bool:
        """Another process has told already what a tool call came to."""
        return self._recalled and any(
            event.get("kind") == "tool"
            and event.get("tool_call_id") == tool_call_id
            and event.get("source") == "ageval"
            for event in self._events
        )

    # -- while it runs ---------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Record one neutral event. What arrives after `finish` is marked ``late``."""
        made = plain(event)
        made.setdefault("at", now())
        made.setdefault("session_id", self.info.session_id)
        with self._lock:
            if self._finished_at is not None:
                made["late"] = True
            if made.get("kind") == "text" and isinstance(made.get("text"), str):
                self._text(made)
            else:
                self._other(made)
            if self._finished_at is not None:
                self._end_file()

    def _room(self, size: int) -> bool:
        if self._dropped_events or self._size + size > self._limit:
            self._dropped_events += 1
            self._dropped_bytes += size
            return False
        self._size += size
        return True

    def _text(self, event: dict[str, Any]) -> None:
        text, channel = event["text"], str(event.get("channel"))
        size = len(text.encode("utf-8", "replace"))
        if not size or not self._room(size):
            return
        burst = self._burst
        if burst is None or burst["channel"] != channel or burst.get("late") != event.get("late"):
            burst = self._burst = {**event, "channel": channel, "text": "", "parts": []}
            self._events.append(burst)
        burst["parts"].append(text)
        burst["ended_at"] = event.get("ended_at") or event["at"]
        stream = self._channels.get(channel)
        if stream is None:
            stream = self._channels[channel] = _Channel(self._redactor.stream())
        for other in self._channels.values():
            if other is not stream:
                self._drain(channel=other)
        shown = stream.redactor.feed(text)
        if shown:
            if not stream.ready:
                stream.since, stream.at = time.monotonic(), event["at"]
            stream.ready.append(shown)
            stream.size += len(shown)
        waited = stream.ready and time.monotonic() - stream.since >= _GATHER_SECONDS
        if stream.size >= _GATHER_CHARS or waited:
            self._drain(channel=stream)

    def _other(self, event: dict[str, Any]) -> None:
        kind = event.get("kind")
        if kind == "usage":
            self._note_usage(event)
        event = _clipped(self._redactor.value(event))
        line = line_bytes(event)
        if not self._room(len(line)):
            return
        if kind in ("tool", "permission"):
            self._burst = None  # what is said next is said after it
        self._drain()
        self._events.append(event)
        self._append(event)

    def _drain(self, *, channel: _Channel | None = None) -> None:
        """Write the text that is ready, of one channel or of all."""
        for name, stream in self._channels.items():
            if stream.ready and channel in (None, stream):
                text = "".join(stream.ready)
                stream.ready, stream.size = [], 0
                self._append({"kind": "text", "channel": name, "text": text, "at": stream.at})

    def _append(self, event: dict[str, Any]) -> None:
        if self._file is None:
            self._file = (self.directory / INVOCATION_EVENTS).open("ab", buffering=0)
        self._written += 1
        self._file.write(line_bytes({**event, "schema": EVENT_SCHEMA, "seq": self._written}))

    def _note_usage(self, event: Mapping[str, Any]) -> None:
        """Keep figures that arrive on the way: they are all there is when the agent never ends."""
        if event.get("cumulative") and self.info.turn > 1:
            return  # counts earlier turns too: it says nothing of this one alone
        inner = event.get("usage")
        found = inner if isinstance(inner, Mapping) else event
        known = {
            name: found[name]
            for name in FIGURES
            if isinstance(found.get(name), (int, float)) and not isinstance(found[name], bool)
        }
        if not known:
            return
        earlier = self._usage
        if earlier is not None and event.get("cumulative") is False:
            known = {
                name: known.get(name, 0) + (getattr(earlier, name) or 0)
                for name in FIGURES
                if name in known or getattr(earlier, name) is not None
            }
        self._usage = Usage(**known, source=event.get("source"), unavailable="partial")

    # -- when it has ended -----------------------------------------------------------------------

    def finish(self, result: AgentResult, elapsed_ms: float) -> None:
        """The invocation has come to `result`. A second call does nothing."""
        with self._lock:
            if self._finished_at is not None:
                return
            self.result = result
            self._elapsed_ms = round(float(elapsed_ms), 3)
            self._finished_at = now()
            self._end_file()
            if self._dropped_events:
                self._append(self._truncated())
                self.close()
            if result.ok:
                answer = {
                    "content": result.text,
                    "structured_output": structured(result.text),
                    "usage": self.usage_row,
                }
                self._write(INVOCATION_RESPONSE, answer)
            self._write(INVOCATION_METADATA, self._metadata_document(self.status))

    def _end_file(self) -> None:
        for stream in self._channels.values():
            rest = stream.redactor.flush()
            if rest:
                stream.at = stream.at or now()
                stream.ready.append(rest)
        self._drain()
        self.close()

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _truncated(self) -> dict[str, Any]:
        return {
            "kind": "truncated",
            "dropped_events": self._dropped_events,
            "dropped_bytes": self._dropped_bytes,
        }

    @property
    def usage(self) -> Usage:
        """What the result says; if nothing, what was heard on the way (``partial``)."""
        if self.result is None:
            return self._usage or Usage(unavailable="not_reported")
        return self.usage_with(self.result)

    def usage_with(self, result: AgentResult) -> Usage:
        """`usage` if the invocation comes to `result`."""
        said = result.usage
        if has_figures(said):
            return said
        if self._usage is not None and said.unavailable != "ambiguous":
            return self._usage
        return said if said.unavailable else Usage(unavailable="not_reported")

    @property
    def model(self) -> str | None:
        """The model that answered, or else the one that was asked."""
        return (self.result.model if self.result else None) or self.info.model

    @property
    def usage_row(self) -> dict[str, Any]:
        """`usage` with its cost, as it stands in the evidence."""
        usage, model = self.usage, self.model
        if self._price is None:
            return usage.as_dict()
        if self._priced is None or self._priced[0] != (usage, model):
            self._priced = (usage, model), self._price(usage, self.info.profile_id, model)
        return dict(self._priced[1])

    @property
    def status(self) -> str:
        """``running``, ``completed``, ``failed``, ``timeout``, ``cancelled`` or ``crash``."""
        if self.result is None:
            return "running"
        if self.result.ok:
            return "completed"
        return _STATUS.get(self.result.status, "failed")

    def _metadata_document(self, status: str) -> dict[str, Any]:
        info, result = self.info, self.result
        made: dict[str, Any] = {
            "schema": METADATA_SCHEMA,
            "invocation_id": info.invocation_id,
            "attempt_id": info.attempt_id,
            "profile_id": info.profile_id,
            "session_id": info.session_id,
            "request_id": info.request_id,
            "executor_kind": info.executor_kind,
            "model": self.model,
            "seq": info.seq,
            "turn": info.turn,
            "started_at": self._started_at,
            "finished_at": self._finished_at,
            "status": status,
            "latency_ms": self._elapsed_ms,
            "error": result.error if result else None,
            "event_schema": EVENT_SCHEMA,
            "event_count": self._written,
            "surface": "agent" if info.surface == "run" else "evaluate",
        }
        if result is not None:
            made["executor_metadata"] = dict(result.metadata)
            made["stop_reason"] = result.stop_reason
            made["agent_status"] = result.status
            made["usage"] = self.usage_row
        return made

    def _write(self, name: str, document: Mapping[str, Any], *, sync: bool = True) -> None:
        data = document_bytes(self._redactor.value(plain(document)))
        write_atomic(self.directory / name, data, sync=sync)

    # -- for the trajectory ----------------------------------------------------------------------

    def payload(self) -> dict[str, Any]:
        """The invocation as the ``trajectory_collect`` hooks get it: JSON types, without secrets.

        Keys: ``prompt events final_text usage ok error metadata extra structured``. Also for an
        invocation that never finished: then it is not ok and its error is ``not_finished``.
        """
        with self._lock:
            events = self._redacted_events()
            if self._dropped_events:
                events.append(self._truncated())
        info, result = self.info, self.result
        text = result.text if result else ""
        metadata = dict(result.metadata) if result else {}
        extra = metadata.pop("extra", None)
        metadata |= {
            "invocation_id": info.invocation_id,
            "profile_id": info.profile_id,
            "executor_kind": info.executor_kind,
            "model": self.model,
            "turn_index": info.seq,
            "turn": info.turn,
            "request_id": info.request_id,
            "status": self.status,
            "latency_ms": self._elapsed_ms,
            "stop_reason": result.stop_reason if result else None,
            "agent_status": result.status if result else "crashed",
        }
        found = {
            "prompt": info.prompt,
            "final_text": text,
            "usage": self.usage_row,
            "ok": bool(result and result.ok),
            "error": result.error if result else "not_finished",
            "metadata": metadata,
            "extra": extra,
            "structured": structured(text),
        }
        redacted: dict[str, Any] = self._redactor.value(plain(found))
        redacted["events"] = events
        return redacted

    def _redacted_events(self) -> list[dict[str, Any]]:
        """The events, each channel's text redacted over the borders of its bursts."""
        bursts: dict[str, list[dict[str, Any]]] = {}
        made: list[dict[str, Any]] = []
        for event in self._events:
            if "parts" not in event:
                made.append(event)
                continue
            copy = {key: value for key, value in event.items() if key != "parts"}
            copy["text"] = "".join(event["parts"])
            bursts.setdefault(copy["channel"], []).append(copy)
            made.append(copy)
        for group in bursts.values():
            texts = self._redactor.segments([event["text"] for event in group])
            for event, text in zip(group, texts, strict=True):
                event["text"] = text
        return made

    def rows(self, payload: Mapping[str, Any]) -> list[trajectory.Row]:
        """The trajectory rows of `payload`. A judge's prompt is left out: it may hold gold."""
        return trajectory.rows(
            payload,
            session_id=self.info.session_id,
            profile_id=self.info.profile_id,
            turn_index=self.info.seq,
            include_user=self.info.surface == "run",
        )
