"""The step log of an attempt (``ageval.activity/1``), on disk before an effect settles."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from typing import TYPE_CHECKING, Any, Literal

from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence.files import (
    clip,
    line_bytes,
    now,
    plain,
    read_jsonl,
    repair_tail,
    write_all,
)
from pytest_ageval.evidence.redact import Redactor
from pytest_ageval.executor import ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FORMAT = "ageval.activity/1"

Status = Literal["in_flight", "completed", "aborted"]

#: Characters of a tool's output or a partial answer that a line keeps. A whole answer is never cut.
OUTPUT_LIMIT = 1024 * 1024

_BOTH = frozenset({"in_flight", "completed"})
_STEP = frozenset({"in_flight", "completed", "aborted"})
_STATUSES: dict[str, frozenset[str]] = {
    "attempt": frozenset({"completed"}),
    "session": frozenset({"completed"}),
    "invoke": _BOTH,
    "model_turn": _STEP,
    "tool_call": _STEP,
    "compaction": _BOTH,
    "phase": _BOTH,
}

# The keys that a reader may rely on; what is not given is null.
_KEYS: dict[tuple[str, str], tuple[str, ...]] = {
    key: tuple(names.split())
    for key, names in {
        ("attempt", "completed"): (
            "run_id trial_id attempt_id task_id attempt_index suite_run_id locked_config_digest "
            "environment_kind environment_nonce environment_handle"
        ),
        ("session", "completed"): (
            "session_id profile_id actor_id environment executor_kind native_session_id"
        ),
        ("invoke", "in_flight"): (
            "session_id turn_index prompt tools_digest messages_digest explicit_messages"
        ),
        ("invoke", "completed"): (
            "session_id turn_index ok text structured tool_calls usage error checkpoint_seq"
        ),
        ("model_turn", "in_flight"): (
            "session_id invoke_request_id step_index delta_messages system_section_deltas"
        ),
        ("model_turn", "completed"): (
            "session_id invoke_request_id step_index assistant_text thought tool_calls usage stop_reason"
        ),
        ("model_turn", "aborted"): (
            "session_id invoke_request_id step_index partial_text partial_thought reason"
        ),
        ("tool_call", "in_flight"): (
            "session_id invoke_request_id tool_call_id tool_name tool_kind arguments replay_safe "
            "system_effect timeout_sec deadline_utc"
        ),
        ("tool_call", "completed"): (
            "session_id invoke_request_id tool_call_id outcome exit_code content stderr raw_output "
            "checkpoint_seq"
        ),
        ("tool_call", "aborted"): "session_id invoke_request_id tool_call_id reason",
        ("compaction", "in_flight"): "session_id invoke_request_id source",
        ("compaction", "completed"): (
            "session_id invoke_request_id source replaces_through_seq summary_messages "
            "native_journal_rel usage checkpoint_seq"
        ),
        ("phase", "in_flight"): "phase",
        ("phase", "completed"): "phase elapsed_ms limit_reached checkpoint_seq",
    }.items()
}


def digest(value: Any) -> str | None:
    """A fingerprint of JSON data, by which a resumed run recognises it; None of None."""
    if value is None:
        return None
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()}"


class ActivityLog:
    """Appends to one log. Every method may be called from any thread.

    Opening an existing log cuts off a torn last line and goes on after its last number. With `sync`
    ``line`` a line is on the disk when `append` returns; with ``none`` it survives the end of this
    process, but not of the machine.
    """

    def __init__(
        self,
        path: Path,
        redactor: Redactor | None = None,
        *,
        sync: Literal["line", "none"] = "line",
    ) -> None:
        self.path = path
        self._redactor = redactor or Redactor()
        self._sync = sync == "line"
        self._lock = threading.Lock()
        self._seq = 0
        if path.exists():
            repair_tail(path)
            rows = read_activity(path)
            self._seq = len(rows)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor: int | None = os.open(path, flags, 0o644)

    @property
    def seq(self) -> int:
        """The number of the last line; 0 when there is none."""
        return self._seq

    def append(
        self, kind: str, status: str, request_id: str, payload: Mapping[str, Any] | None = None
    ) -> int:
        """Write one line and return its number.

        Secrets in `payload` are masked; keys of the format that it lacks are written as null.
        Raises ValueError for a kind or status that the format does not have, and `AgevalError`
        ``evidence_closed`` after `close`.
        """
        if status not in _STATUSES.get(kind, ()):
            raise ValueError(f"the activity log has no {kind!r} with status {status!r}")
        body = dict.fromkeys(_KEYS[kind, status])
        body.update(self._redactor.value(plain(payload or {})))
        row = {
            "at": now(),
            "format": FORMAT,
            "kind": kind,
            "payload": body,
            "request_id": self._redactor.text(request_id),
            "seq": 0,
            "status": status,
        }
        with self._lock:
            if self._descriptor is None:
                raise AgevalError("evidence_closed", f"{self.path.name} is closed")
            row["seq"] = self._seq + 1
            write_all(self._descriptor, line_bytes(row))
            self._seq += 1
            if self._sync:
                os.fsync(self._descriptor)
            return self._seq

    def scope(self, session_id: str, request_id: str) -> Scope:
        """The step log of one invoke, as an executor uses it."""
        return Scope(self, session_id, request_id)

    def close(self) -> None:
        """Stop writing. Idempotent."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


