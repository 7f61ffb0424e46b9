"""What one session has of the gateway: whether it is used, its route, and what its calls say of a turn."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from pytest_ageval.config.env import is_loopback
from pytest_ageval.errors import ExecutorError
from pytest_ageval.executor import AgentResult

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.box import Box
    from pytest_ageval.config.locked import Binding
    from pytest_ageval.evidence.layout import Surface
    from pytest_ageval.executor import Session
    from pytest_ageval.gateway.calls import CallRecord
    from pytest_ageval.gateway.routes import Route
    from pytest_ageval.gateway.server import Gateway

#: Why a session's calls do not pass the gateway. ``off``: the option says so. ``host``: the executor
#: calls from the host, where there is nothing to hide from it. ``no_model``: it calls none.
#: ``no_address``: where its agent calls its provider is not known. ``no_key``: there is no key to
#: put on; the agent may have a login of its own. ``unreachable``: the box cannot reach this machine.
Direct = Literal["off", "host", "no_model", "no_address", "no_key", "unreachable"]

#: Seconds for a call whose answer the agent has just read to be counted.
SETTLE_SECONDS = 1.0

_WORDS: dict[Direct, str] = {
    "off": "the gateway is off",
    "no_address": "the role has no base_url, and its agent's own is not known, or needs a model to be named",
    "no_key": "the role has no api_key",
    "unreachable": "a box of this kind cannot reach this machine",
}


@dataclass(slots=True)
class Link:
    """Made by `connect`; `base_url` and `api_key` are for the agent, None where it goes its own way."""

    reason: Direct | None = None
    base_url: str | None = None
    api_key: str | None = None
    route: Route | None = None
    _gateway: Gateway | None = None
    _since: int = 0
    #: The agent's calls are counted here; an executor on the host counts its own.
    _meters: bool = field(default=False)

    def bind(self, session: Session) -> None:
        """From now on the session's budget is asked and told."""
        if self.route is not None and self._meters:
            self.route.refuse = session.refuse_call
            self.route.called = session.called

    def begin(self) -> None:
        """The executor is called for a turn. What its calls say is from here on."""
        if self.route is not None:
            self._since = len(self.route.calls)

    async def judge(self, result: AgentResult) -> AgentResult:
        """What a turn came to, by what passed on the wire. The agent's word does not hide a failure."""
        if self.route is None:
            return result
        await self.route.settled(SETTLE_SECONDS)
        turn = self.route.turn(self._since)
        if (missed := turn.missed) is not None:
            return _failed(result, f"replay_miss: {missed.error}", transient=False)
        if (refused := turn.refused) is not None and result.status not in ("cancelled", "timeout"):
            return replace(
                result, ok=False, error=f"budget_used_up: {refused.error}", status="limit",
                infrastructure=False, transient=False,
            )  # fmt: skip
        failure = turn.failure
        if failure is None or not result.ok:
            return result
        failed = _failed(result, failure.error, transient=failure.transient)
        hidden = {"agent_said": result.stop_reason or result.status, "agent_error_suspected": True}
        return replace(failed, retry_after=failure.retry_after, metadata={**result.metadata, **hidden})

    def measure(self, result: AgentResult) -> AgentResult:
        """`result` with the usage of the wire; what the agent said itself is kept beside it."""
        if "gateway" in result.metadata:
            return result
        if self.route is None:
            if self.reason in (None, "host", "no_model"):
                return result
            found: dict[str, Any] = {"used": False, "reason": self.reason}
            return replace(result, metadata={**result.metadata, "gateway": found})
        turn = self.route.turn(self._since)
        made = [call for call in turn.calls if call.generates]
        found = {
            "used": True,
            "calls": len(made),
            "failed": sum(call.outcome not in ("ok", "cancelled") for call in made),
            "unfinished": turn.running,
            "usage_of_agent": result.usage.as_dict(),
        }
        if self.route.player is not None:
            found["replayed"] = True
        usage = turn.usage or result.usage
        return replace(result, usage=usage, metadata={**result.metadata, "gateway": found})

    async def close(self) -> None:
        """The route is dead. Idempotent."""
        if self._gateway is not None and self.route is not None:
            await self._gateway.remove(self.route)


