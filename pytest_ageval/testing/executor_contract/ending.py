"""The executor contract: turns that do not end by themselves, and agents that die."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from pytest_ageval.box import HOME
from pytest_ageval.testing.executor_contract.base import Hooks, Play, Stage, gave_up
from pytest_ageval.testing.scripted_model import Hang, Shell, Text, When

#: Seconds within which a turn must have ended after it was told to.
SOON = 12.0

#: Sends KILL to every process in the box whose command line holds $WORDS and whose HOME is the box's.
_KILL = """
for dir in /proc/[0-9]*; do
    command=$(tr '\\0' ' ' < "$dir/cmdline" 2>/dev/null) || continue
    case $command in *"$WORDS"*) ;; *) continue ;; esac
    tr '\\0' '\\n' < "$dir/environ" 2>/dev/null | grep -qxF "HOME=$HOME_OF_BOX" || continue
    kill -9 "${dir#/proc/}" && echo killed
done
"""


class Cancel(Hooks):
    """A turn that is ended from outside; skipped for executors that call no model."""

    @pytest.mark.parametrize("after", [None, "so far"], ids=["silent", "streaming"])
    def test_cancel_in_mid_turn(self, play: Play, after: str | None) -> None:
        """`invoke` returns soon with ``cancelled``; then the session goes on, or says that it is dead."""
        self.needs_model()

        async def body(stage: Stage) -> None:
            turn = asyncio.ensure_future(stage.invoke("take your time"))
            await stage.until_asked()
            begun = time.monotonic()
            await stage.executor.cancel()
            result = await turn
            assert time.monotonic() - begun < SOON
            assert not result.ok
            assert result.status == "cancelled"
            assert not result.infrastructure
            assert result.error
            assert 0 not in (result.usage.prompt_tokens, result.usage.completion_tokens)
            assert len(stage.told.named("model_turn_aborted")) == 1
            again = await stage.invoke("go on")
            assert again.text == "going on" if again.ok else gave_up(again), again

        play(body, When("go on", [Text("going on")]), When("take your time", [Hang(after=after, times=None)]))

    def test_cancelled_caller_gets_its_own_exception(self, play: Play) -> None:
        """Cancelling the task that awaits `invoke` raises CancelledError there, soon, and `close` works."""
        self.needs_model()

        async def body(stage: Stage) -> None:
            turn = asyncio.ensure_future(stage.invoke())
            await stage.until_asked()
            begun = time.monotonic()
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            await stage.executor.close()
            assert time.monotonic() - begun < SOON

        play(body, Hang(after="so far"))

    def test_close_in_mid_turn(self, play: Play) -> None:
        """`close` ends a running turn; whoever awaits it gets no answer, soon."""
        self.needs_model()

        async def body(stage: Stage) -> None:
            turn = asyncio.ensure_future(stage.invoke())
            await stage.until_asked()
            await asyncio.wait_for(stage.executor.close(), SOON)
            done, _ = await asyncio.wait({turn}, timeout=SOON)
            assert done, "the turn still runs"
            assert turn.cancelled() or turn.exception() is not None or not turn.result().ok

        play(body, Hang(after="so far"))


class Death(Hooks):
    """An agent whose process is killed; skipped for executors that have none (`agent_process`)."""

    async def kill(self, stage: Stage) -> None:
        """KILL the agent's main process in the box."""
        assert stage.box is not None
        env = {"WORDS": str(self.agent_process), "HOME_OF_BOX": stage.box.visible_path(HOME)}
        done = await stage.box.exec(["sh", "-c", _KILL], env=env, timeout=30)
        assert "killed" in done.stdout, f"no process with {self.agent_process!r}: {done.stderr}"

    def test_killed_in_mid_turn(self, play: Play) -> None:
        """The turn ends soon as a failure of the machinery; so does the next one."""
        self.needs(self.agent_process is not None, "has no process in the box")

        async def body(stage: Stage) -> None:
            turn = asyncio.ensure_future(stage.invoke())
            await stage.until_asked()
            begun = time.monotonic()
            await self.kill(stage)
            result = await turn
            assert time.monotonic() - begun < SOON
            assert gave_up(result), result
            assert result.status == "crashed"
            assert not result.repeatable
            assert gave_up(await stage.invoke("and now"))

        play(body, Hang(after="so far", times=None))

    def test_killed_between_turns(self, play: Play) -> None:
        """A session whose agent died between two turns says so."""
        self.needs(self.agent_process is not None, "has no process in the box")

        async def body(stage: Stage) -> None:
            assert (await stage.invoke()).ok
            await self.kill(stage)
            begun = time.monotonic()
            assert gave_up(await stage.invoke("and now"))
            assert time.monotonic() - begun < SOON

        play(body, Text("the answer"))


