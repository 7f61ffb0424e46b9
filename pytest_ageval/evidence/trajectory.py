"""The rows of trajectory.jsonl: what one invocation was asked, said, did, and came to."""

from __future__ import annotations

import json
import math
import shlex
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.evidence.files import clip, read_jsonl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Row = dict[str, Any]

#: Who wrote a row that no executor wrote.
OURS = "ageval"

_TAIL_BYTES = 1024 * 1024
_LINE_LIMIT = 600
_SETTLED = frozenset({"completed", "failed"})


def rows(
    payload: Mapping[str, Any],
    *,
    session_id: str | None,
    profile_id: str,
    turn_index: int,
    include_user: bool = True,
) -> list[Row]:
    """The rows of one invocation, from its payload (see `InvocationRecord.payload`).

    `turn_index` is the number of the invocation in the attempt, from 1. Every row has session and
    profile. Rows stand in the order in which things happened; a tool's call and its result stand
    together where the call began. Events of an unknown kind become rows of the type ``unknown``.
    """
    metadata = payload.get("metadata") or {}
    common = {"turn_index": turn_index, "session_id": session_id, "profile_id": profile_id}
    fold = _Fold(common, str(metadata.get("executor_kind") or OURS))
    if include_user:
        fold.row("turn", source=OURS, role="user", content=payload.get("prompt") or "")
    for event in payload.get("events") or ():
        fold.event(event)
    fold.answer(payload.get("final_text") or "", ok=bool(payload.get("ok")))
    fold.rows.append(_terminal(payload, metadata, common))
    return fold.rows


def _terminal(payload: Mapping[str, Any], metadata: Mapping[str, Any], common: Row) -> Row:
    usage = payload.get("usage")
    row: Row = {
        "type": "terminal",
        "ok": bool(payload.get("ok")),
        "error": payload.get("error"),
        "structured": payload.get("structured"),
        # Never null: that nothing is known has a reason.
        "usage": dict(usage) if usage else {"unavailable": "not_reported"},
        "stop_reason": metadata.get("stop_reason"),
        "metadata": dict(metadata),
        "source": OURS,
        **common,
    }
    if payload.get("extra"):
        row["extra"] = payload["extra"]
    elapsed = _milliseconds(metadata.get("latency_ms"))
    if elapsed is not None:
        row["elapsed_ms"] = elapsed
    return row


class _Fold:
    """Folds events into rows."""

    def __init__(self, common: Row, producer: str) -> None:
        self.rows: list[Row] = []
        self._common = common
        self._producer = producer
        self._burst: Row | None = None
        self._parts: list[str] = []
        self._said: list[str] = []
        self._tools: dict[str, _Tool] = {}

    def row(self, kind: str, *, source: str | None = None, **found: Any) -> Row:
        made: Row = {
            "type": kind,
            **{key: value for key, value in found.items() if value is not None},
            "source": source or self._producer,
            **self._common,
        }
        self.rows.append(made)
        return made

    def event(self, event: Mapping[str, Any]) -> None:
        kind = event.get("kind")
        if kind == "text" and event.get("channel") in ("thought", "assistant"):
            self._text(event)
        elif kind == "tool" and event.get("tool_call_id"):
            self._tool(event)
        elif kind == "permission":
            self._end_burst()
            names = ("outcome", "option_id", "policy", "options", "tool_call_id", "late")
            self.row(
                "permission_decision",
                source=event.get("source"),
                **{name: event.get(name) for name in names},
            )
        elif kind == "truncated":
            self._end_burst()
            dropped = {key: value for key, value in event.items() if key.startswith("dropped_")}
            self.row("truncated", source=OURS, **dropped)
        elif kind != "usage":  # the figures are in the terminal row
            raw = event.get("raw") if kind == "opaque" and "raw" in event else dict(event)
            self.row("unknown", source=event.get("source"), raw=raw, late=event.get("late"))

    def _text(self, event: Mapping[str, Any]) -> None:
        thought = event["channel"] == "thought"
        same = self._burst is not None and (self._burst.get("part") == "thought") == thought
        if not same or (self._burst or {}).get("late") != event.get("late"):
            self._end_burst()
        if self._burst is None:
            self._burst = self.row(
                "turn",
                source=event.get("source"),
                role="assistant",
                part="thought" if thought else None,
                content="",
                late=event.get("late"),
                started_at=event.get("started_at") or event.get("at"),
            )
        self._parts.append(str(event.get("text") or ""))
        ended = event.get("ended_at") or event.get("at")
        if ended:
            self._burst["ended_at"] = ended

    def _end_burst(self) -> None:
        burst, self._burst = self._burst, None
        if burst is None:
            return
        burst["content"] = "".join(self._parts)
        self._parts = []
        if not burst["content"]:
            self.rows[:] = [row for row in self.rows if row is not burst]
            return
        _elapse(burst)
        if "part" not in burst:
            self._said.append(burst["content"])

    def _tool(self, event: Mapping[str, Any]) -> None:
        self._end_burst()
        call_id = str(event["tool_call_id"])
        tool = self._tools.get(call_id)
        if tool is None:
            call = self.row("tool_call", source=event.get("source"), tool_call_id=call_id)
            tool = self._tools[call_id] = _Tool(call)
        tool.merge(event)

    def answer(self, final: str, *, ok: bool) -> None:
        """End with the final text, unless the events said it already."""
        self._end_burst()
        for tool in self._tools.values():
            observation = tool.finish(self._producer, self._common)
            if observation is not None:
                at = next(i for i, row in enumerate(self.rows) if row is tool.call)
                self.rows.insert(at + 1, observation)
        said = {text.strip() for text in (*self._said[-1:], "".join(self._said))}
        if final.strip():
            if final.strip() not in said:
                self.row("turn", role="assistant", content=final)
        elif ok and not self._said and not self._tools:
            self.row("turn", role="assistant", content="")


