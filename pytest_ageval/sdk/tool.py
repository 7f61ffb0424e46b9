"""Tools that the task itself offers to a model: names, functions, and soft limits."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: What `ToolSet.call` returns.
Observation = dict[str, Any]

#: A tool's function. It gets the arguments as one mapping and may be a coroutine function.
ToolFn = Callable[[Mapping[str, Any]], Any | Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class AllowList:
    """The names that a `ToolSet` lets through."""

    names: frozenset[str]

    @classmethod
    def of(cls, *names: str) -> AllowList:
        """An allow list of these names."""
        return cls(frozenset(names))

    def allows(self, name: str) -> bool:
        """The name is on the list."""
        return name in self.names


@dataclass(frozen=True, slots=True)
class CallLimit:
    """How often the tools of a `ToolSet` may be called, all together. Raises ValueError below 0."""

    max_calls: int

    def __post_init__(self) -> None:
        if self.max_calls < 0:
            raise ValueError("max_calls must not be negative")


@dataclass
class Tool:
    """One tool. `schema` is the JSON schema of its arguments; only ``required`` is checked."""

    name: str
    fn: ToolFn
    schema: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class ToolSet:
    """Calls tools by name, and says no in words that a model can be given.

    `before_hooks` get the name and the arguments, `after_hooks` the name and the observation.
    `side_effect_counter` counts the calls that were carried out. The limits are the task's own; the
    limits of the attempt hold besides.
    """

    tools: dict[str, Tool] = field(default_factory=dict)
    before_hooks: list[Callable[[str, Mapping[str, Any]], None]] = field(default_factory=list)
    after_hooks: list[Callable[[str, Observation], None]] = field(default_factory=list)
    allowlist: set[str] | AllowList | None = None
    call_limit: int | CallLimit | None = None
    _calls: int = 0
    _closed: bool = False
    side_effect_counter: int = 0

    def add(self, tool: Tool) -> None:
        """Offer a tool; one of the same name is replaced."""
        self.tools[tool.name] = tool

    def close(self) -> None:
        """Refuse every call from now on."""
        self._closed = True

    async def call(self, name: str, args: Mapping[str, Any] | None = None) -> Observation:
        """Call a tool.

        Returns ``{"status": "ok", "tool", "result"}`` or ``{"status": "denied", "reason"}`` with the
        reason ``closed``, ``allowlist``, ``unknown_tool``, ``call_limit`` or ``invalid_args``.
        What the tool's function raises comes out unchanged.
        """
        arguments = dict(args or {})
        reason = self._refusal(name, arguments)
        if reason is not None:
            return {"status": "denied", "reason": reason}
        for before in self.before_hooks:
            before(name, arguments)
        self._calls += 1
        result = self.tools[name].fn(arguments)
        if inspect.isawaitable(result):
            result = await result
        self.side_effect_counter += 1
        observation: Observation = {"status": "ok", "tool": name, "result": result}
        for after in self.after_hooks:
            after(name, observation)
        return observation

    def _refusal(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        if self._closed:
            return "closed"
        allowed = self.allowlist.names if isinstance(self.allowlist, AllowList) else self.allowlist
        if allowed is not None and name not in allowed:
            return "allowlist"
        if name not in self.tools:
            return "unknown_tool"
        limit = self.call_limit
        most = limit.max_calls if isinstance(limit, CallLimit) else limit
        if most is not None and self._calls >= most:
            return "call_limit"
        required = self.tools[name].schema.get("required")
        if isinstance(required, list) and any(key not in arguments for key in required):
            return "invalid_args"
        return None


def allowlist_from_params(names: Iterable[str]) -> AllowList:
    """The allow list of names that a task's parameters hold."""
    return AllowList.of(*names)
