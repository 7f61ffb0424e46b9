"""One agent process with one open ACP session: started, configured, prompted, cancelled, ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from ageval_executors.acp.launch import fill
from ageval_executors.acp.outcome import AUTH_REQUIRED, METHOD_NOT_FOUND
from ageval_executors.acp.peer import Peer, RpcError
from ageval_executors.acp.turn import Turn
from ageval_executors.acp.usage import UsageTracker
from ageval_executors.acp.wire import Wire
from pytest_ageval.box import WORKSPACE, Box, StdioTransport
from pytest_ageval.errors import ExecutorError

if TYPE_CHECKING:
    from pathlib import Path

    from ageval_executors.acp.entries import Entry
    from ageval_executors.acp.launch import Launch
    from ageval_executors.acp.permissions import Decision
    from pytest_ageval.executor import McpServer, PermissionPolicy, Session

log = logging.getLogger("pytest_ageval.acp")

#: Seconds, all in all, that a cancelled turn gets before the agent is ended.
CANCEL_SECONDS = 5.0
#: Seconds after the answer to session/load in which the first update of the replay must have come.
REPLAY_SECONDS = 2.0
#: Kinds of updates that a session has only if something was said in it.
_SAID = frozenset(
    {"user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update"}
)
#: Updates between turns that are kept for the next turn's record.
UNSOLICITED_KEPT = 200

_EFFORT_IDS = ("reasoning_effort", "thought_level", "effort", "thinking", "thinking_level")


class NativeSession:
    """The agent's side of a session. `start` raises `ExecutorError`; `prompt` raises what `Peer` raises."""

    def __init__(
        self, session: Session, entry: Entry, launch: Launch, box: Box, policy: PermissionPolicy
    ) -> None:
        self.session = session
        self.entry = entry
        self.launch = launch
        self.policy = policy
        self.id: str | None = None
        self.agent: dict[str, Any] = {}
        self.usage = UsageTracker(entry.usage)
        self.turn: Turn | None = None
        self.dead: str | None = None
        self.replayed = 0
        self.foreign_updates = 0
        #: A resumed session, which replays nothing: the agent may have made a new one and not said so.
        self.doubtful = False
        self._box = box
        self._loading = False
        self._replayed = asyncio.Event()
        self._unsolicited: list[tuple[Any, int]] = []
        self._wire: Wire | None = None
        self._peer: Peer | None = None

    @property
    def wire(self) -> Wire:
        """The wire of a started session."""
        assert self._wire is not None
        return self._wire

    @property
    def peer(self) -> Peer:
        """The connection of a started session."""
        assert self._peer is not None
        return self._peer

    @property
    def cwd(self) -> str:
        """The workspace as the agent spells it."""
        return self._box.visible_path(WORKSPACE)

    # -- start -------------------------------------------------------------------------------------

    async def start(self, timeout: float, *, mode: str | None, resume: str | None) -> None:
        """Start the process, shake hands, open (or load) the session, set mode, model and effort."""
        transport: StdioTransport = await self._box.attach_stdio(
            self.launch.argv, cwd=WORKSPACE, env=self.launch.env
        )
        self._wire = Wire(transport, self._notified)
        self._peer = Peer(self._wire, self.session, self.policy, self._permission)
        self.agent = await self._step("initialize", timeout, self._peer.initialize())
        version = self.agent.get("protocolVersion", 1)
        if version != 1:
            raise ExecutorError(
                "acp_protocol_version", f"the agent speaks ACP version {version!r}; this speaks 1"
            )
        self._peer.servers = self._servers()
        opened = await self._open(timeout, resume)
        await self._set_mode(timeout, mode)
        await self._set_model(timeout, opened)
        await self._set_effort(timeout, opened)

    async def _open(self, timeout: float, resume: str | None) -> dict[str, Any]:
        if resume is not None:
            return await self._continue(timeout, resume)
        opened = await self._step("session/new", timeout, self.peer.new_session(self.cwd))
        found = opened.get("sessionId")
        if not isinstance(found, str) or not found:
            raise ExecutorError(
                "acp_protocol_error",
                f"session/new was answered without a sessionId: {opened!r:.500}",
            )
        self.id = found
        return opened

    @property
    def resume_method(self) -> str | None:
        """How the agent continues a session of an earlier process; None: it cannot."""
        capabilities = self.agent.get("agentCapabilities")
        found = capabilities if isinstance(capabilities, Mapping) else {}
        if found.get("loadSession") is True:
            return "session/load"
        session = found.get("sessionCapabilities")
        resume = isinstance(session, Mapping) and isinstance(session.get("resume"), Mapping)
        return "session/resume" if resume else None

    async def _continue(self, timeout: float, session_id: str) -> dict[str, Any]:
        """Load the session. An agent's yes is no proof: some say yes to any id, and begin a new one."""
        method = self.resume_method
        if method is None:
            raise ExecutorError("resume_unsupported", "the agent can neither load nor resume a session")
        load = method == "session/load"
        call = self.peer.load_session if load else self.peer.resume_session
        self.id, self._loading = session_id, True
        try:
            opened = await self._rpc(method, timeout, call(self.cwd, session_id))
            if load and not await self._replay_arrives():
                raise ExecutorError(
                    "session_gone",
                    f"the agent said that it loaded the session {session_id}, and replayed nothing of it",
                )
        except RpcError as error:
            auth = error.failure.code == AUTH_REQUIRED
            title = error.failure.title if auth else "session_gone"
            raise ExecutorError(title, f"{method} of {session_id}: {error}") from error
        finally:
            self._loading = False
        self.usage.replayed()
        self.doubtful = not load
        return opened

    async def _replay_arrives(self) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._replayed.wait(), REPLAY_SECONDS)
        return self._replayed.is_set()

    async def _set_mode(self, timeout: float, mode: str | None) -> None:
        wanted = mode or (self.entry.quiet_mode if self.policy == "allow" else None)
        if wanted is None:
            return
        try:
            await self._rpc("session/set_mode", timeout, self.peer.set_mode(self._id, wanted))
        except RpcError as error:
            if mode is not None:
                raise ExecutorError(
                    "acp_mode_unavailable", f"the agent refused the mode {mode!r}: {error}"
                ) from error
            self.warn("acp_mode_unavailable", f"the agent refused the mode {wanted!r}: {error}")

    async def _set_model(self, timeout: float, opened: Mapping[str, Any]) -> None:
        model = self.session.model.id
        if model is None or self.entry.model_at_start:
            return
        option = _option(opened, "model", ("model",))
        try:
            if option is not None:
                call = self.peer.set_option(self._id, option, model)
            else:  # the method that older agents have; an agent without either says so
                call = self.peer.call("session/set_model", {"sessionId": self._id, "modelId": model})
            await self._rpc("the choice of the model", timeout, call)
        except RpcError as error:
            why = "it has no choice of models" if error.failure.code == METHOD_NOT_FOUND else error
            raise ExecutorError(
                "acp_model_unavailable", f"the agent does not take the model {model!r}: {why}"
            ) from error

    async def _set_effort(self, timeout: float, opened: Mapping[str, Any]) -> None:
        effort = self.session.model.reasoning_effort
        if effort is None or self.entry.effort_at_start:
            return
        option = _option(opened, "thought_level", _EFFORT_IDS)
        why: object = "it offers no such option"
        if option is not None:
            try:
                call = self.peer.set_option(self._id, option, effort)
                await self._rpc("the choice of the effort", timeout, call)
            except RpcError as error:
                why = error
            else:
                return
        raise ExecutorError(
            "acp_reasoning_effort_unavailable",
            f"the agent does not take the reasoning effort {effort!r}: {why}",
        )

    @property
    def _id(self) -> str:
        assert self.id is not None
        return self.id

    async def _step(self, name: str, timeout: float, call: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        try:
            return await self._rpc(name, timeout, call)
        except RpcError as error:
            raise ExecutorError(
                error.failure.title,
                f"{name}: {error}",
                detail=self.wire.stderr.last_lines() or None,
            ) from error

    async def _rpc(self, name: str, timeout: float, call: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        try:
            return await asyncio.wait_for(call, timeout)
        except (TimeoutError, ConnectionError) as error:
            raise await self._failed(name, timeout, error) from error

    async def _failed(self, name: str, timeout: float, error: BaseException) -> ExecutorError:
        """Why a request of the start was never answered."""
        wire = self.wire
        hint = "" if wire.ready else f"; is {self.launch.command!r} an ACP server?"
        noise = wire.first_noise()
        quoted = f"; the first line it printed: {noise}" if noise and not wire.ready else ""
        if isinstance(error, TimeoutError):
            return ExecutorError(
                "acp_handshake_timeout",
                f"the agent did not answer {name} within {timeout:g} seconds{hint}{quoted}",
                detail=wire.stderr.last_lines() or None,
            )
        ending = await wire.ending()
        if noise and noise in ending.message:
            quoted = ""
        return ExecutorError(ending.code, f"{name}: {ending.message}{hint}{quoted}")

    def _servers(self) -> list[dict[str, Any]]:
        """The MCP servers as the protocol has them. Raises `ExecutorError` ``acp_mcp_unsupported``."""
        known = self.agent.get("agentCapabilities")
        offered = known.get("mcpCapabilities") if isinstance(known, Mapping) else None
        rows = []
        for server in self.session.mcp_servers:
            kind = server.transport
            if kind != "stdio" and not (isinstance(offered, Mapping) and offered.get(kind) is True):
                raise ExecutorError(
                    "acp_mcp_unsupported",
                    f"the agent takes no MCP server over {kind}, and {server.name} is one",
                )
            rows.append(_server_row(server, self.launch.fields))
        return rows

    # -- a turn ------------------------------------------------------------------------------------

    def begin_turn(self, prompt: str) -> Turn:
        """A turn that collects what the agent sends from now on."""
        self.peer.begin_turn()
        self.turn = Turn(prompt, self.session.activity, self.session.emit, self.usage, self.entry.notice)
        waiting, self._unsolicited = self._unsolicited, []
        for raw, size in waiting:
            self.turn.opaque(raw, size, unsolicited=True)
        return self.turn

    async def prompt(self, text: str) -> dict[str, Any]:
        """Send the prompt; the result of the turn."""
        return await self.peer.prompt(self._id, text)

    async def stop(self, running: asyncio.Task[dict[str, Any]]) -> None:
        """End the running turn: ask, wait, and then end the agent, within `CANCEL_SECONDS`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CANCEL_SECONDS - 1.0
        with contextlib.suppress(ConnectionError, TimeoutError):
            await self.peer.cancel(self._id, timeout=1.0)
        await asyncio.wait({running}, timeout=max(0.0, deadline - loop.time()))
        if not running.done():
            self.dead = "the agent did not end its turn when it was asked to, and was ended"
            await self.wire.terminate(0.5)
            await asyncio.wait({running}, timeout=0.5)
            running.cancel()

    # -- what the agent sends by itself ------------------------------------------------------------

    def _notified(self, method: str, params: Any, size: int) -> None:
        if method == "session/update":
            self._updated(params if isinstance(params, Mapping) else {}, size)
        elif not method.startswith("$/"):
            self._pass_on({"method": method, "params": params}, size)

    def _updated(self, params: Mapping[str, Any], size: int) -> None:
        if self.id is not None and params.get("sessionId") != self.id:
            self.foreign_updates += 1
            log.info("an update for another session: %.200r", params.get("sessionId"))
            return
        self.usage.noted(params)
        update = params.get("update")
        if self.turn is not None:
            self.turn.update(update, size)
            return
        if isinstance(update, Mapping) and update.get("sessionUpdate") == "usage_update":
            self.usage.update(update)
        if self._loading:
            self.replayed += 1
            if isinstance(update, Mapping) and update.get("sessionUpdate") in _SAID:
                self._replayed.set()
        else:
            self._pass_on(update, size)

    def _pass_on(self, raw: Any, size: int) -> None:
        if self.turn is not None:
            self.turn.opaque(raw, size)
        elif len(self._unsolicited) < UNSOLICITED_KEPT:
            self._unsolicited.append((raw, size))

    def _permission(self, params: Mapping[str, Any], decision: Decision, policy: str) -> None:
        if self.turn is not None:
            self.turn.permission(params, decision, policy)
        else:
            self._pass_on({"permission": dict(params), "answer": decision.outcome}, 0)

    def warn(self, code: str, message: str) -> None:
        """A thing that went wrong and does not end the session: into the record."""
        log.warning("%s: %s", code, message)
        self.session.emit({"kind": "opaque", "raw": {"type": "warning", "code": code, "message": message}})

    # -- end ---------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the agent and everything it started; keep its logs where they are wanted."""
        self.dead = self.dead or "the session is closed"
        if self._peer is None:
            return
        await self._peer.close()
        if self.session.raw_dir is not None:
            await asyncio.to_thread(self._write_logs, self.session.raw_dir)

    def _write_logs(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        logs = {
            "agent-stderr.log": self.wire.stderr.text(),
            "agent-stdout.log": "\n".join(self.wire.noise),
        }
        for name, text in logs.items():
            if self.session.api_key:
                text = text.replace(self.session.api_key, f"${{{self.session.api_key_name}}}")
            (directory / name).write_text(text, encoding="utf-8", errors="replace")


def _server_row(server: McpServer, fields: Mapping[str, str]) -> dict[str, Any]:
    def pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
        return [{"name": name, "value": value} for name, value in values.items()]

    if server.transport != "stdio":
        row = {"type": server.transport, "name": server.name, "url": server.url}
        return {**row, "headers": pairs(server.headers)}
    return {
        "name": server.name,
        "command": fill(server.command or "", fields),
        "args": [fill(argument, fields) for argument in server.args],
        "env": pairs({name: fill(value, fields) for name, value in server.env.items()}),
    }


def is_alone(messages: Any, prompt: str) -> bool:
    """`messages` hold nothing beyond the prompt itself."""
    rows = list(messages)
    return len(rows) == 1 and rows[0].get("role") == "user" and rows[0].get("content") == prompt


def _option(opened: Mapping[str, Any], category: str, ids: tuple[str, ...]) -> str | None:
    """The id of the session's config option of `category`, or of one of these ids."""
    found = opened.get("configOptions")
    rows = [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []
    tests: tuple[Callable[[Mapping[str, Any]], bool], ...] = (
        lambda row: row.get("category") == category,
        lambda row: row.get("id") in ids,
    )
    for test in tests:
        for row in rows:
            if test(row) and isinstance(row.get("id"), str):
                return str(row["id"])
    return None
