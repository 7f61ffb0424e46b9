"""The executor ``miniswe``: the loop of mini-swe-agent on the host, its commands in the box.

The loop, the prompts, the parsing of actions and the form of observations are the package's own. Its
`LitellmModel` is not used: importing litellm takes seven seconds and 180 MB, fetches a price list from
the network, and sets up log handlers of its own; its retries know no Retry-After and cannot be
cancelled, and its failures reach the loop as one class. The model is called as ``openai-http`` and
``anthropic-http`` call it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import json
import os
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import yaml

from ageval_executors._conversation import UNANSWERED, rows_digest
from ageval_executors._loop import (
    END_SECONDS,
    OUTPUT_LIMIT,
    LoopExecutor,
    LoopOptions,
    Run,
    limit_reached,
)
from ageval_executors._text import mend
from pytest_ageval.errors import ExecutorError
from pytest_ageval.executor import AgentResult

if TYPE_CHECKING:
    from pytest_ageval.executor import Session

T = TypeVar("T")

#: The configuration of the package whose templates are used: the one of its command ``mini``.
CONFIG = "mini.yaml"

_SHELL = 's=$(command -v bash || command -v sh); exec "$s" -c "$0" 2>&1'
_IMPORTS = threading.Lock()


class MinisweOptions(LoopOptions, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Options of ``miniswe``.

    `max_format_errors`: the turn ends after so many answers in a row without a well-formed tool call.
    """

    max_format_errors: int = 3


class MinisweExecutor(LoopExecutor):
    """mini-swe-agent: one tool, ``bash``; each command in a fresh shell in the workspace.

    The turn ends when a command prints ``COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT`` as its first line; what
    it prints after that is the answer, or else what the model said last. A further prompt goes on in the
    same conversation.
    """

    kind: ClassVar[str] = "miniswe"
    resumable: ClassVar[bool] = True
    replays: ClassVar[bool] = True
    Options = MinisweOptions

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.options: MinisweOptions
        self._messages: list[dict[str, Any]] = []
        self._system: dict[str, str] = {}

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> str | None:
        """The package is installed."""
        try:
            load()
        except ExecutorError as error:
            return f"{error.message}\npip install 'pytest-ageval[miniswe]'"
        return None

    @classmethod
    async def prepare(cls, session: Session) -> None:
        """Refuse what the run would refuse: the package is missing."""
        await asyncio.to_thread(load)

    async def open(self) -> None:
        """Import the package, and ask the box what system it is."""
        await super().open()
        await asyncio.to_thread(load)
        done = await self.box.exec(["uname", "-srvm"], timeout=60)
        words = done.stdout.split()
        version = " ".join(words[2:-1])
        names = ("system", "release", "machine", "version")
        if done.ok and len(words) >= 4:
            self._system = dict(zip(names, (words[0], words[1], words[-1], version), strict=True))
        else:  # the box has no uname
            self._system = dict.fromkeys(names, "") | {"system": "Linux"}

    def resume_token(self) -> dict[str, Any] | None:
        """The conversation of the loop, and what the model's own side of it needs."""
        model = self.model.resume_token()
        if model is None or not self._messages:
            return None
        rows = json.loads(json.dumps(self._messages, default=str))
        return {"messages": rows, "sha256": rows_digest(rows), "model": model}

    async def resume(self, token: Mapping[str, Any]) -> None:
        """Take over the conversation. See `Executor.resume`."""
        rows, model = token.get("messages"), token.get("model")
        if not isinstance(rows, list) or not isinstance(model, Mapping):
            raise ExecutorError("resume_token_invalid", "the token holds no conversation of this loop")
        if token.get("sha256") != rows_digest(rows):
            raise ExecutorError(
                "resume_token_invalid", "the conversation was changed since, as by the masking of a secret"
            )
        await self.open()
        await self.model.resume(model)
        self._messages = rows

    async def work(self, run: Run) -> AgentResult:
        """Run the package's loop in a thread until it exits."""
        thread = _Thread(self, run)
        agent = await asyncio.to_thread(self._agent, thread, run)
        running = thread.start(lambda: agent.run(run.prompt))
        try:
            extra = await asyncio.shield(running)
        except asyncio.CancelledError:
            thread.stop()
            await asyncio.wait({running}, timeout=END_SECONDS)
            raise
        finally:
            self._messages = _kept(agent.messages)
        return _result(run, extra)

    def _agent(self, thread: _Thread, run: Run) -> Any:
        package = load()
        config = package.config
        environment = package.environment(thread, self._system, config["environment"])
        model = package.model(thread, config["model"])
        templates = {name: config["agent"][name] for name in ("system_template", "instance_template")}
        if self._messages:
            templates["instance_template"] = "{{task}}"
        # The limits of steps and costs are kept by `ask`, which knows the true figures.
        return package.agent(
            model,
            environment,
            earlier=self._messages,
            step_limit=0,
            cost_limit=0.0,
            max_consecutive_format_errors=self.options.max_format_errors,
            **templates,
        )


