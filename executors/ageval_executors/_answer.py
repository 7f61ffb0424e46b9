"""Putting an answer together from the pieces in which it arrives."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ageval_executors._text import mend, parse_arguments
from pytest_ageval.executor import ToolCall, Usage

if TYPE_CHECKING:
    from pytest_ageval.executor import AgentStatus

Channel = Literal["assistant", "thought"]

#: Characters of unparsable arguments that are kept for the evidence.
ARGUMENTS_LIMIT = 2000


@dataclass(slots=True)
class RawCall:
    """A tool call as the model wrote it."""

    id: str = ""
    name: str = ""
    arguments: str = ""
    #: Further fields of the call that its server wants back, such as a signature.
    extra: dict[str, Any] = field(default_factory=dict)


class Answer(abc.ABC):
    """One answer of one API. `event` takes the pieces of a stream, `document` a whole answer."""

    def __init__(self) -> None:
        self.segments: list[tuple[Channel, list[str]]] = []
        self.calls: list[RawCall] = []
        self.stop_reason: str | None = None
        self.refused = False
        self.model: str | None = None
        self.id: str | None = None
        self.usage_row: Any = None

    @abc.abstractmethod
    def event(self, data: Mapping[str, Any]) -> bool:
        """Take a piece; True when the answer is complete. Raises `CallFailedError`."""

    @abc.abstractmethod
    def document(self, data: Mapping[str, Any]) -> bool:
        """Take a whole answer; False when it is not one. Raises `CallFailedError`."""

    def ended(self) -> bool:
        """The stream is over without its end marker: is the answer complete all the same?"""
        return False

    def head(self, data: Mapping[str, Any]) -> None:
        """Note who answered. Things of another type than expected are passed over."""
        for name in ("id", "model"):
            found = data.get(name)
            if isinstance(found, str) and found:
                setattr(self, name, mend(found))

    @abc.abstractmethod
    def usage(self) -> Usage:
        """The usage as far as it was reported."""

    @abc.abstractmethod
    def status(self) -> AgentStatus:
        """What the API's own word for the end of the turn means."""

    @abc.abstractmethod
    def native(self) -> Any:
        """The answer in the API's own form, to be sent back in the next turn; None if there is none."""

    def add(self, channel: Channel, text: Any) -> None:
        """Append a piece of text to the answer."""
        if not isinstance(text, str) or not text:
            return
        if self.segments and self.segments[-1][0] == channel:
            self.segments[-1][1].append(text)
        else:
            self.segments.append((channel, [text]))

    def told(self) -> list[tuple[Channel, str]]:
        """What was said and thought, in order, each in one piece."""
        return [(channel, mend("".join(parts))) for channel, parts in self.segments]

    def joined(self, channel: Channel) -> str:
        """All text of one channel."""
        return mend("".join(p for name, parts in self.segments for p in parts if name == channel))

    def tool_calls(self, step: int) -> tuple[list[ToolCall], dict[str, str]]:
        """The calls with their arguments parsed, and the arguments that are no JSON object, by call."""
        found: list[ToolCall] = []
        broken: dict[str, str] = {}
        for index, call in enumerate(self.calls):
            call.id = call.id or f"call_{step}_{index}"  # some servers give none
            arguments = parse_arguments(call.arguments)
            if arguments is None:
                broken[call.id] = mend(call.arguments[:ARGUMENTS_LIMIT])
            found.append(ToolCall(mend(call.id), mend(call.name), arguments or {}))
        return found, broken

    def message(self) -> dict[str, Any]:
        """The answer as a chat message: the arguments stand as the model wrote them."""
        text = self.joined("assistant")
        found: dict[str, Any] = {"role": "assistant", "content": text or None}
        if self.calls:
            found["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.calls
            ]
        return found
