"""`OpenHandsExecutor`: one conversation of the OpenHands SDK in the box."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec

from ageval_executors._http import is_loopback
from ageval_executors._pypi import PyPackages, ensure_packages, find_installed
from ageval_executors.openhands.process import WorkerProcess
from ageval_executors.openhands.turn import Turn
from pytest_ageval.box import HOME, WORKSPACE, Box
from pytest_ageval.errors import BoxError, ExecutorError
from pytest_ageval.executor import AgentResult, Executor, Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The packages that are installed, and the Pythons that they run on.
VERSION = "1.58.2"
PYTHONS = (3, 12), (3, 14)

#: Seconds that a turn gets to end after it was told to; then the worker is ended.
CANCEL_SECONDS = 5.0

#: Seconds of one model call, when nobody limits the turn.
CALL_SECONDS = 600

#: While a call is held back, nobody knows for how long; look again not more often than this (seconds).
HELD_POLL = 0.05

WORKER = Path(__file__).with_name("worker.py")
_EXTRA = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "seed": "seed",
    "max_tokens": "max_output_tokens",
}


class OpenHandsOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Options of ``openhands``.

    `version` is the exact version of ``openhands-sdk`` and ``openhands-tools``. `max_iterations` is how
    many steps one turn may take. `wire` says which API a model behind ``base_url`` speaks. `retries` is
    how often a model call that failed in a way that passes is repeated. `python` names the interpreter
    that the SDK is installed with. `start_timeout_seconds` is for the start of the SDK.
    """

    version: Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d+\.\d+$")] = VERSION
    max_iterations: Annotated[int, msgspec.Meta(ge=1)] = 40
    wire: Literal["openai", "anthropic"] = "openai"
    retries: Annotated[int, msgspec.Meta(ge=0, le=20)] = 2
    python: str | None = None
    start_timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 180.0

    @property
    def packages(self) -> PyPackages:
        """What is installed for these options."""
        pins = {"openhands-sdk": self.version, "openhands-tools": self.version}
        return PyPackages("openhands-sdk", pins, python=PYTHONS[0], below=PYTHONS[1])