class _Thread:
    """What the loop's thread may do on the event loop; `stop` ends it."""

    def __init__(self, executor: MinisweExecutor, run: Run) -> None:
        self.executor = executor
        self.run = run
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self._waits: concurrent.futures.Future[Any] | None = None
        self._lock = threading.Lock()

    def start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` in a thread of its own: the pool's threads are few, and commands need them."""
        ended: asyncio.Future[T] = self._loop.create_future()
        ended.add_done_callback(lambda done: done.cancelled() or done.exception())

        def settle(value: T | None, error: BaseException | None) -> None:
            if ended.done():
                return
            if error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(value)  # type: ignore[arg-type]

        def body() -> None:
            value, error = None, None
            try:
                value = work()
            except BaseException as caught:  # whatever it is, the waiting task must hear of it
                error = caught
            with contextlib.suppress(RuntimeError):  # the event loop is gone, and the task with it
                self._loop.call_soon_threadsafe(settle, value, error)

        threading.Thread(target=body, name="ageval-miniswe", daemon=True).start()
        return ended

    def stop(self) -> None:
        """Cancel what the thread waits for, and let it do nothing more."""
        with self._lock:
            self._stopped = True
            if self._waits is not None:
                self._waits.cancel()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the event loop and wait for it. From the loop's thread only."""
        with self._lock:
            if self._stopped:
                work.close()
                raise concurrent.futures.CancelledError
            self._waits = waits = asyncio.run_coroutine_threadsafe(work, self._loop)
        return waits.result()

    def ask(self, messages: list[dict[str, Any]], tool: Mapping[str, Any]) -> AgentResult:
        """One model call with the whole conversation."""
        told = [{k: v for k, v in row.items() if k != "extra"} for row in messages if row["role"] != "exit"]
        return self.call(self.executor.ask(self.run, "", tools=[tool], messages=told))

    def execute(self, action: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
        """One command in the box."""
        return self.call(self._execute(action, env))

    def refuse(self, call_ids: Sequence[str]) -> None:
        """Calls that are not carried out because they are not well-formed."""
        for call_id in call_ids:
            self.executor.session.emit(
                {"kind": "tool", "phase": "update", "tool_call_id": call_id, "status": "failed"}
            )

    async def _execute(self, action: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
        executor, command = self.executor, action["command"]
        if not isinstance(command, str) or "\0" in command:
            return _output("", -1, "the command is not a text")
        call_id = str(action.get("tool_call_id"))
        arguments = {"command": command}
        recorded = executor.recorded_call(call_id, arguments)
        if recorded is not None:
            return await self._replay(call_id, arguments, recorded)
        seconds = executor.seconds(executor.options.cmd_timeout)
        executor.command_started(self.run, call_id, "bash", arguments, announced=True)
        try:
            done = await executor.box.exec(["sh", "-c", _SHELL, command], env=env, timeout=seconds)
            checkpoint = await executor.session.checkpoint()
        except BaseException as error:
            executor.command_ended(call_id, f"{type(error).__name__}", "interrupted")
            raise
        output = _output(mend(done.stdout + done.stderr), done.exit_code, "")
        if done.timed_out:
            output = _output(output["output"], -1, f"the command was ended after {seconds:g} seconds")
        raw = {"returncode": output["returncode"], "exception_info": output["exception_info"]}
        if len(output["output"]) > OUTPUT_LIMIT:
            raw["output"] = output["output"]
        outcome: Literal["ok", "error"] = "ok" if done.ok else "error"
        executor.command_ended(
            call_id, output["output"], outcome, done.exit_code, raw=raw, checkpoint=checkpoint
        )
        return output

    async def _replay(
        self, call_id: str, arguments: Mapping[str, Any], recorded: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What a command of another process gave, and the files as it left them."""
        executor, raw = self.executor, recorded["raw_output"]
        executor.command_started(self.run, call_id, "bash", arguments, announced=True, replayed=True)
        await executor.session.restore(recorded["checkpoint_seq"])
        told = raw.get("output", recorded["content"])
        executor.command_ended(call_id, told, recorded["outcome"], recorded["exit_code"], replayed=True)
        return _output(told, raw["returncode"], raw["exception_info"])


def _output(text: str, code: int, problem: str) -> dict[str, Any]:
    return {"output": text, "returncode": code, "exception_info": problem}


def _kept(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation for a further prompt: every tool call has a result, no exit is in it, and nothing
    that was said after the model's last word."""
    rows = [row for row in messages if row["role"] != "exit"]
    while rows and rows[-1]["role"] == "user":
        rows.pop()
    if len(rows) == 1:
        return []  # only the system's word: the next prompt is the first one again
    answered = {row.get("tool_call_id") for row in rows}
    open_calls = [call for row in rows for call in row.get("tool_calls") or () if call["id"] not in answered]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": UNANSWERED} for call in open_calls]
    return [*rows, *results]


def _result(run: Run, extra: Mapping[str, Any]) -> AgentResult:
    exit_status = str(extra.get("exit_status") or "")
    metadata = {"exit_status": exit_status}
    if exit_status == "Submitted":
        text = str(extra.get("submission") or "").strip() or run.text
        return AgentResult(text=text, stop_reason=exit_status, repeatable=False, metadata=metadata)
    if exit_status.endswith("Exceeded"):
        return limit_reached(exit_status, exit_status)
    return AgentResult(status="unknown", stop_reason=exit_status, repeatable=False, metadata=metadata)


# -- the package -----------------------------------------------------------------------------------


def load() -> SimpleNamespace:
    """The package's classes, ready for us: ``agent``, ``model``, ``environment``, ``config``.

    Raises `ExecutorError` ``miniswe_missing`` or ``miniswe_version``.
    """
    with _IMPORTS, _no_home():
        try:
            base = importlib.import_module("minisweagent")
            importlib.import_module("minisweagent.agents.default")
        except ImportError as error:
            raise ExecutorError(
                "miniswe_missing", f"mini-swe-agent cannot be imported ({error}); install the extra miniswe"
            ) from error
        if not base.__version__.startswith("2."):
            raise ExecutorError(
                "miniswe_version", f"mini-swe-agent {base.__version__} is installed; 2.x is needed"
            )
        from ageval_executors import _miniswe_parts as parts

        config = yaml.safe_load((base.package_dir / "config" / CONFIG).read_text(encoding="utf-8"))
        return SimpleNamespace(
            agent=parts.Agent, model=parts.Model, environment=parts.Environment, config=config
        )


@contextlib.contextmanager
def _no_home() -> Iterator[None]:
    """The package makes a directory for its settings when it is imported, and greets; neither is wanted.

    It also reads variables from a file in that directory into the environment of this process.
    """
    names = ("MSWEA_GLOBAL_CONFIG_DIR", "MSWEA_SILENT_STARTUP")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="ageval-miniswe-") as folder:
        os.environ.update({names[0]: folder, names[1]: "1"})
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
