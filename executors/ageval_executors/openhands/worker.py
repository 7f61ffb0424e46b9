"""Runs in the box, with the OpenHands SDK: a conversation that is driven by JSON lines.

Not imported by anything: the file is copied into the box and started there. A line of stdin is one of
``{"do": "start", ...}`` (once, with the settings), ``{"do": "prompt", "text": ...}`` and ``{"do":
"cancel"}``; a line of stdout is one of ``ready``, ``text``, ``tool``, ``result``, ``usage``, ``other``,
``end`` and ``fatal``, in the key ``is``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import Any

#: Characters of an output that go out, and levels of an unknown event that are looked at.
LIMIT = 256 * 1024


class Out:
    """Lines to the host, on a descriptor that nothing else in this process writes to."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def say(self, word: str, **fields: Any) -> None:
        """One line."""
        line = json.dumps({"is": word, **fields}, default=str).encode() + b"\n"
        with self._lock:
            while line:
                line = line[self._file.write(line) or 0 :]


class Worker:
    """One conversation."""

    def __init__(self, out: Out, settings: dict[str, Any]) -> None:
        from openhands.sdk import LLM, Agent, Conversation, Tool
        from openhands.sdk.context.condenser import LLMSummarizingCondenser
        from openhands.tools.file_editor import FileEditorTool
        from openhands.tools.task_tracker import TaskTrackerTool
        from openhands.tools.terminal import TerminalTool

        self.out = out
        self.text = ""
        self.error: dict[str, Any] | None = None
        self._told: dict[str, int] = {}
        #: A prompt that failed before the agent said or did anything: it stands in the conversation.
        self._unanswered: str | None = None
        self._heard = False
        self.llm = LLM(usage_id="agent", **settings["llm"])
        condenser = self.llm.model_copy(update={"usage_id": "condenser"})
        agent = Agent(
            llm=self.llm,
            tools=[
                # A terminal of its own: tmux would leave a server behind that all conversations share.
                Tool(name=TerminalTool.name, params={"terminal_type": "subprocess"}),
                Tool(name=FileEditorTool.name),
                Tool(name=TaskTrackerTool.name),
            ],
            system_prompt_kwargs={"cli_mode": True},
            condenser=LLMSummarizingCondenser(llm=condenser, max_size=240, keep_first=2),
        )
        self.conversation = Conversation(
            agent=agent,
            workspace=settings["workspace"],
            callbacks=[self.on_event],
            max_iteration_per_run=settings["max_iterations"],
            visualizer=None,
        )

    # -- events ------------------------------------------------------------------------------------

    def on_event(self, event: Any) -> None:
        """Pass an event of the conversation on. Called from any of its threads."""
        try:
            self.usage()
            self._event(event)
        except Exception as error:  # a form that is not known must not end the conversation
            self.out.say("other", event=type(event).__name__, error=str(error)[:500])

    def _event(self, event: Any) -> None:
        kind = type(event).__name__
        self._heard = self._heard or kind in ("ActionEvent", "ObservationEvent")
        if kind == "MessageEvent":
            if event.source == "agent":
                self._heard = True
                self._thought(event.llm_message.reasoning_content)
                self._say(_joined(event.llm_message.content))
        elif kind == "ActionEvent":
            self._action(event)
        elif kind in ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation"):
            self._observation(event, kind)
        elif kind == "ConversationErrorEvent":
            self.error = {"code": event.code, "detail": event.detail}
        elif kind not in ("SystemPromptEvent", "ConversationStateUpdateEvent"):
            self.out.say("other", event=kind, data=event.model_dump_json(exclude_none=True)[:LIMIT])

    def _action(self, event: Any) -> None:
        self._thought(event.reasoning_content)
        self._say(_joined(event.thought))
        if event.tool_name == "finish":
            self._say(str(getattr(event.action, "message", "") or ""))
            return
        try:
            arguments = json.loads(event.tool_call.arguments)
        except ValueError:
            arguments = {"raw": event.tool_call.arguments}
        self.out.say("tool", id=event.tool_call_id, name=event.tool_name, arguments=arguments)

    def _observation(self, event: Any, kind: str) -> None:
        if event.tool_name == "finish":
            return
        observation: Any = getattr(event, "observation", None)
        if observation is None:
            content = str(getattr(event, "error", None) or getattr(event, "rejection_reason", ""))
        else:
            content = _joined(observation.to_llm_content)
        code = getattr(observation, "exit_code", None)
        failed = kind != "ObservationEvent" or bool(observation and observation.is_error) or bool(code)
        self.out.say("result", id=event.tool_call_id, content=content[:LIMIT], failed=failed, exit_code=code)

    def _thought(self, text: str | None) -> None:
        if text:
            self.out.say("text", channel="thought", text=text)

    def _say(self, text: str) -> None:
        if text:
            self.text = text
            self.out.say("text", channel="assistant", text=text)

    def usage(self) -> None:
        """Tell of each model call that has been counted since the last time."""
        for metrics in self.conversation.conversation_stats.usage_to_metrics.values():
            rows, name = metrics.token_usages, str(id(metrics))
            for row in rows[self._told.get(name, 0) :]:
                self.out.say("usage", **row.model_dump())
            self._told[name] = len(rows)

    # -- turns -------------------------------------------------------------------------------------

    async def turn(self, prompt: str) -> None:
        """One prompt to its end."""
        self.text, self.error, self._heard = "", None, False
        failure: dict[str, Any] | None = None
        again, self._unanswered = prompt == self._unanswered, None
        try:
            if not again:
                await asyncio.to_thread(self.conversation.send_message, prompt)
            await self.conversation.arun()
        except Exception as error:
            failure = _failure(error)
            self._unanswered = None if self._heard else prompt
        self.usage()
        status = self.conversation.state.execution_status.value
        self.out.say("end", status=status, text=self.text, error=failure or self.error)


