"""What the tests of the executor contract share: hooks, a stage with a model and a box, a recorder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from pytest_ageval.box import Box, BoxSpec
from pytest_ageval.executor import AgentResult, Executor, ModelSpec, Session, Usage
from pytest_ageval.testing.scripted_model import AFTER_END, Delay, Request, ScriptedModel, Turn, When

#: The key of every session of the contract. It must appear nowhere but at the model.
KEY = "sk-contract-4f6c1e9ab27d"

Body = Callable[["Stage"], Awaitable[None]]
Play = Callable[..., None]

_SERIAL = iter(range(1, 1_000_000))


class Told:
    """Everything that one session tells: events, steps of the activity log, questions, usage of calls."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.steps: list[tuple[str, Any, dict[str, Any]]] = []
        self.asked: list[dict[str, Any]] = []
        self.used: list[Usage] = []
        self.answer: Callable[[Mapping[str, Any]], str | None] = lambda request: None

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda key, **more: self.steps.append((name, key, more))

    async def ask(self, request: Mapping[str, Any]) -> str | None:
        """Answers a permission request, and remembers it."""
        self.asked.append(dict(request))
        return self.answer(request)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [event for event in self.events if event.get("kind") == kind]

    def text(self, channel: str = "assistant") -> str:
        """What was said on one channel, all of it."""
        return "".join(row["text"] for row in self.of_kind("text") if row["channel"] == channel)

    def named(self, name: str) -> list[dict[str, Any]]:
        """The steps of one kind, such as ``model_turn_started``."""
        return [more for found, _, more in self.steps if found == name]

    @property
    def everything(self) -> str:
        """All that was told, as one text: a secret must not be in it."""
        return json.dumps([self.events, self.steps], default=repr, ensure_ascii=False)


