"""From a role's binding to the `Session` that an executor gets."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.attempt.context import as_ageval_error
from pytest_ageval.config.bindings import SERVICE_OPTIONS
from pytest_ageval.errors import ExecutorError
from pytest_ageval.executor import ActivityScope, Event, Executor, McpServer, Session, Solution

if TYPE_CHECKING:
    from pytest_ageval.accounting import CallMeter
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.box import Box
    from pytest_ageval.config.locked import Binding
    from pytest_ageval.evidence.layout import Surface
    from pytest_ageval.gateway.link import Link
    from pytest_ageval.pacing import Holding
    from pytest_ageval.sessions.stall import Stalls

_LOCATOR = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def session_for(
    attempt: Attempt,
    role: str,
    *,
    session_id: str,
    actor: str | None,
    activity: ActivityScope,
    emit: Callable[[Event], None],
    raw_dir: Path | None = None,
    box: Box | None = None,
    calls: CallMeter | None = None,
    link: Link | None = None,
    holding: Holding | None = None,
) -> Session:
    """The session of `role`, with its secrets resolved, in `box` or else in the agent's box.

    `calls` counts its model calls, `holding` paces them. With `link` it gets the address and the key that the
    model gateway gives.
    """
    binding = attempt.locked.bindings[role]

    async def ask(request: Mapping[str, Any]) -> str | None:
        try:
            answer = await attempt.slot("permission", dict(request))
        except Exception as error:  # the hook's; the agent gets no answer, so its work says nothing of it
            attempt.fail(as_ageval_error(error, attempt.phase))
            raise
        return None if answer is None else str(answer)

    if link is not None and link.route is not None:
        url, key = link.base_url, link.api_key
    else:
        url = base_url(attempt, binding)
        key = attempt.secrets.get(binding.api_key) if binding.api_key else None

    async def pace() -> None:
        # What passes the gateway is paced there.
        if holding is not None and (link is None or link.route is None):
            with holding.call():
                await holding.turn()

    return Session(
        session_id=session_id,
        role=role,
        actor=actor,
        model=binding.model,
        base_url=url,
        api_key=key,
        api_key_name=binding.api_key,
        options=executor_options(attempt, binding),
        box=attempt.raw_box if box is None else box,
        task_root=attempt.locked.task_root,
        activity=activity,
        emit=emit,
        remaining=lambda: attempt.clock.remaining(),
        ask=ask,
        permission=attempt.options.permission,
        raw_dir=raw_dir,
        agent=binding.agent,
        refuse_call=calls.refuse if calls is not None else lambda: None,
        called=calls.called if calls is not None else lambda usage: None,
        mcp_servers=mcp_servers(attempt, binding),
        login=binding.auth != "env",
        solution=reference_solution(attempt, binding),
        pace=pace,
        held=holding.seconds if holding is not None else lambda: 0.0,
    )


def reference_solution(attempt: Attempt, binding: Binding) -> Solution | None:
    """What the oracle plays; None for a task in our own format, and for an agent that works itself."""
    if attempt.locked.harbor is None or not attempt.registry.executor(binding.executor).plays_solution:
        return None
    from pytest_ageval.attempt.harbor.environment import solution

    return solution(attempt)


async def link_for(
    attempt: Attempt, role: str, session_id: str, surface: Surface = "run", box: Box | None = None
) -> Link:
    """Whether and how the calls of a session of `role` pass the model gateway. Raises ExecutorError."""
    from pytest_ageval.gateway.link import connect

    binding = attempt.locked.bindings[role]
    address = base_url(attempt, binding)
    return await connect(
        attempt,
        binding,
        address,
        session_id=session_id,
        surface=surface,
        box=attempt.raw_box if box is None else box,
    )


def model_urls(attempt: Attempt) -> tuple[tuple[str, ...], bool]:
    """Where the roles' providers are, as far as it is known, and whether the gateway is to reach them all."""
    from pytest_ageval.gateway.link import passes

    urls: list[str] = []
    gateway = True
    for binding in attempt.locked.bindings.values():
        executor = attempt.registry.executor(binding.executor)
        if not executor.calls_model or not executor.calls_from_box():
            continue
        url = base_url(attempt, binding) or executor.provider_url(binding.options, binding.model.id)
        if url is not None:
            urls.append(url)
        gateway = gateway and passes(attempt, binding, url)
    return tuple(dict.fromkeys(urls)), gateway