class OpenHandsExecutor(Executor):
    """The agent of the OpenHands SDK with its terminal, file editor and task tracker.

    It runs in the box, where it calls the model itself: the key is in the box, in the memory of its
    process and not in its environment. A model turn of the activity log is a whole turn. A budget is
    looked at whenever a model call has been counted, so that the call after it is the last one at most.
    """

    kind: ClassVar[str] = "openhands"
    requires_box: ClassVar[frozenset[str]] = frozenset({"attach_stdio", "exec", "upload"})
    supported_apis: ClassVar[frozenset[str]] = frozenset({"chat", "responses"})
    supported_model_fields: ClassVar[frozenset[str]] = frozenset({"reasoning_effort", "timeout", "extra"})
    extra_allowlist: ClassVar[frozenset[str]] = frozenset(_EXTRA)
    requires_model: ClassVar[bool] = True
    Options = OpenHandsOptions

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.options: OpenHandsOptions
        self._process: WorkerProcess | None = None
        self._ready: asyncio.Future[dict[str, Any]] | None = None
        self._turn: Turn | None = None
        self._dead: str | None = None

    # -- open --------------------------------------------------------------------------------------

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> str | None:
        """A Python that fits is here, for a box on this machine."""
        asked = msgspec.convert(dict(options), OpenHandsOptions)
        try:
            asyncio.run(find_installed(asked.packages, asked.python))
        except ExecutorError as error:
            return f"{error.message}\ninstall Python 3.12 or 3.13"
        return None

    @classmethod
    def describe(cls, options: Mapping[str, Any]) -> str:
        """Where it is installed, or that it will be."""
        asked = msgspec.convert(dict(options), OpenHandsOptions)
        try:
            found = asyncio.run(find_installed(asked.packages, asked.python))
        except ExecutorError:
            return ""
        return "installed before its first run" if found is None else f"installed in {found}"

    @classmethod
    async def prepare(cls, session: Session) -> None:
        """Install the SDK, and refuse what the run would refuse."""
        executor = cls(session)
        executor._check()
        options = executor.options
        await ensure_packages(options.packages, executor._box(), python=options.python, may_install=True)
        packages = dict(options.packages.pins)
        session.emit(
            {"kind": "opaque", "raw": {"type": "agent_runtime", "entry": cls.kind, "packages": packages}}
        )

    async def open(self) -> None:
        """Start the SDK in the box, within ``start_timeout_seconds``."""
        self._check()
        box = self._box()
        runtime = await ensure_packages(
            self.options.packages, box, python=self.options.python, may_install=False
        )
        script = await self._bring_worker(box)
        home = box.visible_path(HOME)
        env = {
            "HOME": home,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # the list of prices would be fetched
            "OPENHANDS_SUPPRESS_BANNER": "1",
            "LOG_LEVEL": "WARNING",
            "NO_COLOR": "1",
            "TERM": "dumb",
            **runtime.env,
        }
        try:
            transport = await box.attach_stdio([runtime.python, script], env=env)
        except BoxError as error:
            raise ExecutorError("openhands_start_failed", str(error)) from error
        self._ready = asyncio.get_running_loop().create_future()
        self._process = WorkerProcess(transport, self._take)
        try:
            await self._start(self._process, box)
        except BaseException:
            await self.close()
            raise

    def _box(self) -> Box:
        if self.session.box is None:
            raise ExecutorError("openhands_box_missing", "the OpenHands SDK runs in a box, and there is none")
        return self.session.box

    def _check(self) -> None:
        if self.session.permission != "allow":
            raise ExecutorError(
                "openhands_permission_unsupported",
                f"the executor openhands asks for no permission, so the policy {self.session.permission!r} "
                "cannot be kept",
            )
        if not self.session.api_key and not is_loopback(self.session.base_url or ""):
            name = self.session.api_key_name
            remedy = f"the variable {name} is not set" if name else "set api_key: ${NAME} in the profile"
            raise ExecutorError("openhands_credentials_missing", f"the model needs a key: {remedy}")

    async def _bring_worker(self, box: Box) -> str:
        directory = f"{HOME}/.ageval-openhands"
        await box.upload(WORKER, f"{directory}/worker.py")
        return box.visible_path(f"{directory}/worker.py")

    async def _start(self, process: WorkerProcess, box: Box) -> None:
        settings = {
            "workspace": box.visible_path(WORKSPACE),
            "max_iterations": self.options.max_iterations,
            "llm": self._llm(),
        }
        await process.send("start", **settings)
        assert self._ready is not None
        left, limit = self.session.remaining(), self.options.start_timeout_seconds
        seconds = limit if left is None else max(0.1, min(limit, left))
        gone = asyncio.ensure_future(process.ended.wait())
        waits: set[asyncio.Future[Any]] = {self._ready, gone}
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if self._ready.done():
            fatal = self._ready.result().get("error")
            if fatal is None:
                return
            why = f"{fatal.get('code')}: {fatal.get('detail')}"
        else:
            why = process.why or f"it is not ready after {seconds:g} seconds"
        raise ExecutorError(
            "openhands_start_failed",
            f"the OpenHands SDK does not start: {self._scrub(why)}",
            detail=self._scrub(process.last_lines()) or None,
        )

    def _llm(self) -> dict[str, Any]:
        """The settings of the SDK's ``LLM``. Nothing is set that nobody asked for."""
        spec, name = self.session.model, self.session.model.id or ""
        if self.session.base_url is not None or "/" not in name:
            name = f"{self.options.wire}/{name}"
        found: dict[str, Any] = {
            "model": name,
            "api_key": self.session.api_key or "no-key-needed-on-loopback",
            "base_url": self.session.base_url,
            "num_retries": self.options.retries + 1,  # it counts the first try
            "retry_min_wait": 1,
            "retry_max_wait": 16,
            "retry_multiplier": 2.0,
            "timeout": CALL_SECONDS,
            "reasoning_effort": spec.reasoning_effort,
        }
        if spec.api is not None:
            found["api_mode"] = spec.api
        elif self.session.base_url is not None:
            found["api_mode"] = "chat"
        if self.options.wire == "openai":
            # As they are: the SDK leaves out what it believes that a model does not take.
            return {**found, "litellm_extra_body": dict(spec.extra)} if spec.extra else found
        return {**found, **{_EXTRA[key]: value for key, value in spec.extra.items()}}

    # -- a turn ------------------------------------------------------------------------------------

    def _take(self, line: dict[str, Any]) -> None:
        word = line["is"]
        if word in ("ready", "fatal"):
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(line)
        elif self._turn is not None:
            self._turn.take(line)

    async def invoke(
        self,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> AgentResult:
        """One prompt, worked on to its end. The agent has tools and a history of its own."""
        process = self._process
        if process is None or self._dead is not None or process.ended.is_set():
            return self._gone(self._dead or (process.why if process else "the session is not open"))
        turn = self._turn = Turn(self.session, prompt, self._scrub)
        turn.ignored(tools, messages)
        left = self.session.remaining()
        if left is not None and left <= 0:
            turn.stop("wall_time_exceeded")
            return turn.result(None, repeatable=True)
        try:
            await process.send("prompt", text=prompt)
            await self._watch(process, turn)
        except asyncio.CancelledError:
            self._dead = "a turn was abandoned"
            turn.abort("cancelled")
            raise
        finally:
            self._turn = None
        if turn.end is None and turn.stopped is None:
            self._dead = process.why or "the worker ended"
        return turn.result(self._dead, stderr=self._scrub(process.last_lines()) if self._dead else "")

    async def _watch(self, process: WorkerProcess, turn: Turn) -> None:
        """Wait for the turn's end; stop it when its time is up or a budget is used up."""
        loop = asyncio.get_running_loop()
        held = self.session.held()
        limit, left = self.session.model.timeout, self.session.remaining()
        deadlines = [(loop.time() + limit, "model_timeout")] if limit is not None else []
        if left is not None:
            deadlines.append((loop.time() + left, "wall_time_exceeded"))
        gone = asyncio.ensure_future(process.ended.wait())
        ended = asyncio.ensure_future(turn.over.wait())
        try:
            while not ended.done() and not gone.done():
                stop = asyncio.ensure_future(turn.refused.wait())
                until, why = min(deadlines, default=(None, ""))
                more = self.session.held() - held
                seconds = None if until is None else max(0.0, until + more - loop.time())
                waits = {gone, ended, stop} if turn.stopped is None else {gone, ended}
                await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                stop.cancel()
                if ended.done() or gone.done():
                    break
                if turn.refusal is None and turn.stopped is None and self.session.held() - held > more:
                    await asyncio.sleep(HELD_POLL)  # the gateway let the agent wait
                    continue
                await self._stop(process, turn, turn.refusal or why)
                return
        finally:
            gone.cancel()
            ended.cancel()

    async def _stop(self, process: WorkerProcess, turn: Turn, why: str) -> None:
        """Tell the worker to end the turn; one that does not is ended itself."""
        turn.stop(why)
        await process.send("cancel")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(turn.over.wait(), CANCEL_SECONDS)
        if not turn.over.is_set():
            self._dead = f"the turn did not end {CANCEL_SECONDS:g} seconds after {why}"
            await process.stop()

    async def cancel(self) -> None:
        """End the running turn. A worker that does not end it within five seconds is ended itself."""
        process, turn = self._process, self._turn
        if process is not None and turn is not None and turn.stopped is None and not turn.over.is_set():
            await self._stop(process, turn, "cancelled")

    async def close(self) -> None:
        """End the worker and everything it started; keep what it printed where that is wanted."""
        process, self._process = self._process, None
        self._dead = self._dead or "the session is closed"
        if process is None:
            return
        await process.stop()
        if self.session.raw_dir is not None and (text := process.printed()):
            await asyncio.to_thread(_write, self.session.raw_dir, self._scrub(text))

    def _gone(self, why: str) -> AgentResult:
        closed = why == "the session is closed"
        return AgentResult(
            ok=False,
            error=f"{'session_closed' if closed else 'openhands_ended'}: {why}",
            status="crashed",
            infrastructure=True,
            repeatable=False,
        )

    def _scrub(self, text: str) -> str:
        key = self.session.api_key
        return text.replace(key, f"[REDACTED:{self.session.api_key_name or 'api_key'}]") if key else text


def _write(directory: Path, text: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=directory, delete=False) as file:
        file.write(text)
    Path(file.name).replace(directory / "openhands-stderr.log")