class _Tool:
    """One tool call, merged from its updates."""

    def __init__(self, call: Row) -> None:
        self.call = call
        self._content: list[str] = []
        self._output: Any = None
        self._source: str | None = None

    def merge(self, event: Mapping[str, Any]) -> None:
        call = self.call
        names = {"function_name": "function_name", "tool_kind": "kind", "status": "status"}
        for name, key in names.items():
            if event.get(name) is not None:
                call[key] = str(event[name])
        title = event.get("title")
        if title and len(str(title)) >= len(call.get("title", "")):
            call["title"] = str(title)
        arguments = event.get("args")
        if arguments is not None:
            call["args"] = arguments if isinstance(arguments, dict) else {"value": arguments}
        if event.get("raw_output") is not None:
            self._output = event["raw_output"]
        if event.get("late"):
            call["late"] = True
        self._source = event.get("source") or self._source
        content = event.get("content")
        if content:
            self._add(content if isinstance(content, str) else json.dumps(content, default=str))
        started = event.get("started_at") or event.get("at")
        if started:
            call.setdefault("started_at", started)
        ended = event.get("ended_at") or event.get("at")
        if ended:
            call["ended_at"] = ended
        elapsed = _milliseconds(event.get("elapsed_ms"))
        if elapsed is not None:
            call["elapsed_ms"] = elapsed

    def _add(self, content: str) -> None:
        """Some agents send what is new, others all so far."""
        last = self._content[-1] if self._content else ""
        if last and content.startswith(last):
            self._content[-1] = content
        elif not last or not last.endswith(content):
            self._content.append(content)

    def finish(self, producer: str, common: Row) -> Row | None:
        call = self.call
        call.setdefault("args", {})
        if call.get("function_name", "tool") == "tool":
            kind, title = call.get("kind"), str(call.get("title", "")).strip()
            named = kind if kind not in (None, "", "other") else None
            call["function_name"] = named or (title.splitlines()[0] if title else "tool")
        _elapse(call)
        settled = str(call.get("status", "")).lower() in _SETTLED
        if not self._content and self._output is None and not settled:
            return None
        row: Row = {
            "type": "observation",
            "tool_call_id": call["tool_call_id"],
            "source": self._source or producer,
            **common,
        }
        if self._content:
            row["content"] = "\n\n".join(self._content)
        if self._output is not None:
            row["raw_output"] = self._output
        for key in ("status", "started_at", "ended_at", "elapsed_ms", "late"):
            if key in call:
                row[key] = call[key]
        return row


