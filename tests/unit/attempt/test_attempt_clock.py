"""The clock of a phase: it ends work, and stands still while a provider is down."""

import asyncio
import time

from pytest_ageval.attempt.clock import PhaseClock


def test_without_a_budget_it_never_ends():
    assert PhaseClock(0).remaining() is None
    assert PhaseClock(None).remaining() is None


def test_wait_returns_when_the_work_is_done():
    async def go():
        return await PhaseClock(5).wait(asyncio.ensure_future(asyncio.sleep(0.01)))

    assert asyncio.run(go()) is True


def test_wait_gives_up_when_the_time_is_up_and_leaves_the_work_alone():
    async def go():
        work = asyncio.ensure_future(asyncio.sleep(30))
        started = time.monotonic()
        assert await PhaseClock(0.1).wait(work) is False
        assert time.monotonic() - started < 1
        assert not work.done()
        work.cancel()

    asyncio.run(go())


def test_frozen_time_does_not_count():
    async def go():
        clock = PhaseClock(1.5)

        async def work():
            with clock.freeze():
                await asyncio.sleep(2)

        assert await clock.wait(asyncio.ensure_future(work())) is True
        assert clock.elapsed() < 1.5
        assert clock.frozen_seconds > 1.9

    asyncio.run(go())


def test_two_freezes_at_once_count_once():
    clock = PhaseClock(10)
    started = time.monotonic()
    with clock.freeze(), clock.freeze():
        time.sleep(0.05)
    assert 0.04 < clock.frozen_seconds <= time.monotonic() - started
    assert not clock.frozen
