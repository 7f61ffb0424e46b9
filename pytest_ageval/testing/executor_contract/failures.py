"""The executor contract: a provider that fails. That is infrastructure, and never an answer."""

from __future__ import annotations

import socket

import pytest

from pytest_ageval.testing.executor_contract.base import Hooks, Play, Stage, gave_up
from pytest_ageval.testing.scripted_model import (
    Cut,
    Fault,
    Garbage,
    HttpError,
    Malformed,
    Request,
    StreamError,
    Text,
    When,
)

#: Each fault with whether trying again may help.
FAULTS: dict[str, tuple[Fault, bool]] = {
    "http-400": (HttpError(400, "no such thing", times=None), False),
    "http-401": (HttpError(401, "no such key", times=None), False),
    "http-429": (HttpError(429, "too many requests", times=None), True),
    "http-500": (HttpError(500, "internal error", times=None), True),
    "http-503": (HttpError(503, "overloaded", times=None), True),
    "cut": (Cut("half an ans", times=None), True),
    "no-end-marker": (Cut("half an ans", clean=True, times=None), True),
    "not-json": (Malformed("half an ans", times=None), True),
    "error-in-stream": (StreamError("overloaded", after="half an ans", times=None), True),
    "html": (Garbage(times=None), True),
}


class Failures(Hooks):
    """Skipped for executors that call no model."""

    @pytest.mark.parametrize("fault", FAULTS)
    def test_fault_of_the_provider(self, play: Play, fault: str) -> None:
        """``ok=False``, `infrastructure`, a token in `error`, and the right `transient`."""
        self.needs_model()
        turn, transient = FAULTS[fault]

        async def body(stage: Stage) -> None:
            result = await stage.invoke("ask in vain")
            assert not result.ok, f"taken for an answer: {result.text!r}"
            assert gave_up(result), result
            assert result.status in ("crashed", "timeout")
            assert result.transient == transient, result.error
            assert result.usage.unavailable is not None
            assert stage.told.named("model_turn_aborted")

        def answer(request: Request) -> Fault:
            return turn

        play(body, by=answer)

    def test_nobody_listens(self, play: Play) -> None:
        """An address at which nobody listens is a failure that may pass."""
        self.needs_model()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]

        async def body(stage: Stage) -> None:
            result = await stage.invoke("is anybody there")
            assert gave_up(result), result
            assert result.transient, result.error

        version = "" if self.wire == "anthropic" else "/v1"
        play(body, base_url=f"http://127.0.0.1:{port}{version}")

    def test_retry_after_is_passed_on(self, play: Play) -> None:
        """The seconds that the provider asks to wait are in the result."""
        self.needs_model()
        fault = HttpError(429, "too many requests", retry_after=1, times=None)

        async def body(stage: Stage) -> None:
            result = await stage.invoke()
            assert gave_up(result), result
            assert result.retry_after == 1

        play(body, by=lambda request: fault)

    def test_failure_then_success(self, play: Play) -> None:
        """After one failure the prompt is answered: by the agent's own retry, or when it is sent again."""
        self.needs_model()

        async def body(stage: Stage) -> None:
            result = await stage.invoke("a question")
            if not result.ok:
                assert gave_up(result), result
                assert result.transient, result.error
                assert result.repeatable
                result = await stage.invoke("a question")
            assert result.ok, result.error
            assert result.text == "the answer"
            assert (await stage.invoke("another one")).text == "more"

        rules = [
            When("another one", [Text("more")]),
            When("a question", [HttpError(503, "overloaded"), Text("the answer")]),
        ]
        play(body, *rules)

    def test_failed_turn_leaves_the_history_as_it_was(self, play: Play) -> None:
        """What a broken answer had said so far is not taken into the conversation."""
        self.needs_model()
        broken = Cut("half of it", times=None)

        async def body(stage: Stage) -> None:
            assert (await stage.invoke("first")).text == "one"
            assert not (await stage.invoke("second")).ok
            result = await stage.invoke("third")
            assert result.ok, result.error
            request = stage.asked("third")[-1]
            said = [item.text for item in request.items if item.kind == "model"]
            assert any("one" in text for text in said)
            assert not any("half of it" in text for text in said)

        play(body, When("third", [Text("three")]), When("second", [broken]), When("first", [Text("one")]))
