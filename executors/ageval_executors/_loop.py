"""What the executors have in common that run an agent's loop on the host and its commands in the box."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec

from ageval_executors._text import mend
from ageval_executors._usage import sum_usage
from ageval_executors.anthropic_http import AnthropicExecutor
from ageval_executors.openai_http import OpenAIExecutor
from pytest_ageval.errors import AgevalError, ExecutorError
from pytest_ageval.executor import AgentResult, AgentStatus, Executor, Usage

if TYPE_CHECKING:
    from ageval_executors._model import ModelExecutor
    from pytest_ageval.box import Box
    from pytest_ageval.executor import Session

log = logging.getLogger("pytest_ageval")

#: Characters of a command's output that go into the trajectory.
OUTPUT_LIMIT = 64 * 1024

#: Seconds that a loop gets to end after it was cancelled.
END_SECONDS = 5.0


class LoopOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Options of every loop.

    `wire` says which API the model is behind; its key is then named by ``api_key``. `stream` can be
    turned off. `max_tokens` is the ceiling of one answer, which ``anthropic`` requires and which is sent
    to no other. `step_limit` is how many model calls one invoke may make, `cost_limit` how many US
    dollars as the provider reports them; 0 is no limit. `cmd_timeout` is in seconds, for one command.
    """

    wire: Literal["openai", "anthropic"] = "openai"
    stream: bool = True
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] = 8192
    step_limit: Annotated[int, msgspec.Meta(ge=0)] = 30
    cost_limit: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    cmd_timeout: Annotated[float, msgspec.Meta(gt=0)] = 30.0


class LoopEndedError(Exception):
    """The loop ends here, with this result (whose usage is filled in)."""

    def __init__(self, result: AgentResult) -> None:
        super().__init__(result.error or result.stop_reason or result.status)
        self.result = result


@dataclass(slots=True)
class Run:
    """One prompt that is being worked on, perhaps over several invokes while the provider is down."""

    prompt: str
    usage: list[Usage] = field(default_factory=list)
    calls: int = 0
    #: Those of them that count against ``step_limit``.
    steps: int = 0
    #: A command has been sent to the box.
    acted: bool = False
    #: A model call is on its way.
    calling: bool = False
    text: str = ""
    model: str | None = None
    task: asyncio.Task[AgentResult] | None = None
    #: Set with the failed call when the provider is down; `again` lets the call be repeated.
    stalled: asyncio.Future[AgentResult] | None = None
    again: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def cost(self) -> float | None:
        """US dollars so far; None when a call did not report its cost."""
        found = [usage.cost_usd for usage in self.usage]
        return None if None in found else sum(cost for cost in found if cost is not None)