@dataclass
class Stage:
    """One session on stage: the opened `executor`, its `told`, the `model` and the `box` behind it."""

    hooks: Hooks
    model: ScriptedModel
    box: Box | None
    directory: Path
    fields: Mapping[str, Any] = field(default_factory=dict)
    told: Told = field(default_factory=Told)
    #: When the phase is over, by ``time.monotonic``; None: there is no limit.
    deadline: float | None = None
    _made: list[Executor] = field(default_factory=list)
    _executor: Executor | None = None

    @property
    def executor(self) -> Executor:
        """The session under test."""
        assert self._executor is not None, "the session was not opened"
        return self._executor

    def remaining(self) -> float | None:
        """The seconds left, for every session of the stage."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def make(self, told: Told | None = None, **fields: Any) -> Executor:
        """Another session of the same role, not opened. It is closed with the stage."""
        given = {**self.fields, **fields}
        executor = self.hooks.executor_class(self.hooks.make_session(self, told or Told(), **given))
        self._made.append(executor)
        return executor

    async def open(self, told: Told | None = None, **fields: Any) -> Executor:
        """Another session of the same role, opened."""
        executor = self.make(told, **fields)
        await executor.open()
        return executor

    async def begin(self) -> None:
        """Open the session under test."""
        self._executor = self.make(self.told)
        await self._executor.open()

    async def close(self) -> None:
        """End every session that was made."""
        for executor in self._made:
            await executor.close()

    async def invoke(self, prompt: str = "do it", **more: Any) -> AgentResult:
        """One turn of the session under test."""
        return await self.executor.invoke(prompt, **more)

    def asked(self, prompt: str) -> list[Request]:
        """The requests that reached the model whose last words of the user hold `prompt`."""
        return [request for request in self.model.requests if prompt in request.prompt]

    async def until_asked(self, count: int = 1) -> None:
        """Wait until the model has got `count` requests, and has begun to answer."""
        await asyncio.to_thread(self.model.wait_for, count, self.hooks.patience)
        await asyncio.sleep(0.3)


class Hooks:
    """What the author of an executor sets."""

    #: The executor under test, and its options.
    executor_class: ClassVar[type[Executor]]
    options: ClassVar[Mapping[str, Any]] = {}
    #: The form in which it asks the model; None: it calls no model.
    wire: ClassVar[Literal["chat", "responses", "anthropic"] | None] = None
    model: ClassVar[ModelSpec] = ModelSpec(id="scripted-model")
    #: The kind of box for an executor that needs one.
    box_class: ClassVar[type[Box] | None] = None
    box_options: ClassVar[Mapping[str, Any]] = {}
    #: It hears an answer while it is made, so that silence means something.
    streams: ClassVar[bool] = True
    #: It hands the task's tools to the model and gives the model's calls back.
    takes_tools: ClassVar[bool] = False
    #: It has tools of its own, with which it works in the box.
    own_tools: ClassVar[bool] = False
    #: Before it uses one it asks, unless the policy is ``allow``.
    asks_permission: ClassVar[bool] = False
    #: It calls the model several times in one invoke itself (not an agent behind it).
    loops: ClassVar[bool] = False
    #: The figures of `Usage` that it reports for one call of the model.
    reports: ClassVar[frozenset[str]] = frozenset()
    #: Words of the command line of the agent's main process in the box; None: there is none to kill.
    agent_process: ClassVar[str | None] = None
    #: A word that is in an event of an ordinary turn because the agent said a thing that nobody knows.
    unknown_event: ClassVar[str | None] = None
    #: Names of tests (with or without their ``[id]``) that must fail, each with the reason.
    cannot: ClassVar[Mapping[str, str]] = {}
    #: Seconds that one test may take.
    patience: ClassVar[float] = 60.0

    # -- how a session is made --------------------------------------------------------------------

    def base_url(self, model: ScriptedModel) -> str:
        """The address at which this executor finds the model."""
        return model.anthropic_base_url if self.wire == "anthropic" else model.base_url

    def session_fields(self, stage: Stage) -> dict[str, Any]:
        """Further fields of `Session`, such as a `task_root` with what the executor reads there."""
        return {}

    def make_session(self, stage: Stage, told: Told, **fields: Any) -> Session:
        """A session of this stage; `fields` take the place of what it has by itself."""
        number = next(_SERIAL)
        found: dict[str, Any] = {
            "session_id": f"sess_solver_default_main_{number}",
            "role": "solver",
            "actor": None,
            "model": self.model if self.wire else ModelSpec(),
            "base_url": self.base_url(stage.model) if self.wire else None,
            "api_key": KEY if self.wire else None,
            "api_key_name": "CONTRACT_API_KEY" if self.wire else None,
            "options": self.options,
            "box": stage.box,
            "task_root": stage.directory / "task",
            "activity": told,
            "emit": lambda event: told.events.append(dict(event)),
            "remaining": stage.remaining,
            "ask": told.ask,
            "called": told.used.append,
        }
        return Session(**{**found, **self.session_fields(stage), **fields})

    def put(self, turn: Turn) -> Turn:
        """`turn` in the language in which the model must speak, for a loop that has one of its own."""
        return turn

    def gone(self, token: dict[str, Any]) -> dict[str, Any] | None:
        """`token` changed so that it names a session that does not exist; None: not possible."""
        return None

    # -- fixtures ---------------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def known_gap(self, request: pytest.FixtureRequest) -> None:
        """A test that is in `cannot` must fail."""
        for name in (request.node.name, request.node.originalname):
            if name in self.cannot:
                request.applymarker(pytest.mark.xfail(reason=self.cannot[name], strict=True))
                return

    @pytest.fixture
    def play(self, tmp_path: Path) -> Play:
        """Runs ``play(body, *turns)``: `body` gets a `Stage` whose model plays `turns`.

        `by` is the model's chooser. With ``opened=False`` the session under test is not opened. Other
        keywords are fields of every `Session` of the stage.
        """

        def run(
            body: Body,
            *turns: Turn | When,
            by: Callable[[Request], Any] | None = None,
            opened: bool = True,
            **fields: Any,
        ) -> None:
            def put(row: Turn | When) -> Turn | When:
                if isinstance(row, When):
                    return When(row.pattern, [self.put(turn) for turn in row.turns])
                return self.put(row)

            async def all_of_it() -> None:
                rows, after = [put(row) for row in turns], self.put(AFTER_END)
                assert not isinstance(after, Delay)
                with ScriptedModel(rows, by=by, after_end=after) as model:
                    async with self.stage(model, tmp_path, fields) as stage:
                        if opened:
                            await stage.begin()
                        await body(stage)

            asyncio.run(asyncio.wait_for(all_of_it(), self.patience))

        return run

    @contextlib.asynccontextmanager
    async def stage(
        self, model: ScriptedModel, directory: Path, fields: Mapping[str, Any]
    ) -> AsyncIterator[Stage]:
        """A stage with an open box in which the agent is ready."""
        (directory / "task").mkdir(exist_ok=True)
        box = None if self.box_class is None else self.box_class(self.box_spec(directory))
        stage = Stage(self, model, box, directory, fields)
        try:
            if box is not None:
                await box.start()
                await self.furnish(box)
                await self.executor_class.prepare(self.make_session(stage, Told(), **fields))
            try:
                yield stage
            finally:
                await stage.close()
        finally:
            if box is not None:
                await box.stop()

    def box_spec(self, directory: Path) -> BoxSpec:
        """The specification of the box."""
        assert self.box_class is not None
        return BoxSpec(
            kind=self.box_class.kind,
            attempt_id="attempt-of-the-contract",
            task_id="t",
            work_dir=directory / "box",
            options=self.box_options,
            labels={"ageval.run": f"contract-{os.getpid()}", "ageval.attempt": directory.name},
        )

    async def furnish(self, box: Box) -> None:
        """Put into the started box what the agent needs and `Executor.prepare` does not bring."""

    # -- what does not apply ----------------------------------------------------------------------

    def needs_model(self) -> None:
        """Skip the test for an executor that calls no model."""
        self.needs(self.wire is not None, "calls no model")

    def needs(self, applies: bool, otherwise: str) -> None:
        """Skip the test, saying why, unless it applies."""
        if not applies:
            pytest.skip(f"{self.executor_class.kind} {otherwise}")


def said_in_order(request: Request, words: Sequence[str]) -> bool:
    """The conversation of `request` holds these words, one after the other."""
    text = "\n".join(item.text for item in request.items)
    place = 0
    for word in words:
        place = text.find(word, place)
        if place < 0:
            return False
        place += len(word)
    return True


def gave_up(result: AgentResult) -> bool:
    """There is no answer, and it is the machinery's fault."""
    return not result.ok and bool(result.error) and result.infrastructure