def _milliseconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _elapse(row: Row) -> None:
    """Set ``elapsed_ms`` from the stamps, when no one measured it."""
    if "elapsed_ms" in row or "started_at" not in row or "ended_at" not in row:
        return
    try:
        begun, ended = (datetime.fromisoformat(row[key]) for key in ("started_at", "ended_at"))
        row["elapsed_ms"] = max((ended - begun).total_seconds() * 1000, 0.0)
    except (TypeError, ValueError):
        return  # a stamp of the agent's own making


def _tail_rows(path: Path) -> list[Row]:
    """The last rows of a file, which may be large."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return []
    if size <= _TAIL_BYTES:
        return read_jsonl(path)
    with path.open("rb") as stream:
        stream.seek(size - _TAIL_BYTES)
        lines = stream.read(_TAIL_BYTES).split(b"\n")[1:-1]
    return [json.loads(line) for line in lines] or read_jsonl(path)


def tail_text(source: Path | Sequence[Mapping[str, Any]], max_chars: int = 4000) -> str:
    """The end of a trajectory as text for people, in at most `max_chars` characters."""
    found = _tail_rows(source) if isinstance(source, Path) else list(source)
    lines: list[str] = []
    left = max_chars
    results: dict[str, Mapping[str, Any]] = {}
    for row in reversed(found):
        if row.get("type") == "observation":
            results[str(row.get("tool_call_id"))] = row
            continue
        line = _line(row, results)
        if not line:
            continue
        if len(line) + 1 > left:
            if not lines:
                lines.append(clip(line, max(max_chars - 60, 2)))
            break
        left -= len(line) + 1
        lines.append(line)
    return "\n".join(reversed(lines))


def _line(row: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> str:
    kind = row.get("type")
    if kind == "turn":
        who = row.get("part") or row.get("role")
        return f"{who}: {clip(str(row.get('content') or '').strip() or '(no text)', _LINE_LIMIT)}"
    if kind == "tool_call":
        result = results.get(str(row.get("tool_call_id")), {})
        output = clip(tool_output(result), _LINE_LIMIT // 2)
        text = tool_words(row, result)
        return f"{text}\n{_indented(output)}" if output else text
    if kind == "permission_decision":
        return f"permission: {row.get('outcome')} {row.get('option_id') or ''}".rstrip()
    if kind == "truncated":
        return f"[{row.get('dropped_events')} events left out: too much output]"
    if kind == "terminal" and not row.get("ok"):
        return f"ended: {row.get('error') or row.get('stop_reason') or 'not ok'}"
    return ""


def tool_words(call: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """``tool execute: make test -> ok``: a call in one line, which is cut at the end of the command."""
    status = str(result.get("status") or call.get("status") or "no result")
    name = str(call.get("function_name"))
    what = tool_command(call) or str(call.get("title") or "")
    if what and what != name:
        text = f"tool {name}: {_start(what)}"
    else:
        text = f"tool {name}({_start(json.dumps(call.get('args') or {}, ensure_ascii=False, default=str))})"
    return f"{text} -> {'ok' if status == 'completed' else status}"


def _start(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LINE_LIMIT // 2 else f"{flat[: _LINE_LIMIT // 2]}..."


def tool_command(call: Mapping[str, Any]) -> str:
    """The command line of a call that has one, without the shell that it is handed to; else empty."""
    args = call.get("args") or {}
    found = args.get("command") or args.get("cmd") or ""
    if isinstance(found, str):
        return found
    words = [str(word) for word in found] if isinstance(found, list) else []
    shell = len(words) == 3 and words[1] in ("-c", "-lc")
    return words[2] if shell else shlex.join(words)


def tool_output(result: Mapping[str, Any]) -> str:
    """What a tool gave back, without the fence that some agents put around it."""
    text = str(result.get("content") or "").strip()
    head, _, body = text.partition("\n")
    fenced = head.startswith("```") and body.endswith("```")
    return body.removesuffix("```").strip() if fenced else text


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def flatten(turns: Iterable[Iterable[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    """The rows of all turns, in order."""
    return [row for turn in turns for row in turn]
