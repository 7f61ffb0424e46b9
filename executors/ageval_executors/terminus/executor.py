"""`TerminusExecutor`: a model, a terminal, and the loop between them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from ageval_executors._loop import LoopEndedError, LoopExecutor, LoopOptions, Run, limit_reached
from ageval_executors.terminus import prompts
from ageval_executors.terminus.reply import DEFAULT_DURATION, Keys, Reply, read_json, read_xml
from ageval_executors.terminus.terminal import Terminal
from pytest_ageval.executor import AgentResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_ageval.executor import Session

#: Bytes of the terminal's output that one message to the model holds.
OUTPUT_BYTES = 10_000

#: Exchanges at the end of a conversation that is too long that are left out before a summary is asked for.
DROPPED = 2

_OVERFLOW = (
    "context_length_exceeded",
    "context length",
    "context window",
    "prompt is too long",
    "too many tokens",
)

_Whole = Annotated[int, msgspec.Meta(ge=1)]


class TerminusOptions(LoopOptions, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Options of ``terminus-2``.

    `parser`: the form of the model's answers. `cmd_timeout` is the longest wait after one command.
    `pane_width` and `pane_height` are the terminal's size in characters. `max_format_errors`: the turn
    ends after so many answers in a row that cannot be read. `context_limit` is how many tokens the model
    takes: a summary replaces the conversation when fewer than `context_free` of them are left; 0 waits
    for the provider to refuse a request for its length. `confirm_completion`: the model is asked once
    more before its word that the task is complete counts.
    """

    cmd_timeout: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    parser: prompts.Parser = "json"
    pane_width: Annotated[int, msgspec.Meta(ge=20, le=1000)] = 160
    pane_height: Annotated[int, msgspec.Meta(ge=5, le=500)] = 40
    max_format_errors: _Whole = 3
    context_limit: Annotated[int, msgspec.Meta(ge=0)] = 0
    context_free: Annotated[int, msgspec.Meta(ge=0)] = 8000
    confirm_completion: bool = True


