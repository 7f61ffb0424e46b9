"""The executor protocol: what drives an agent. The only module that an executor imports.

One `Executor` instance is one session of one role. The session service opens it when the task's
run.py makes its first invoke, calls `invoke` once for each turn (never twice at once for one
session), and closes it when the run phase is sealed.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import msgspec

from pytest_ageval.box import Box, ImageLayer, NoOptions
from pytest_ageval.errors import ExecutorError

Api = Literal["chat", "responses"]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which model, and how to call it. `timeout` (a whole call) and `watchdog` (silence) are seconds."""

    id: str | None = None
    api: Api | None = None
    reasoning_effort: str | None = None
    timeout: float | None = None
    watchdog: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


#: Why an executor could not tell the usage of a call.
UsageGap = Literal["not_reported", "lost_on_timeout", "parse_failed", "partial", "ambiguous"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and money of one invoke, as the provider or the agent reported them.

    `prompt_tokens` counts every input token, cached ones included; `cached_tokens` are those read
    from a cache; `cache_write_tokens` those written to one; `completion_tokens` count reasoning
    tokens too, and `reasoning_tokens` says how many. None means: not reported, never zero.
    `cost_usd` is what the source said, never a guess. `source` names where the figures come from.
    `unavailable` is set when nothing (or, with ``partial``, not everything) could be known.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None
    source: str | None = None
    unavailable: UsageGap | None = None

    def as_dict(self) -> dict[str, Any]:
        """The ``usage`` object of evidence rows: only what is known."""
        return {
            name: value for name in self.__dataclass_fields__ if (value := getattr(self, name)) is not None
        }


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks the task's own code to make. `arguments` is the parsed object."""

    id: str
    name: str
    arguments: Mapping[str, Any]


#: How the agent ended its turn, whatever the protocol called it.
AgentStatus = Literal["completed", "limit", "refused", "cancelled", "timeout", "crashed", "unknown"]


@dataclass(frozen=True, slots=True)
class AgentResult:
    """What one invoke came to.

    `ok` is False when there is no answer; then `error` is a token with detail
    (``HTTPError:429``, ``acp_unexpected_eof``), `infrastructure` says that the provider or the
    agent's machinery failed (the attempt is an ERROR if the task cannot go on), `transient` that
    trying again may help, `retry_after` the seconds the provider asked for, and `repeatable` that
    trying again cannot repeat an effect. `stop_reason` is the literal word of the protocol.
    """

    text: str = ""
    ok: bool = True
    error: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    usage: Usage = Usage(unavailable="not_reported")
    stop_reason: str | None = None
    status: AgentStatus = "completed"
    model: str | None = None
    infrastructure: bool = False
    transient: bool = False
    repeatable: bool = True
    retry_after: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


#: A neutral event of the trajectory. ``kind`` is text (channel thought|assistant, text), tool (phase
#: start|update, tool_call_id, function_name, title, tool_kind, args, content, raw_output, status),
#: permission (outcome, option_id, policy, options), usage, or opaque (raw: a thing we do not know).
Event = Mapping[str, Any]


class ActivityScope(Protocol):
    """The step log of one invoke: each step is written before its effect settles."""

    def model_turn_started(self, step: int, *, delta_messages: Sequence[Mapping[str, Any]]) -> None:
        """A model call is about to be sent; `delta_messages` are the messages not sent before."""
        ...

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
        """The model's answer has arrived whole. `answer` is what an executor that `replays` needs to have
        it again, in plain JSON types."""
        ...

    def model_turn_aborted(self, step: int, *, reason: str, partial_text: str = "") -> None:
        """The model call ended without a whole answer."""
        ...

    def tool_call_started(
        self,
        tool_call_id: str,
        *,
        name: str,
        kind: str | None = None,
        arguments: Any = None,
        replay_safe: bool = False,
    ) -> None:
        """A tool is about to take effect. `replay_safe`: it only reads."""
        ...

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
        """The tool's effect has settled. `checkpoint` is what `Session.checkpoint` gave after it."""
        ...


@dataclass(frozen=True, slots=True)
class Solution:
    """Where the reference solution is, for a task that is not in our own format.

    `script` in `directory` is run at `target` of the box with `env`. How it ends decides nothing: the
    verifier does.
    """

    directory: Path
    target: str
    script: str = "solve.sh"
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Recorded:
    """What another process had done of an invoke when it was killed, for an executor that `replays`.

    `answers` are the whole answers of the model in order, each what the executor gave
    ``model_turn_completed``, by the names of the step log; `calls` are the tool calls that had settled, in
    order (``tool_call_id``, ``arguments``, ``content``, ``raw_output``, ``exit_code``, ``outcome``,
    ``checkpoint_seq``). Both are used up as they are replayed. `last_step` is the highest number that any
    model call of the session had.
    """

    answers: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    last_step: int = 0


PermissionPolicy = Literal["allow", "deny", "ask"]


async def _no_pace() -> None:
    return None


async def _no_checkpoint() -> int | None:
    return None


async def _no_restore(checkpoint: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server of the Model Context Protocol that an agent is to use.

    `transport` is ``stdio`` (then `command`, `args`, `env`), ``http`` (streamable HTTP) or ``sse`` (then
    `url`, `headers`). In a `Session` the values of `env` and `headers` are resolved, and may be secret.
    """

    name: str
    transport: Literal["stdio", "http", "sse"]
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fittings:
    """What an agent can be given besides prompts; checked when the task is locked.

    `mcp` are the transports of MCP servers that reach it. `skills` are the directories below HOME in which
    it looks for skills, `instructions` the file below HOME with the instructions that it always reads.
    `logins` are the files below HOME that a login of the operator leaves, `writes` those that the executor
    writes whole, so that nobody else can.
    """

    mcp: frozenset[str] = frozenset()
    skills: tuple[str, ...] = ()
    instructions: str | None = None
    logins: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Session:
    """What the session service gives an executor at construction.

    `api_key` is the resolved secret (never log it), `base_url` the resolved URL. `options` are the
    role's executor options, already checked against `Executor.Options`. `emit` takes trajectory
    events as they happen; it may be called from any thread. `remaining` gives the seconds left in
    the phase, or None for no limit. `ask` answers a permission request under the policy ``ask``:
    it gets the protocol's request and returns the id of one of its options, or None to cancel.
    `raw_dir` is a directory of the evidence for the vendor's own logs, or None when they are not kept.
    `refuse_call` says why no further model call may be made (a budget is used up), or None: an executor
    that makes several calls in one invoke asks before each, and ends its turn with status ``limit``.
    `mcp_servers` are those that the agent is to use. `login` says that it finds a login file of the
    operator in HOME and gets no key.
    `called` takes the usage of a model call as soon as it is known, for an executor that makes several
    in one invoke; the usage of the invoke's result is their sum. `solution` is what the oracle plays, None
    for a task in our own format.
    `recorded` is what was done of the first invoke before (only for an executor that `replays`).
    `checkpoint` keeps what the box's directories hold now and gives a number for it, or None when that is
    not wanted; `restore` brings them to the state of a number. An executor that works in the box itself
    calls the first before it tells that a tool call has settled, and the second when it replays one.
    `pace` returns when a request to the model may go out: an executor that calls from the host awaits it
    before each, outside of its own time limits. `held` gives the seconds for which calls of this session were
    held back so far, by `pace` or by the model gateway: they do not count against a turn's limits, and an
    agent that is silent meanwhile is not to blame.
    """

    session_id: str
    role: str
    actor: str | None
    model: ModelSpec
    base_url: str | None
    api_key: str | None
    api_key_name: str | None
    options: Mapping[str, Any]
    box: Box | None
    task_root: Path
    activity: ActivityScope
    emit: Callable[[Event], None]
    remaining: Callable[[], float | None]
    ask: Callable[[Mapping[str, Any]], Awaitable[str | None]]
    permission: PermissionPolicy = "allow"
    raw_dir: Path | None = None
    agent: str | None = None
    mcp_servers: Sequence[McpServer] = ()
    login: bool = False
    refuse_call: Callable[[], str | None] = lambda: None
    called: Callable[[Usage], None] = lambda usage: None
    solution: Solution | None = None
    recorded: Recorded | None = None
    checkpoint: Callable[[], Awaitable[int | None]] = _no_checkpoint
    restore: Callable[[int], Awaitable[None]] = _no_restore
    pace: Callable[[], Awaitable[None]] = _no_pace
    held: Callable[[], float] = lambda: 0.0


class Executor(abc.ABC):
    """Drives one session of one agent. Methods are called from one event loop; none may block it.

    A provider's or an agent's failure is *returned* by `invoke` (``ok=False``); `open` raises
    `ExecutorError` when the session cannot be had at all.
    """

    kind: ClassVar[str]
    #: Capabilities of the box that the executor needs; empty: the model is called from the host.
    requires_box: ClassVar[frozenset[str]] = frozenset()
    #: Two sessions of one role may be open and invoked at once.
    concurrent_sessions: ClassVar[bool] = True
    #: A session can be continued by another process: `resume_token` and `resume`.
    resumable: ClassVar[bool] = False
    #: A turn knows of those before it. If not, a session can be opened anew between two of them.
    conversational: ClassVar[bool] = True
    #: Goes on inside an invoke of another process, from `Session.recorded`: no answer of the model that
    #: stands there is asked for again, no tool call made again.
    replays: ClassVar[bool] = False
    supported_apis: ClassVar[frozenset[str]] = frozenset({"chat"})
    #: Fields of `ModelSpec` besides ``id`` and ``api`` that have an effect.
    supported_model_fields: ClassVar[frozenset[str]] = frozenset()
    #: Keys of ``model.extra`` that are passed on.
    extra_allowlist: ClassVar[frozenset[str]] = frozenset()
    #: A model id must be configured.
    requires_model: ClassVar[bool] = False
    #: False for one that plays an agent without calling a model.
    calls_model: ClassVar[bool] = True
    #: It plays `Session.solution`, which only such an executor is given.
    plays_solution: ClassVar[bool] = False
    #: Names of the environment variables with the key and the address, where a role names none.
    #: A key's name is locked always, an address only when its variable is set.
    default_api_key_name: ClassVar[str | None] = None
    default_base_url_name: ClassVar[str | None] = None
    #: A msgspec Struct with ``forbid_unknown_fields=True``; checked when the task is locked.
    Options: ClassVar[type[msgspec.Struct]] = NoOptions

    def __init__(self, session: Session) -> None:
        self.session = session
        self.options: Any = msgspec.convert(dict(session.options), self.Options)

    @classmethod
    def fittings(cls, options: Mapping[str, Any]) -> Fittings:
        """What an agent with these (checked) options can be given besides prompts."""
        return Fittings()

    @classmethod
    def calls_from_box(cls) -> bool:
        """The model is called by a program in the box, which must then reach it; else from the host."""
        return "attach_stdio" in cls.requires_box

    @classmethod
    def provider_url(cls, options: Mapping[str, Any], model: str | None) -> str | None:
        """The base URL that is called when the role has none, for the model gateway; None: not known.

        `model` is the id that the role names; None: the agent chooses.

        An executor that names one must use `Session.base_url` and `Session.api_key` in its place.
        """
        return None

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> str | None:
        """Why an agent with these options cannot be started here, and in a second line the remedy.

        None: nothing is known. For ``pytest-ageval doctor``: synchronous, not in an event loop, and a
        few seconds at most.
        """
        return None

    @classmethod
    def describe(cls, options: Mapping[str, Any]) -> str:
        """A few words on what is here for an agent with these options: ``installed in ...``."""
        return ""

    @classmethod
    async def image_layers(cls, options: Mapping[str, Any]) -> Sequence[ImageLayer]:
        """What an agent with these options needs in the image of a box, so that no attempt installs it.

        Called once for each role in the environment phase, before the box is opened, where the kind of box
        makes images. May take long: what a layer holds is made here if it is missing.
        """
        return ()

    @classmethod
    async def prepare(cls, session: Session) -> None:
        """Make the agent's runtime ready in the box (install, write config), before the timed run.

        Called once for each role in the environment phase, with a session that is never invoked.
        """

    async def open(self) -> None:
        """Start the session. Raises `ExecutorError`."""

    def resume_token(self) -> dict[str, Any] | None:
        """Plain JSON data by which another process can continue this session after its last whole turn.

        None: there is nothing to continue, or it cannot be told without a secret. Cheap: it is asked
        after each turn, and what it gives is written into the evidence, where secrets are masked.
        """
        return None

    async def resume(self, token: Mapping[str, Any]) -> None:
        """Continue the session that `token` names, in place of `open`. The box is as it was.

        Never begins a new session instead. Raises `ExecutorError`: ``session_gone`` when the agent no
        longer has the session, ``resume_token_invalid`` when `token` is none of this executor's or was
        changed since (a masked secret), ``resume_unsupported``.
        """
        raise ExecutorError("resume_unsupported", f"sessions of {self.kind} cannot be continued")

    @abc.abstractmethod
    async def invoke(
        self,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> AgentResult:
        """One turn. The prompt always goes out, after the true history of this session.

        `tools` are OpenAI function schemas that the *task* will execute. `messages`, when given, is
        the whole conversation as the task sees it, in place of the session's own history.
        The session service bounds the time with `cancel`.
        """

    async def cancel(self) -> None:
        """End the running turn as soon as possible; `invoke` then returns with status ``cancelled``."""

    async def close(self) -> None:
        """End the session and everything it started. Idempotent; called on every path."""
