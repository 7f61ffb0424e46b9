"""Runs the handlers of plugins around a slot: ``handler(ctx, value, nxt)``, as ageval calls them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_ageval import portal
from pytest_ageval.errors import AgevalError
from pytest_ageval.extensions.manifest import EXCLUSIVE
from pytest_ageval.extensions.selection import Handler, handlers, winner

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.box import ExecResult
    from pytest_ageval.faces import BoxFace

Next = Callable[[Any], Awaitable[Any]]


class Host:
    """The box as a handler reaches it: awaitable, with the parameter names of ageval."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._attempt.raw_box, name)

    async def exec(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_sec: float | None = None,
        user: str | None = None,
        service: str | None = None,
    ) -> ExecResult:
        """`Box.exec`."""
        return await self._attempt.raw_box.exec(
            command, cwd=cwd, env=env, timeout=timeout_sec, user=user, service=service
        )


class PluginContext:
    """What a handler gets as ``ctx``.

    `host` is the box with awaitable methods, `box` the same with blocking ones (for a handler that is
    an ordinary function and so runs in a thread). `options` are those of the plugin's row in
    ``extensions``; `profile_id` is the role of the session, or None outside of one.
    """

    def __init__(self, attempt: Attempt, handler: Handler, role: str | None, services: Services) -> None:
        self.attempt = attempt
        self.options = dict(handler.options)
        self.profile_id = role
        self.services = services
        self.host = Host(attempt)
        self.run_id = attempt.identity.run_id
        self.trial_id = attempt.identity.trial_id
        self.attempt_id = attempt.identity.attempt_id
        self.task_id = attempt.task_id
        self.lock = attempt.locked.document
        self.task_root = attempt.locked.task_root
        self.dataset_root = attempt.locked.dataset_root
        self.evidence = attempt.evidence

    @property
    def box(self) -> BoxFace:
        """The box, for a handler that is not a coroutine function."""
        return self.attempt.box

    @property
    def phase(self) -> str:
        """The phase that the attempt is in."""
        return self.attempt.phase

    def record_fact(self, name: str, detail: Any = None) -> None:
        """Note something in the evidence. A detail that is no mapping becomes its ``value``."""
        whole = detail is None or isinstance(detail, Mapping)
        self.attempt.fact(name, detail if whole else {"value": detail})

    def remaining_seconds(self) -> float | None:
        """The seconds left in the phase; None: it has no limit."""
        return self.attempt.clock.remaining()


class Services(Mapping[str, Any]):
    """What the plugins of the attempt export, by name; loaded when it is first asked for."""

    def __init__(self, entries: Mapping[str, tuple[Any, str]]) -> None:
        self._entries = entries
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            package, entry = self._entries[name]
            self._loaded[name] = package.load(entry)
        return self._loaded[name]

    def __iter__(self) -> Any:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class PluginChain:
    """The plugins of one attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._handlers = handlers(attempt.locked.bindings, attempt.registry.extension)
        packages = {handler.package.plugin_id: handler.package for handler in self._handlers}
        self._services = Services(
            {
                name: (package, entry)
                for package in packages.values()
                for name, entry in package.services.items()
            }
        )

    async def call(self, slot: str, value: Any, role: str | None, inner: Next) -> Any:
        """`value` through the handlers of `slot`; `inner` is what they surround."""
        step = inner
        mine = [h for h in self._handlers if h.slot == slot and (role is None or role in h.roles)]
        if slot in EXCLUSIVE:
            mine = []  # see `exclusive`
        for handler in reversed(mine):
            step = self._step(handler, role, step)
        return await step(value)

    def _step(self, handler: Handler, role: str | None, inner: Next) -> Next:
        async def step(value: Any) -> Any:
            function = handler.package.load(handler.entry)
            context = PluginContext(self._attempt, handler, role, self._services)
            return await _called(function, context, value, inner)

        return step

    async def exclusive(self, slot: str, value: Any) -> Any:
        """What the plugin that was chosen for `slot` gives; None if there is none.

        The entry is a function or a class: ``evaluate(ctx)`` for evaluation_runtime, ``seal(ctx, turns)``
        for trajectory_seal.
        """
        handler = winner(self._handlers, slot)
        if handler is None:
            return None
        context = PluginContext(self._attempt, handler, None, self._services)
        found = handler.package.load(handler.entry)
        name, arguments = ("evaluate", ()) if slot == "evaluation_runtime" else ("seal", (value,))
        function = getattr(found() if isinstance(found, type) else found, name, found)
        return await _called(function, context, *arguments)

    @property
    def layers(self) -> list[tuple[str, Path, Path]]:
        """What the plugins add to a box's image: the plugin, its directory, and the Dockerfile in it."""
        packages = {handler.package.plugin_id: handler.package for handler in self._handlers}
        return [(name, row.root, row.layer) for name, row in packages.items() if row.layer is not None]


async def _called(function: Any, *arguments: Any) -> Any:
    """A coroutine function on the event loop, any other one in a thread."""
    if not callable(function):
        raise AgevalError("plugin_contract", f"{function!r} is named as an entry and cannot be called")
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    found = await portal.in_thread(lambda: function(*arguments))
    return await found if inspect.isawaitable(found) else found