class Bounds(Hooks):
    """Time and budget."""

    def test_timeout_of_the_model(self, play: Play) -> None:
        """``model.timeout`` ends a turn that takes longer, with the status ``timeout``."""
        self.needs_model()
        self.needs("timeout" in self.executor_class.supported_model_fields, "takes no timeout")

        async def body(stage: Stage) -> None:
            begun = time.monotonic()
            result = await stage.invoke()
            assert time.monotonic() - begun < 2 + SOON
            assert not result.ok
            assert result.status == "timeout", result.error

        play(body, Hang(after="so far", times=None), model=replace(self.model, timeout=1.5))

    def test_watchdog_of_the_model(self, play: Play) -> None:
        """``model.watchdog`` ends a turn in which nothing is heard, as a failure that may pass."""
        self.needs_model()
        self.needs("watchdog" in self.executor_class.supported_model_fields, "takes no watchdog")
        self.needs(self.streams, "hears nothing before the whole answer is there")

        async def body(stage: Stage) -> None:
            begun = time.monotonic()
            result = await stage.invoke()
            assert time.monotonic() - begun < 2 + SOON
            assert gave_up(result), result
            assert result.status == "timeout"
            assert result.transient

        play(body, Hang(after="so far", times=None), model=replace(self.model, watchdog=1.5))

    @pytest.mark.parametrize("seconds", [0.0, 1.5], ids=["none-left", "runs-out"])
    def test_turn_ends_with_the_phase(self, play: Play, seconds: float) -> None:
        """A turn does not outlast `remaining`, and none begins with nothing left.

        That is no failure of the machinery, and nothing to be repeated.
        """
        self.needs_model()

        async def body(stage: Stage) -> None:
            begun = time.monotonic()
            stage.deadline = begun + seconds
            result = await stage.invoke("take your time")
            assert time.monotonic() - begun < seconds + SOON
            assert not result.ok
            assert result.status == "timeout", result.error
            assert not result.infrastructure
            assert not result.transient
            assert seconds > 0 or not stage.asked("take your time")

        play(body, Hang(after="so far", times=None))

    def test_each_call_keeps_the_pace(self, play: Play) -> None:
        """An executor that calls from the host awaits `pace` before each call of the model."""
        self.needs_model()
        self.needs(not self.executor_class.calls_from_box(), "is paced by the model gateway")
        paced: list[float] = []

        async def pace() -> None:
            await asyncio.sleep(0.05)
            paced.append(time.monotonic())

        async def body(stage: Stage) -> None:
            await stage.invoke("one thing")
            assert len(paced) == len(stage.model.requests) >= 1

        play(body, *[Text("done")] * 5, pace=pace)

    def test_budget_ends_a_loop(self, play: Play) -> None:
        """Before each call of the model `refuse_call` is asked; a reason ends the turn with ``limit``."""
        self.needs(self.loops, "calls the model once in an invoke, or not itself")
        asked: list[int] = []

        def refuse() -> str | None:
            asked.append(1)
            return "max_cost" if len(asked) > 2 else None

        async def body(stage: Stage) -> None:
            result = await stage.invoke("go on and on")
            assert len(stage.model.requests) == 2
            assert result.status == "limit"
            assert not result.infrastructure

        play(body, *[Shell("echo step")] * 5, Text("done"), refuse_call=refuse)

    def test_usage_of_each_call_of_a_loop(self, play: Play) -> None:
        """`called` gets the usage of each call when it is known; the result's usage is their sum."""
        self.needs(self.loops, "calls the model once in an invoke, or not itself")

        async def body(stage: Stage) -> None:
            result = await stage.invoke("two calls")
            assert len(stage.told.used) == len(stage.model.requests) >= 2
            for name in self.reports:
                assert getattr(result.usage, name) == sum(getattr(row, name) for row in stage.told.used)

        play(body, Shell("echo step"), Text("done"))