class LoopExecutor(Executor):
    """An agent whose loop runs here: `work` calls the model with `ask` until it is done.

    When the provider fails in a way that passes, `invoke` returns that failure with ``repeatable``, and
    the loop waits where it is: the next `invoke` with the same prompt repeats the failed call only. So the
    session service does the waiting, as it does for a single model call.
    """

    requires_box: ClassVar[frozenset[str]] = frozenset({"exec"})
    supported_apis: ClassVar[frozenset[str]] = OpenAIExecutor.supported_apis
    supported_model_fields: ClassVar[frozenset[str]] = OpenAIExecutor.supported_model_fields
    extra_allowlist: ClassVar[frozenset[str]] = (
        OpenAIExecutor.extra_allowlist | AnthropicExecutor.extra_allowlist | {"reasoning"}
    )
    requires_model: ClassVar[bool] = True
    Options = LoopOptions

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.options: LoopOptions
        self.model = _model(session, self.options)
        self._run: Run | None = None
        self._closed = False
        self._cancelled = False

    async def open(self) -> None:
        """Refuse to send one vendor's key to another. Raises `ExecutorError` ``loop_key_invalid``."""
        other = OpenAIExecutor if self.options.wire == "anthropic" else AnthropicExecutor
        if self.session.base_url is None and self.session.api_key_name == other.default_api_key_name:
            raise ExecutorError(
                "loop_key_invalid",
                f"wire is {self.options.wire!r} and api_key names {other.default_api_key_name}; name the key "
                f"{self.model.default_api_key_name}, or the base_url that takes this one",
            )

    @abc.abstractmethod
    async def work(self, run: Run) -> AgentResult:
        """Work on ``run.prompt`` to its end. The result's usage is filled in by the caller."""

    # -- the protocol ----------------------------------------------------------------------------------

    async def invoke(
        self,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> AgentResult:
        """One prompt, worked on to its end. The agent has tools and a history of its own."""
        if self._closed:
            return _failed("session_closed", "the session is closed")
        if tools:
            self.warn("loop_tools_ignored", f"{self.kind} has tools of its own")
        if messages and not _is_prompt(messages, prompt):
            self.warn("loop_messages_ignored", f"{self.kind} keeps the conversation itself")
        self._cancelled = False
        run = await self._begin(prompt)
        assert run.task is not None
        run.stalled = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait({run.task, run.stalled}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._end(run)
            raise
        if not run.task.done() and run.stalled.done():
            return self._totalled(run, run.stalled.result())
        self._run = None
        return self._totalled(run, _outcome(run, self._cancelled))

    async def cancel(self) -> None:
        """End the running turn: its model call is dropped and its command in the box is killed."""
        if self._run is not None:
            self._cancelled = True
            await self._end(self._run)

    async def close(self) -> None:
        """End the running turn and the connection. Idempotent."""
        self._closed = True
        await self.cancel()
        await self.model.close()

    async def _begin(self, prompt: str) -> Run:
        """The run that waits for its provider with this prompt, or a new one."""
        prompt = mend(prompt)
        run = self._run
        if run is not None and run.prompt == prompt and run.task is not None and not run.task.done():
            run.again.set()
            return run
        if run is not None:
            await self._end(run)
        run = self._run = Run(prompt)
        run.task = asyncio.create_task(self.work(run))
        return run

    async def _end(self, run: Run) -> None:
        if run.task is not None and not run.task.done():
            run.task.cancel()
            await asyncio.wait({run.task}, timeout=END_SECONDS)

    def _totalled(self, run: Run, result: AgentResult) -> AgentResult:
        usage = sum_usage(run.usage) if run.usage else Usage(unavailable="not_reported")
        if run.calling:  # it was dropped, and may be charged all the same
            usage = replace(usage, unavailable="partial" if run.usage else "lost_on_timeout")
        model = result.model or run.model or self.model.model_id
        metadata = {**result.metadata, "model_calls": run.calls}
        text = result.text or run.text
        return replace(result, text=text, usage=usage, model=model, metadata=metadata)

    # -- for the loops ---------------------------------------------------------------------------------

    @property
    def box(self) -> Box:
        """The box. Raises `ExecutorError` ``loop_box_missing``."""
        if self.session.box is None:
            raise ExecutorError("loop_box_missing", f"{self.kind} works in a box, and there is none")
        return self.session.box

    def warn(self, code: str, message: str) -> None:
        """A thing that went wrong and does not end the session: into the record."""
        log.warning("%s: %s", code, message)
        self.session.emit({"kind": "opaque", "raw": {"type": "warning", "code": code, "message": message}})

    def seconds(self, wanted: float) -> float:
        """`wanted` seconds, or what is left of the phase. Raises `LoopEndedError` when that is nothing."""
        left = self.session.remaining()
        if left is not None and left <= 0:
            error = "wall_time_exceeded"
            raise LoopEndedError(AgentResult(ok=False, error=error, status="timeout", repeatable=False))
        return wanted if left is None else min(wanted, left)

    async def ask(
        self,
        run: Run,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        counted: bool = True,
    ) -> AgentResult:
        """One model call; see `Executor.invoke` for the arguments.

        Raises `LoopEndedError` when a limit or a budget is reached, or the provider fails for good; while
        it fails in a way that passes, waits for the next `invoke`. `counted`: against ``step_limit``.
        """
        while True:
            self.seconds(0.0)
            self._check_limits(run, counted=counted)
            run.calling = True
            result = await self.model.invoke(prompt, tools=tools, messages=messages)
            run.calling = False
            run.calls, run.steps = run.calls + 1, run.steps + counted
            self._account(run, result)
            if result.ok:
                break
            failed = replace(result, text="", repeatable=result.transient or not run.acted)
            if not result.transient or run.stalled is None or run.stalled.done():
                raise LoopEndedError(failed)
            run.again.clear()
            run.steps -= counted
            run.stalled.set_result(failed)
            await run.again.wait()
        run.text, run.model = result.text or run.text, result.model or run.model
        if result.status == "refused":
            raise LoopEndedError(replace(result, tool_calls=(), repeatable=False))
        return result

    def _check_limits(self, run: Run, *, counted: bool) -> None:
        refusal = self.session.refuse_call()
        if refusal is not None:
            raise LoopEndedError(limit_reached("budget", refusal))
        if counted and 0 < self.options.step_limit <= run.steps:
            raise LoopEndedError(limit_reached("step_limit", f"{run.steps} model calls"))
        if self.options.cost_limit > 0 and run.usage:
            if run.cost is None:
                raise LoopEndedError(
                    _failed("cost_not_reported", "cost_limit is set, and the provider reports no cost")
                )
            if run.cost >= self.options.cost_limit:
                raise LoopEndedError(limit_reached("cost_limit", f"{run.cost:g} US dollars"))

    def _account(self, run: Run, result: AgentResult) -> None:
        if not result.ok and result.usage.unavailable == "not_reported":
            return  # refused: nothing was made, and nothing will be charged
        run.usage.append(result.usage)
        self.session.called(result.usage)
        self.session.emit({"kind": "usage", "cumulative": False, **result.usage.as_dict()})

    def command_started(
        self,
        run: Run,
        call_id: str,
        name: str,
        arguments: Mapping[str, Any],
        *,
        announced: bool,
        replayed: bool = False,
    ) -> None:
        """A command is about to be sent to the box. `announced`: the model's tool call is in the record.

        `replayed`: it was sent by another process, and stands in the step log.
        """
        run.acted = True
        if not replayed:
            self.session.activity.tool_call_started(
                call_id, name=name, kind="execute", arguments=dict(arguments)
            )
        if not announced:
            self.session.emit(
                {
                    "kind": "tool",
                    "phase": "start",
                    "tool_call_id": call_id,
                    "function_name": name,
                    "args": dict(arguments),
                    "status": "in_progress",
                }
            )

    def recorded_call(self, call_id: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """The settled call of another process that this one would be; each only once."""
        calls = [] if self.session.recorded is None else self.session.recorded.calls
        if not calls or calls[0]["tool_call_id"] != call_id or calls[0]["arguments"] != dict(arguments):
            return None
        return calls.pop(0)

    def command_ended(
        self,
        call_id: str,
        output: str,
        outcome: Literal["ok", "error", "interrupted"],
        exit_code: int | None = None,
        *,
        raw: Mapping[str, Any] | None = None,
        checkpoint: int | None = None,
        replayed: bool = False,
    ) -> None:
        """The command's effect has settled, or nobody waits for it any more.

        `raw` is what the loop needs to have the result again, `checkpoint` the state after it.
        """
        content = output if len(output) <= OUTPUT_LIMIT else output[:OUTPUT_LIMIT] + "\n[... cut]"
        if not replayed:
            self.session.activity.tool_call_completed(
                call_id,
                outcome=outcome,
                content=content,
                exit_code=exit_code,
                raw_output=raw,
                checkpoint=checkpoint,
            )
        status = {"ok": "completed", "error": "failed", "interrupted": "cancelled"}[outcome]
        self.session.emit(
            {
                "kind": "tool",
                "phase": "update",
                "tool_call_id": call_id,
                "content": content,
                "raw_output": {"exit_code": exit_code},
                "status": status,
            }
        )


def limit_reached(which: str, detail: str) -> AgentResult:
    """The turn ended because of a limit; what was done until then stands."""
    return AgentResult(status="limit", stop_reason=which, repeatable=False, metadata={"limit": detail})


def _model(session: Session, options: LoopOptions) -> ModelExecutor:
    """The executor of a single call, on the same session."""
    if options.wire == "anthropic":
        if session.model.api == "responses":
            raise ExecutorError("loop_wire_invalid", "model.api: responses is for wire: openai")
        given = {"stream": options.stream, "max_tokens": options.max_tokens}
        return AnthropicExecutor(replace(session, options=given))
    return OpenAIExecutor(replace(session, options={"stream": options.stream}))


def _failed(error: str, message: str, status: AgentStatus = "crashed") -> AgentResult:
    return AgentResult(
        ok=False,
        error=f"{error}: {message}" if message else error,
        status=status,
        infrastructure=True,
        repeatable=False,
    )


def _is_prompt(messages: Sequence[Mapping[str, Any]], prompt: str) -> bool:
    return len(messages) == 1 and messages[0].get("content") == prompt


def _outcome(run: Run, cancelled: bool) -> AgentResult:
    """What the ended task came to."""
    assert run.task is not None
    if not run.task.done():
        # It does not end: nothing more is taken from it.
        return AgentResult(ok=False, error="cancelled", status="cancelled", repeatable=False)
    if run.task.cancelled() or cancelled:
        if not run.task.cancelled():
            with contextlib.suppress(Exception):
                run.task.exception()
        return AgentResult(ok=False, error="cancelled", status="cancelled", repeatable=False)
    error = run.task.exception()
    if error is None:
        return run.task.result()
    if isinstance(error, LoopEndedError):
        return error.result
    if isinstance(error, AgevalError):
        return _failed(error.title, error.message)
    raise error
