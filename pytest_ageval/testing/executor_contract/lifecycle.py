"""The executor contract: what a class declares, and a session from open to close."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import pytest

from pytest_ageval.box import CAPABILITIES
from pytest_ageval.errors import ExecutorError
from pytest_ageval.executor import Api
from pytest_ageval.testing.executor_contract.base import KEY, Hooks, Play, Stage
from pytest_ageval.testing.scripted_model import Text
from pytest_ageval.testing.scripted_model.request import strings

#: Parameters that change what a model says. They are sent only if somebody configured them.
SAMPLING = ("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty", "logit_bias")

_APIS: tuple[Api, ...] = ("chat", "responses")

_EXTRA: Mapping[str, Any] = {
    "provider": {"order": ["scripted"]},
    "thinking": {"type": "enabled", "budget_tokens": 2048},
    "temperature": 0.25,
    "top_p": 0.75,
}


class Declaration(Hooks):
    """What the class says about itself is well formed, and true."""

    #: A value for each key of `Executor.extra_allowlist` for which 7 will not do.
    extra_values: ClassVar[Mapping[str, Any]] = _EXTRA

    def test_declaration_is_well_formed(self) -> None:
        """Kind, sets and flags have their types, and name only what exists."""
        cls = self.executor_class
        assert isinstance(cls.kind, str)
        assert cls.kind
        assert cls.requires_box <= set(CAPABILITIES)
        assert cls.supported_apis <= {"chat", "responses"}
        assert cls.supported_model_fields <= {"reasoning_effort", "timeout", "watchdog", "extra"}
        assert not cls.extra_allowlist or "extra" in cls.supported_model_fields
        for name in ("concurrent_sessions", "resumable", "requires_model"):
            assert isinstance(getattr(cls, name), bool), name

    def test_gaps_name_tests_and_reasons(self) -> None:
        """Each row of `cannot` names a test of the contract and says why."""
        for name, why in self.cannot.items():
            assert callable(getattr(self, name.partition("[")[0], None)), name
            assert len(why.split()) > 2, f"{name}: say why"

    def test_unknown_options_are_refused(self) -> None:
        """An option that the executor does not know is an error, so that a typo is not ignored."""
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**self.options, "no_such_option": 1}, self.executor_class.Options)

    def test_says_what_is_here(self) -> None:
        """`check` and `describe` answer without a session."""
        missing = self.executor_class.check(self.options)
        assert missing is None or missing.strip()
        assert isinstance(self.executor_class.describe(self.options), str)

    def test_each_api_is_used(self, play: Play) -> None:
        """With ``model.api`` set to one of `supported_apis` the model is asked in that form."""
        self.needs_model()

        async def body(stage: Stage) -> None:
            apis = self.executor_class.supported_apis
            for api in _APIS:
                if api not in apis:
                    continue
                executor = await stage.open(model=replace(self.model, api=api))
                result = await executor.invoke("which api")
                assert result.ok, result.error
                wire = api if len(apis) > 1 else self.wire
                assert stage.asked("which api")[-1].api == wire

        play(body, Text("an answer"), opened=False)

    def test_effort_reaches_the_model(self, play: Play) -> None:
        """The reasoning effort is in the request, where the executor declares the field."""
        self.needs_model()
        declared = "reasoning_effort" in self.executor_class.supported_model_fields
        self.needs(declared, "takes no reasoning effort")

        async def body(stage: Stage) -> None:
            assert (await stage.invoke("try hard")).ok
            assert "high" in list(strings(stage.asked("try hard")[-1].body))

        play(body, Text("an answer"), model=replace(self.model, reasoning_effort="high"))

    def test_extra_reaches_the_model(self, play: Play) -> None:
        """Each key of `extra_allowlist` is in the request with the value that was configured."""
        self.needs_model()
        cls = self.executor_class
        self.needs(bool(cls.extra_allowlist), "passes no extra parameters")
        given = {key: self.extra_values.get(key, 7) for key in sorted(cls.extra_allowlist)}

        async def body(stage: Stage) -> None:
            assert (await stage.invoke("with extra")).ok
            sent = stage.asked("with extra")[-1].body
            assert {key: sent.get(key) for key in given} == given

        play(body, Text("an answer"), model=replace(self.model, extra=given))

    def test_nothing_is_sent_that_nobody_asked_for(self, play: Play) -> None:
        """Without configuration the executor adds no parameter that changes what the model says."""
        self.needs_model()
        self.needs(not self.executor_class.requires_box or self.loops, "leaves the request to its agent")

        async def body(stage: Stage) -> None:
            await stage.invoke("plainly")
            assert not set(SAMPLING) & set(stage.asked("plainly")[-1].body)

        play(body, Text("an answer"))

    def test_key_and_model_reach_the_provider(self, play: Play) -> None:
        """The session's key and model are what the provider gets."""
        self.needs_model()

        async def body(stage: Stage) -> None:
            assert (await stage.invoke("who asks")).ok
            request = stage.asked("who asks")[-1]
            assert request.api_key == KEY
            assert request.model == self.model.id

        play(body, Text("an answer"))


class Lifecycle(Hooks):
    """Open, invoke, close, and these in the wrong order."""

    def test_one_turn(self, play: Play) -> None:
        """A turn gives the model's text; it is told as an event and as a step that begins and ends."""

        async def body(stage: Stage) -> None:
            result = await stage.invoke()
            assert result.ok, result.error
            assert result.status == "completed"
            assert not result.infrastructure
            if self.wire is None:
                return
            assert result.text == "the answer"
            assert stage.told.text() == "the answer"
            assert stage.told.named("model_turn_started")
            assert stage.told.named("model_turn_completed")[-1]["text"] == "the answer"
            assert not stage.told.named("model_turn_aborted")

        play(body, Text("the answer"))

    def test_close_is_idempotent(self, play: Play) -> None:
        """`close` works without `open`, after it, and again."""

        async def body(stage: Stage) -> None:
            executor = stage.make()
            await executor.close()
            executor = await stage.open()
            await executor.close()
            await executor.close()

        play(body, opened=False)

    def test_no_turn_after_close(self, play: Play) -> None:
        """`invoke` of a closed session is no answer, and nothing reaches the model."""
        self.needs_model()

        async def body(stage: Stage) -> None:
            await stage.executor.close()
            try:
                result = await stage.invoke("too late")
            except ExecutorError:
                pass
            else:
                assert not result.ok
                assert result.error
            assert not stage.asked("too late")

        play(body, Text("the answer"))

    def test_cancel_without_a_turn_does_nothing(self, play: Play) -> None:
        """`cancel` before the first turn and after one has no effect on the next."""

        async def body(stage: Stage) -> None:
            await stage.executor.cancel()
            for _ in range(2):
                result = await stage.invoke()
                assert result.ok, result.error
                assert result.status == "completed"
                await stage.executor.cancel()

        play(body, Text("one"), Text("two"))