def _joined(content: Any) -> str:
    return "".join(part.text for part in content or () if getattr(part, "text", None))


def _failure(error: BaseException) -> dict[str, Any]:
    """The innermost exception that says something: its class, its words, its HTTP status."""
    chain: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and len(chain) < 10:
        chain.append(found)
        found = found.__cause__ or found.__context__
    said = chain[1] if len(chain) > 1 else chain[0]
    statuses = [code for each in chain if isinstance(code := getattr(each, "status_code", None), int)]
    headers = [h for each in chain if (h := getattr(getattr(each, "response", None), "headers", None))]
    headers += [h for each in chain if (h := getattr(each, "litellm_response_headers", None))]
    after = next((value for h in headers if (value := h.get("retry-after"))), None)
    return {
        "code": type(said).__name__,
        "classes": [type(each).__name__ for each in chain],
        "detail": str(said)[:4000],
        "http_status": statuses[-1] if statuses else None,
        "retry_after": after,
    }


async def main() -> None:
    """Read lines until stdin ends."""
    out = Out()
    reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb"))
    worker: Worker | None = None
    running: asyncio.Task[None] | None = None
    while line := await reader.readline():
        told = json.loads(line)
        if told["do"] == "start":
            try:
                worker = await asyncio.to_thread(Worker, out, told)
            except Exception as error:
                out.say("fatal", error=_failure(error))
                return
            import openhands.sdk

            out.say("ready", version=openhands.sdk.__version__)
        elif told["do"] == "prompt" and worker is not None:
            running = asyncio.create_task(worker.turn(told["text"]))
        elif told["do"] == "cancel" and worker is not None and running is not None and not running.done():
            worker.conversation.interrupt()
    if running is not None and not running.done() and worker is not None:
        worker.conversation.interrupt()
    # Threads of the SDK may still wait for a model: they end with the process.
    os._exit(0)


if __name__ == "__main__":
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - the descriptor is ours
    asyncio.run(main())
