"""One prompt turn: the agent's updates become neutral events, steps, and the answer's text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pytest_ageval.box import clip

if TYPE_CHECKING:
    import re

    from ageval_executors.acp.permissions import Decision
    from ageval_executors.acp.usage import UsageTracker
    from pytest_ageval.executor import ActivityScope, Event, Usage

#: Tool kinds that only look; a turn of these alone can be repeated.
READ_KINDS = frozenset({"read", "search", "think", "fetch"})
#: Bytes of one tool result, argument set or unknown update that go into an event.
EVENT_LIMIT = 256 * 1024
#: Characters of one stretch of text that become one event.
TEXT_EVENT = 4096
#: Characters of the answer that are kept.
TEXT_LIMIT = 8 * 1024 * 1024
#: Bytes of arguments and results that a turn keeps of its tools, and that go into the step log whole. Beyond
#: them the oldest ones, and what is logged later, are cut to `BRIEF` characters each. (Events stay whole.)
TOOLS_LIMIT = 4 * 1024 * 1024
BRIEF = 512
#: Tools of one turn that are followed one by one; further ones are passed on as opaque events.
MAX_TOOLS = 10_000

_CHANNELS: dict[str, Literal["assistant", "thought"]] = {
    "agent_message_chunk": "assistant",
    "agent_thought_chunk": "thought",
}
_KNOWN = frozenset(
    {
        "user_message_chunk",
        "plan",
        "available_commands_update",
        "current_mode_update",
        "config_option_update",
        "session_info_update",
    }
)


@dataclass(slots=True)
class Tool:
    """What is known of one of the agent's own tool calls."""

    id: str
    title: str = ""
    kind: str | None = None
    name: str | None = None
    args: Any = None
    content: str = ""
    raw_output: Any = None
    status: str = "pending"
    started: bool = False
    announced: bool = False
    settled: bool = False

    @property
    def label(self) -> str:
        """A name for people and rows."""
        return self.name or self.kind or self.title or "tool"

    def abbreviate(self) -> None:
        """Keep little of what may be long."""
        self.args = bounded(self.args, BRIEF + 1, BRIEF)
        self.content = clip(self.content.encode("utf-8", "replace"), BRIEF)[0]
        self.raw_output = bounded(self.raw_output, BRIEF + 1, BRIEF)