async def prepare(
    attempt: Attempt, role: str, box: Box | None = None, executor: type[Executor] | None = None
) -> None:
    """Let the role's executor make its runtime ready in `box`, or else in the agent's box."""
    executor = executor or attempt.registry.executor(attempt.locked.bindings[role].executor)
    link = await link_for(attempt, role, f"prepare_{role}", box=box)
    try:
        await executor.prepare(preparing_session(attempt, role, box, link))
    finally:
        await link.close()


def preparing_session(
    attempt: Attempt, role: str, box: Box | None = None, link: Link | None = None
) -> Session:
    """A session that is never invoked: for `Executor.prepare`."""

    def emit(event: Event) -> None:
        attempt.fact("agent_prepared", dict(event))

    return session_for(
        attempt,
        role,
        session_id=f"prepare_{role}",
        actor=None,
        activity=NullActivity(),
        emit=emit,
        box=box,
        link=link,
    )


def executor_options(attempt: Attempt, binding: Binding) -> dict[str, Any]:
    """The role's options for its executor; ``${NAME}`` in the values of ``env`` resolved."""
    options = {name: value for name, value in binding.options.items() if name not in SERVICE_OPTIONS}
    env = options.get("env")
    if isinstance(env, Mapping):
        where = f"options.env of role {binding.role!r}"
        options["env"] = {name: resolved(attempt, str(value), where) for name, value in env.items()}
    return options


def mcp_servers(attempt: Attempt, binding: Binding) -> tuple[McpServer, ...]:
    """The role's MCP servers; ``${NAME}`` in their variables and headers resolved."""

    def values(server: McpServer, found: Mapping[str, str]) -> dict[str, str]:
        where = f"the MCP server {server.name} of role {binding.role!r}"
        return {name: resolved(attempt, value, where) for name, value in found.items()}

    return tuple(
        replace(server, env=values(server, server.env), headers=values(server, server.headers))
        for server in binding.equipment.mcp_servers
    )


def base_url(attempt: Attempt, binding: Binding) -> str | None:
    """The role's URL, a ``${NAME}`` in it resolved."""
    if binding.base_url is None:
        return None
    return resolved(attempt, binding.base_url, f"base_url of role {binding.role!r}", secret=False)


def resolved(attempt: Attempt, text: str, where: str, *, secret: bool = True) -> str:
    """`text` with each ``${NAME}`` replaced. Raises ExecutorError ``unset_variable``."""

    def value(match: re.Match[str]) -> str:
        look_up = attempt.secret if secret else attempt.options.secret
        found = look_up(match[1]) or os.environ.get(match[1])
        if not found:
            raise ExecutorError("unset_variable", f"{where}: the variable {match[1]} is not set")
        return found

    return _LOCATOR.sub(value, text)


def holding_for(attempt: Attempt, binding: Binding, stalls: Stalls) -> Holding:
    """What paces the model calls of one session of `binding`, in the time of `stalls`."""
    from pytest_ageval.pacing import Holding

    executor = attempt.registry.executor(binding.executor)
    url = base_url(attempt, binding) or executor.provider_url(binding.options, binding.model.id)
    pace = attempt.options.pacer.of(url if executor.calls_model else None)
    return Holding(pace, lambda: stalls.waiting(paced=True))


def stall_seconds(attempt: Attempt, binding: Binding) -> float:
    """How long one invoke of this role may wait for a provider that is down."""
    return float(binding.options.get("upstream_stall_seconds", attempt.options.stall_seconds))


class NullActivity:
    """A step log that nobody keeps."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class CurrentScope:
    """The activity scope of a session: of whichever invoke is running just now."""

    def __init__(self) -> None:
        self.scope: ActivityScope = NullActivity()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scope, name)


async def settle(task: asyncio.Task[Any], seconds: float) -> None:
    """Wait for a cancelled task, at most so long."""
    if not task.done():
        await asyncio.wait({task}, timeout=seconds)