def _failed(result: AgentResult, error: str, *, transient: bool) -> AgentResult:
    return replace(result, ok=False, error=error, status="crashed", infrastructure=True, transient=transient)


async def connect(
    attempt: Attempt,
    binding: Binding,
    address: str | None,
    *,
    session_id: str,
    surface: Surface,
    box: Box | None,
) -> Link:
    """The link of a session of `binding`, whose role has the base URL `address`, or None.

    Raises ExecutorError ``gateway_unreachable`` if calls are to be recorded or replayed and cannot
    pass the gateway.
    """
    cls = attempt.registry.executor(binding.executor)
    options = attempt.options
    needed = options.record is not None or options.replay is not None
    key = _key(attempt, binding)
    url = address or cls.provider_url(binding.options, binding.model.id)
    reason = _direct(attempt, binding, url, needed=needed)
    where = None
    if reason is None:
        from pytest_ageval.gateway.server import HOST, shared

        gateway = await shared()
        where = f"{HOST}:{gateway.port}"
        if cls.calls_from_box():
            where = await box.forward(gateway.port) if box is not None else None
            reason = None if where is not None else "unreachable"
    if reason is not None or where is None or url is None:
        return _without(attempt, binding, reason or "unreachable", session_id, needed)
    from pytest_ageval.gateway.routes import Route, Upstream
    from pytest_ageval.gateway.tape import load

    upstream = Upstream.of(url, key)
    route = Route(upstream, scrub=attempt.redactor.text, ended=_writer(attempt, binding, session_id, surface))
    attempt.redactor.add("AGEVAL_GATEWAY_KEY", route.token)
    await load(attempt, binding, route, where, surface=surface, box=box)
    gateway.add(route)
    attempt.fact("model_gateway", {"session_id": session_id, "role": binding.role, "used": True})
    return Link(
        base_url=route.base_url(where),
        api_key=route.key,
        route=route,
        _gateway=gateway,
        _meters=cls.calls_from_box(),
    )


def passes(attempt: Attempt, binding: Binding, url: str | None) -> bool:
    """The calls of `binding` to `url` pass the gateway wherever it can be reached."""
    return _direct(attempt, binding, url, needed=False) is None


def _key(attempt: Attempt, binding: Binding) -> str | None:
    return attempt.secrets.get(binding.api_key) if binding.api_key else None


def _direct(attempt: Attempt, binding: Binding, url: str | None, *, needed: bool) -> Direct | None:
    cls = attempt.registry.executor(binding.executor)
    key = _key(attempt, binding)
    if not cls.calls_model:
        return "no_model"
    if not cls.calls_from_box() and not needed:
        return "host"
    if attempt.options.gateway == "off":
        return "off"
    if binding.auth != "env":
        return "no_key"  # the agent finds a login file of the operator
    if url is None:
        return "no_address"
    if key is None and not is_loopback(url) and attempt.options.replay is None:
        return "no_key"
    return None


def _without(attempt: Attempt, binding: Binding, reason: Direct, session_id: str, needed: bool) -> Link:
    if needed and reason in _WORDS:
        option = "--record" if attempt.options.record is not None else "--replay"
        raise ExecutorError(
            "gateway_unreachable",
            f"{option}: the calls of the role {binding.role!r} cannot pass the gateway: {_WORDS[reason]}",
        )
    if reason in _WORDS:
        detail = {"session_id": session_id, "role": binding.role, "used": False, "reason": reason}
        attempt.fact("model_gateway", detail)
    return Link(reason)


def _writer(attempt: Attempt, binding: Binding, session_id: str, surface: Surface) -> Any:
    """Writes the record of each call into the evidence."""

    def write(call: CallRecord) -> None:
        row = {"session_id": session_id, "profile_id": binding.role, **call.as_dict()}
        if surface == "evaluate":
            row["error"] = None  # a provider may quote what it was sent, and judges are sent gold
        attempt.evidence.model_call(surface, row)

    return write