class Turn:
    """Collects one turn. All methods are called from the event loop, in the agent's order."""

    def __init__(
        self,
        prompt: str,
        activity: ActivityScope,
        emit: Callable[[Event], None],
        usage: UsageTracker,
        notice: re.Pattern[str] | None = None,
    ) -> None:
        self.usage = usage
        self.tools: dict[str, Tool] = {}
        #: Of tools whose arguments and results are kept whole: bytes of their longest line.
        self._whole: dict[str, int] = {}
        self._kept = 0
        self._logged = 0
        self.updates = 0
        self.late_updates = 0
        self.unknown_kinds: dict[str, int] = {}
        self.agent_failure: str | None = None
        self.text_truncated = False
        self.late = False
        self._notice = notice
        self._activity = activity
        self._emit_raw = emit
        # UTF-8, and not a list of chunks: a chunk of a few characters takes ten times its length.
        self._text = {"assistant": bytearray(), "thought": bytearray()}
        self._length = 0
        self._open_text: list[str] = []
        self._open_channel: str | None = None
        self._open_length = 0
        usage.start()
        activity.model_turn_started(1, delta_messages=[{"role": "user", "content": prompt}])

    @property
    def text(self) -> str:
        """The agent's message, all chunks of the turn joined."""
        return self._text["assistant"].decode("utf-8", "surrogatepass")

    @property
    def thought(self) -> str:
        """The agent's thoughts, joined."""
        return self._text["thought"].decode("utf-8", "surrogatepass")

    @property
    def read_only(self) -> bool:
        """Every tool of the turn only looked."""
        return all(tool.kind in READ_KINDS for tool in self.tools.values())

    # -- updates -----------------------------------------------------------------------------------

    def update(self, update: Any, size: int) -> None:
        """Take the ``update`` of one session/update; `size` is the length of its line in bytes."""
        self.updates += 1
        self.late_updates += self.late
        kind = update.get("sessionUpdate") if isinstance(update, Mapping) else None
        if kind in _CHANNELS and (text := _text_of(update.get("content"))) is not None:
            if self._notice is not None and self._notice.fullmatch(text):
                self.opaque(update, size, notice=True)
            else:
                self._add_text(_CHANNELS[kind], text)
        elif kind in ("tool_call", "tool_call_update") and _tool_id(update) is not None:
            self._tool_update(update, size)
        elif kind == "usage_update":
            self._emit(self.usage.update(update))
        else:
            if kind not in _KNOWN:
                name = str(kind)[:80]
                self.unknown_kinds[name] = self.unknown_kinds.get(name, 0) + 1
            if kind == "session_info_update":
                self._look_for_failure(update)
            self.opaque(update, size)

    def opaque(self, raw: Any, size: int, **marks: Any) -> None:
        """Pass on a thing that has no neutral form, bounded."""
        self._emit({"kind": "opaque", "raw": bounded(raw, size), **marks})

    def permission(self, params: Mapping[str, Any], decision: Decision, policy: str) -> None:
        """A permission request was answered."""
        call = params.get("toolCall")
        tool = None
        if isinstance(call, Mapping) and _tool_id(call) is not None:
            # Some agents announce a call only here, and send nothing but updates afterwards.
            tool = self._merge(call)
            if call.get("rawInput") is not None:
                tool.args = bounded(call["rawInput"], EVENT_LIMIT + 1)
            if (decision.option_kind or "").startswith("allow"):
                self._start(tool)
        event: dict[str, Any] = {
            "kind": "permission",
            "outcome": decision.outcome["outcome"],
            "option_id": decision.option_id,
            "option_kind": decision.option_kind,
            "policy": policy,
            "options": bounded(params.get("options"), EVENT_LIMIT + 1),
        }
        if decision.note:
            event["note"] = decision.note
        if tool is not None:
            event |= {"tool_call_id": tool.id, "title": tool.title, "tool_kind": tool.kind}
        self._emit(event)

    def _look_for_failure(self, update: Mapping[str, Any]) -> None:
        # The Codex app-server adapter ends a turn that failed with end_turn; only this says so.
        node: Any = update.get("_meta")
        for key in ("codex", "threadStatus"):
            node = node.get(key) if isinstance(node, Mapping) else None
        if isinstance(node, Mapping) and node.get("type") == "systemError":
            self.agent_failure = "systemError"

    # -- text --------------------------------------------------------------------------------------

    def _add_text(self, channel: str, text: str) -> None:
        room = TEXT_LIMIT - self._length
        if len(text) > room:
            text, self.text_truncated = text[: max(0, room)], True
        if not text:
            return
        self._length += len(text)
        self._text[channel] += text.encode("utf-8", "surrogatepass")
        if self._open_channel != channel or self._open_length > TEXT_EVENT or self.late:
            self.flush()
        self._open_channel = channel
        self._open_text.append(text)
        self._open_length += len(text)

    def flush(self) -> None:
        """Emit the text that is still being gathered."""
        if self._open_text and self._open_channel is not None:
            event = {
                "kind": "text",
                "channel": self._open_channel,
                "text": "".join(self._open_text),
            }
            self._open_text, self._open_length = [], 0
            self._emit_marked(event)

    def _emit(self, event: dict[str, Any]) -> None:
        self.flush()
        self._emit_marked(event)

    def _emit_marked(self, event: dict[str, Any]) -> None:
        self._emit_raw({**event, "late": True} if self.late else event)

    # -- tools -------------------------------------------------------------------------------------

    def _merge(self, found: Mapping[str, Any]) -> Tool:
        key = str(found["toolCallId"])
        tool = self.tools.setdefault(key, Tool(key))
        if isinstance(title := found.get("title"), str):
            tool.title = title[:1000]
        if isinstance(kind := found.get("kind"), str):
            tool.kind = kind
        if isinstance(status := found.get("status"), str):
            tool.status = status
        if isinstance(name := _tool_name(found), str):
            tool.name = name
        return tool

    def _tool_update(self, update: Mapping[str, Any], size: int) -> None:
        if len(self.tools) >= MAX_TOOLS and str(update["toolCallId"]) not in self.tools:
            self.opaque(update, size)
            return
        tool = self._merge(update)
        if update.get("rawInput") is not None:
            tool.args = bounded(update["rawInput"], size)
        if update.get("rawOutput") is not None:
            tool.raw_output = bounded(update["rawOutput"], size)
        if update.get("content") is not None:
            tool.content = clip(content_text(update["content"]).encode(), EVENT_LIMIT)[0]
        self._keep(tool, size)
        phase = "update" if tool.announced else "start"
        tool.announced = True
        self._emit(
            {
                "kind": "tool",
                "phase": phase,
                "tool_call_id": tool.id,
                "function_name": tool.label,
                "title": tool.title,
                "tool_kind": tool.kind,
                "args": tool.args,
                "content": tool.content,
                "raw_output": tool.raw_output,
                "status": tool.status,
            }
        )
        self._start(tool)
        if tool.status in ("completed", "failed"):
            self._settle(tool, "ok" if tool.status == "completed" else "error")

    def _keep(self, tool: Tool, size: int) -> None:
        """Keep this one whole, and let others go that are too much."""
        before = self._whole.pop(tool.id, 0)
        self._whole[tool.id] = max(before, size)
        self._kept += self._whole[tool.id] - before
        while self._kept > TOOLS_LIMIT and len(self._whole) > 1:
            oldest = next(iter(self._whole))
            self._kept -= self._whole.pop(oldest)
            self.tools[oldest].abbreviate()

    def _log(self, tool: Tool) -> None:
        """Before something of it goes into the step log: that must not grow with all that an agent prints."""
        self._logged += self._whole.get(tool.id, 0)
        if self._logged > TOOLS_LIMIT:
            self._kept -= self._whole.pop(tool.id, 0)
            tool.abbreviate()

    def _start(self, tool: Tool) -> None:
        if not tool.started:
            tool.started = True
            self._log(tool)
            self._activity.tool_call_started(
                tool.id,
                name=tool.label,
                kind=tool.kind,
                arguments=tool.args,
                replay_safe=tool.kind in READ_KINDS,
            )

    def _settle(self, tool: Tool, outcome: Literal["ok", "error", "interrupted"]) -> None:
        if tool.started and not tool.settled:
            tool.settled = True
            self._log(tool)
            self._activity.tool_call_completed(
                tool.id,
                outcome=outcome,
                content=tool.content,
                exit_code=_exit_code(tool.raw_output),
                raw_output=tool.raw_output,
            )

    # -- the end -----------------------------------------------------------------------------------

    def complete(self, usage: Usage, stop_reason: str | None) -> None:
        """The agent answered the prompt."""
        self._wind_up()
        self._activity.model_turn_completed(
            1, text=self.text, thought=self.thought, usage=usage, stop_reason=stop_reason
        )

    def abort(self, reason: str) -> None:
        """The turn ended without an answer."""
        self._wind_up()
        self._activity.model_turn_aborted(1, reason=reason, partial_text=self.text)

    def _wind_up(self) -> None:
        self.flush()
        for tool in self.tools.values():
            self._settle(tool, "interrupted")