class TerminusExecutor(LoopExecutor):
    """Types what the model asks for into a terminal in the box, and shows the model what it shows.

    The terminal and the conversation last as long as the session. The answer of a turn is the last
    analysis. A command of the trajectory is one text that was typed; the output of a whole answer stands
    at its last command.
    """

    kind: ClassVar[str] = "terminus-2"
    Options = TerminusOptions

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.options: TerminusOptions
        self._terminal: Terminal | None = None
        self._messages: list[dict[str, Any]] = []
        self._opening = ""
        self._commands = 0
        self._longest = 0

    @property
    def terminal(self) -> Terminal:
        """The terminal of an open session."""
        assert self._terminal is not None
        return self._terminal

    async def open(self) -> None:
        """Start the terminal."""
        await super().open()
        self._terminal = Terminal(self.box, self.options.pane_width, self.options.pane_height)
        await self._terminal.start()

    async def close(self) -> None:
        """End the terminal and all that runs in it."""
        await super().close()
        terminal, self._terminal = self._terminal, None
        if terminal is not None:
            await terminal.stop()

    # -- a turn ------------------------------------------------------------------------------------

    async def work(self, run: Run) -> AgentResult:
        """Answer by answer, until the model has said twice that the task is complete."""
        self._say(await self._beginning(run.prompt))
        errors, confirming = 0, False
        while True:
            result = await self._ask(run)
            cut = result.status == "limit"
            reply = Reply(error="cut off") if cut else self._read(result.text)
            if reply.error is not None:
                errors += 1
                if errors >= self.options.max_format_errors:
                    return self._gave_up(result, reply.error)
                self._say(prompts.cut_off(self.options.parser) if cut else self._malformed(reply.error))
                continue
            errors = 0
            run.text = reply.analysis
            screen = await self._carry_out(run, reply.commands)
            if reply.complete and (confirming or not self.options.confirm_completion):
                return AgentResult(text=run.text, stop_reason="task_complete", repeatable=False)
            confirming = reply.complete
            screen = prompts.with_warnings(screen, reply.warnings)
            self._say(prompts.confirm(screen) if confirming else screen)
            if await self._keep_short(run, result):
                confirming = False  # the question is no longer in the conversation

    async def _beginning(self, task: str) -> str:
        screen = await self._screen()
        if self._messages:
            if self._messages[-1]["role"] == "user":  # the last turn ended before it was answered
                self._messages.pop()
            return prompts.further(task, screen)
        options = self.options
        ask = {"default": DEFAULT_DURATION, "longest": options.cmd_timeout}
        self._opening = prompts.first(task, "", options.parser, **ask).rstrip()
        return prompts.first(task, screen, options.parser, **ask)

    def _say(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})

    def _read(self, text: str) -> Reply:
        return read_json(text) if self.options.parser == "json" else read_xml(text)

    def _malformed(self, error: str) -> str:
        return prompts.malformed(error, self.options.parser)

    def _gave_up(self, result: AgentResult, error: str) -> AgentResult:
        metadata = {"format_error": error}
        if result.status == "limit":
            return replace(limit_reached(result.stop_reason or "max_tokens", error), metadata=metadata)
        return AgentResult(status="unknown", stop_reason="format_errors", repeatable=False, metadata=metadata)

    # -- the terminal ------------------------------------------------------------------------------

    async def _carry_out(self, run: Run, commands: list[Keys]) -> str:
        """Type the commands, wait after each, and show what the terminal shows at the end."""
        call_id = ""
        try:
            for keys in commands:
                if call_id:
                    self.command_ended(call_id, "", "ok")
                call_id = await self._type(run, keys)
            screen = await self._screen()
        except BaseException as error:
            if call_id:
                self.command_ended(call_id, type(error).__name__, "interrupted")
            raise
        if call_id:
            self.command_ended(call_id, screen, "ok")
        return screen

    async def _type(self, run: Run, keys: Keys) -> str:
        seconds = self.seconds(min(keys.duration, self.options.cmd_timeout))
        self._commands += 1
        call_id = f"keys_{self._commands}"
        arguments = {"keystrokes": keys.keystrokes, "duration": seconds}
        self.command_started(run, call_id, "terminal", arguments, announced=False)
        await self.terminal.send(keys.keystrokes)
        await asyncio.sleep(seconds)
        return call_id

    async def _screen(self) -> str:
        view = await self.terminal.view()
        return prompts.shown(view.text, new=view.new, restarted=view.restarted, limit=OUTPUT_BYTES)

    # -- the conversation --------------------------------------------------------------------------

    async def _ask(self, run: Run) -> AgentResult:
        """The model's next answer; a conversation that the provider finds too long is summed up first."""
        try:
            result = await self.ask(run, "", messages=self._messages)
        except LoopEndedError as ended:
            if not _too_long(ended.result) or len(self._messages) < 2 + 2 * DROPPED:
                raise
            del self._messages[-2 * DROPPED :]
            await self._sum_up(run)
            result = await self.ask(run, "", messages=self._messages)
        if result.text:
            self._messages.append({"role": "assistant", "content": result.text})
        else:  # providers refuse a conversation that holds an empty answer
            self._messages.append({"role": "assistant", "content": "(no answer)"})
        return result

    async def _keep_short(self, run: Run, result: AgentResult) -> bool:
        limit, usage = self.options.context_limit, result.usage
        if not limit:
            return False
        if usage.prompt_tokens is not None and usage.completion_tokens is not None:
            used = usage.prompt_tokens + usage.completion_tokens
        else:  # four characters a token, as far as that goes
            used = sum(len(message["content"]) for message in self._messages) // 4
        if limit - used >= self.options.context_free:
            return False
        await self._sum_up(run)
        return True

    async def _sum_up(self, run: Run) -> None:
        """Let the model write its notes, and go on with these in place of the conversation."""
        asked = [*self._messages]
        if asked[-1]["role"] == "user":
            asked[-1] = {"role": "user", "content": f"{asked[-1]['content']}\n\n{prompts.SUMMARY}"}
        else:
            asked.append({"role": "user", "content": prompts.SUMMARY})
        notes = await self.ask(run, "", messages=asked, counted=False)
        self._messages.clear()
        self._say(prompts.carried_on(self._opening, notes.text, await self._screen()))
        self.session.emit({"kind": "opaque", "raw": {"type": "context_summarised", "messages": len(asked)}})


def _too_long(result: AgentResult) -> bool:
    """The provider refused the request for its length."""
    told: Mapping[str, Any] = result.metadata
    if told.get("http_status") not in (400, 413, 422):
        return False
    text = f"{told.get('provider_code', '')} {told.get('message', '')}".lower()
    return any(word in text for word in _OVERFLOW)
