"""The executor contract: several turns, their texts, their ends, and sessions beside each other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pytest_ageval.testing.executor_contract.base import Hooks, Play, Stage, Told, said_in_order
from pytest_ageval.testing.scripted_model import Delay, Text, When

#: Characters that a line splitter, an encoder or a shell may stumble over.
ODD = "żółć 漢字 🎉 \u2028\u2029\u0085 $HOME `id` '\"\\"


class Turns(Hooks):
    """What goes to the model and what comes back; skipped for executors that call none."""

    @pytest.fixture(autouse=True)
    def only_with_a_model(self, request: pytest.FixtureRequest) -> None:
        """The tests of this class need one."""
        if request.function.__name__ in vars(Turns):
            self.needs_model()

    def test_history_is_the_true_one(self, play: Play) -> None:
        """Each turn goes out after all that was said before, in order and unchanged."""

        async def body(stage: Stage) -> None:
            for number in (1, 2, 3):
                result = await stage.invoke(f"question {number}")
                assert result.text == f"answer {number}"
            words = ["question 1", "answer 1", "question 2", "answer 2", "question 3"]
            assert said_in_order(stage.asked("question 3")[-1], words)

        play(body, *(Text(f"answer {number}") for number in (1, 2, 3)))

    def test_every_prompt_goes_out(self, play: Play) -> None:
        """A prompt that repeats the last one is a turn of its own."""

        async def body(stage: Stage) -> None:
            texts = [(await stage.invoke("again")).text for _ in range(3)]
            assert texts == ["one", "two", "three"]
            users = [item.text for item in stage.asked("again")[-1].items if item.kind == "user"]
            assert sum("again" in text for text in users) == 3

        play(body, Text("one"), Text("two"), Text("three"))

    def test_long_lines(self, play: Play) -> None:
        """An answer of a megabyte in one piece arrives whole, and a long prompt goes out whole."""
        answer, prompt = "y" * 1_000_000, "x" * 150_000

        async def body(stage: Stage) -> None:
            result = await stage.invoke(prompt)
            assert result.ok, result.error
            assert len(result.text) == len(answer)
            assert result.text == answer
            assert stage.asked(prompt)

        play(body, Text(answer, pieces=1))

    def test_odd_characters(self, play: Play) -> None:
        """Text of all scripts and separators goes both ways unchanged."""

        async def body(stage: Stage) -> None:
            result = await stage.invoke(f"<{ODD}>")
            assert result.ok, result.error
            assert result.text == f"<{ODD}>"
            assert stage.told.text() == f"<{ODD}>"
            assert stage.asked(f"<{ODD}>")

        play(body, Text(f"<{ODD}>", pieces=1))

    def test_half_a_surrogate(self, play: Play) -> None:
        """Half a surrogate pair, which JSON can carry and no file can hold, is replaced, not fatal."""

        async def body(stage: Stage) -> None:
            result = await stage.invoke("half \ud83d")
            assert result.ok, result.error
            assert result.text in ("a?b", "a\N{REPLACEMENT CHARACTER}b")
            stage.told.text().encode()  # raises for what no file can hold

        play(body, Text("a\ud83db", pieces=1))

    def test_thought_is_not_the_answer(self, play: Play) -> None:
        """What the model thinks is not part of the text."""

        async def body(stage: Stage) -> None:
            result = await stage.invoke()
            assert result.text == "the answer"
            assert "pondering" not in stage.told.text()

        play(body, Text("the answer", thought="pondering"))

    def test_empty_reply(self, play: Play) -> None:
        """An empty answer is an answer: no failure, and the session goes on."""

        async def body(stage: Stage) -> None:
            empty = await stage.invoke("say nothing")
            assert empty.ok, empty.error
            assert empty.text == ""
            after = await stage.invoke("go on")
            assert after.ok, after.error
            assert after.text == "more"

        # The later prompt first: an API may join two messages of the user into one.
        play(body, When("go on", [Text("more")]), When("say nothing", [Text("")]))

    @pytest.mark.parametrize(("stop", "status"), [("limit", "limit"), ("refused", "refused")])
    def test_stop_reason(self, play: Play, stop: Any, status: str) -> None:
        """A full token limit is the status ``limit``, a refusal ``refused``; both are the model's answer."""

        async def body(stage: Stage) -> None:
            result = await stage.invoke()
            assert result.ok, result.error
            assert result.status == status
            assert not result.infrastructure
            assert result.stop_reason
            assert result.text == "this far"

        play(body, Text("this far", stop=stop))

    def test_unknown_things_are_not_fatal(self, play: Play) -> None:
        """Fields and events that nobody knows change nothing; an agent's unknown updates are kept."""

        async def body(stage: Stage) -> None:
            for number in (1, 2):
                result = await stage.invoke(f"turn {number}")
                assert result.ok, result.error
                assert result.text == f"answer {number}"
            if self.unknown_event is not None:
                kept = [str(event) for event in stage.told.of_kind("opaque")]
                assert any(self.unknown_event in event for event in kept)

        play(body, Text("answer 1", unknown=True), Text("answer 2", unknown=True))

    def test_sessions_at_once(self, play: Play) -> None:
        """Two sessions of one role are open and invoked at the same time; nothing gets mixed up."""
        self.needs(self.executor_class.concurrent_sessions, "has one session at a time")

        async def body(stage: Stage) -> None:
            tolds = [Told(), Told()]
            executors = [await stage.open(told) for told in tolds]
            for turn in (1, 2):
                results = await asyncio.gather(
                    *(
                        ex.invoke(f"I am {name}, turn {turn}")
                        for ex, name in zip(executors, "ab", strict=True)
                    )
                )
                assert [result.text for result in results] == [f"a{turn}", f"b{turn}"]
            assert [told.text() for told in tolds] == ["a1a2", "b1b2"]

        rules = [
            When(f"I am {name}, turn {turn}", [Delay(0.2), Text(f"{name}{turn}")])
            for name in "ab"
            for turn in (1, 2)
        ]
        play(body, *rules, opened=False)