# -- reading the protocol's shapes -----------------------------------------------------------------


def bounded(value: Any, size: int, limit: int = EVENT_LIMIT) -> Any:
    """`value`, or clipped text of it if it came in a line of more than `limit` bytes and is itself longer."""
    if size <= limit:
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if len(text) <= limit else clip(text.encode("utf-8", "replace"), limit)[0]


def content_text(content: Any) -> str:
    """The content list of a tool call as text: blocks, diffs and terminals, one after the other."""
    rows = content if isinstance(content, list) else [content]
    return "\n".join(part for row in rows if (part := _content_row(row)))


def _content_row(row: Any) -> str:
    if not isinstance(row, Mapping):
        return "" if row is None else str(row)
    if row.get("type") == "diff":
        before = row.get("oldText") or ""
        return f"--- {row.get('path')}\n{before}\n+++ {row.get('path')}\n{row.get('newText') or ''}"
    if row.get("type") == "terminal":
        return f"[terminal {row.get('terminalId')}]"
    block = row.get("content", row)
    text = _text_of(block)
    if text is not None:
        return text
    kind = block.get("type") if isinstance(block, Mapping) else type(block).__name__
    return f"[{kind}]"


def _text_of(block: Any) -> str | None:
    if isinstance(block, Mapping) and isinstance(block.get("text"), str):
        text: str = block["text"]
        return text
    return None


def _tool_id(found: Mapping[str, Any]) -> str | None:
    value = found.get("toolCallId")
    return value if isinstance(value, str) and value else None


def _tool_name(found: Mapping[str, Any]) -> str | None:
    """The tool's own name, where an agent tells it in ``_meta`` (Claude Code does)."""
    meta = found.get("_meta")
    for row in meta.values() if isinstance(meta, Mapping) else ():
        if isinstance(row, Mapping) and isinstance(row.get("toolName"), str):
            return str(row["toolName"])[:200]
    return None


def _exit_code(raw: Any) -> int | None:
    if not isinstance(raw, Mapping):
        return None
    for key in ("exit_code", "exitCode"):
        if isinstance(raw.get(key), int) and not isinstance(raw[key], bool):
            return int(raw[key])
    return None