class Scope:
    """Implements `pytest_ageval.executor.ActivityScope` on an `ActivityLog`."""

    def __init__(self, log: ActivityLog, session_id: str, request_id: str) -> None:
        self._log = log
        self._session_id = session_id
        self._request_id = request_id

    def _append(self, kind: str, status: Status, request_id: str, **payload: Any) -> None:
        self._log.append(
            kind,
            status,
            request_id,
            {"session_id": self._session_id, "invoke_request_id": self._request_id, **payload},
        )

    def _turn(self, step: int) -> str:
        return f"mt_{self._request_id}_{step}"

    def _tool(self, tool_call_id: str) -> str:
        return f"tool_{self._session_id}_{tool_call_id}"

    def model_turn_started(self, step: int, *, delta_messages: Sequence[Mapping[str, Any]]) -> None:
        """A model call is about to be sent."""
        self._append(
            "model_turn",
            "in_flight",
            self._turn(step),
            step_index=step,
            delta_messages=list(delta_messages),
        )

    def model_turn_completed(
        self,
        step: int,
        *,
        text: str,
        thought: str = "",
        tool_calls: Sequence[ToolCall] = (),
        usage: Usage | None = None,
        stop_reason: str | None = None,
        answer: Mapping[str, Any] | None = None,
    ) -> None:
        """The model's answer has arrived whole."""
        calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in tool_calls]
        more = {} if answer is None else {"answer": plain(answer), "answer_digest": None}
        if answer is not None:  # of what it is before secrets are masked in it
            more["answer_digest"] = digest([text, thought or None, more["answer"]])
        self._append(
            "model_turn",
            "completed",
            self._turn(step),
            step_index=step,
            assistant_text=text,
            thought=thought or None,
            tool_calls=calls,
            usage=(usage or Usage(unavailable="not_reported")).as_dict(),
            stop_reason=stop_reason,
            **more,
        )

    def model_turn_aborted(self, step: int, *, reason: str, partial_text: str = "") -> None:
        """The model call ended without a whole answer."""
        self._append(
            "model_turn",
            "aborted",
            self._turn(step),
            step_index=step,
            reason=reason,
            partial_text=clip(partial_text, OUTPUT_LIMIT),
        )

    def tool_call_started(
        self,
        tool_call_id: str,
        *,
        name: str,
        kind: str | None = None,
        arguments: Any = None,
        replay_safe: bool = False,
    ) -> None:
        """A tool is about to take effect."""
        self._append(
            "tool_call",
            "in_flight",
            self._tool(tool_call_id),
            tool_call_id=tool_call_id,
            tool_name=name,
            tool_kind=kind,
            arguments=arguments,
            replay_safe=replay_safe,
        )

    def tool_call_completed(
        self,
        tool_call_id: str,
        *,
        outcome: Literal["ok", "error", "interrupted"],
        content: str = "",
        exit_code: int | None = None,
        raw_output: Any = None,
        checkpoint: int | None = None,
    ) -> None:
        """The tool's effect has settled."""
        content = clip(content, OUTPUT_LIMIT)
        self._append(
            "tool_call",
            "completed",
            self._tool(tool_call_id),
            tool_call_id=tool_call_id,
            outcome=outcome,
            content=content,
            exit_code=exit_code,
            raw_output=raw_output,
            checkpoint_seq=checkpoint,
            content_digest=None if checkpoint is None else digest([content, plain(raw_output)]),
        )


def read_activity(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; a torn last line is left out.

    Raises `AgevalError` ``activity_log_corrupt`` for a line that is not of the format, or a number
    that is not the next one.
    """
    rows = read_jsonl(path, broken="activity_log_corrupt")
    for number, row in enumerate(rows, start=1):
        if row.get("seq") != number or row.get("format") != FORMAT:
            raise AgevalError(
                "activity_log_corrupt",
                f"{path.name} line {number}: expected {FORMAT} with seq {number}, "
                f"found {row.get('format')!r} with seq {row.get('seq')!r}",
            )
    return rows
