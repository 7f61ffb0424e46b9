"""The pace of requests: what a minute allows, pauses that a provider asks for, and whose time that is."""

from __future__ import annotations

import asyncio
import time

import pytest

from pytest_ageval.attempt.clock import PhaseClock
from pytest_ageval.pacing import LONGEST_HOLD, Holding, Pace, Pacer
from pytest_ageval.sessions.stall import Stalls


def test_no_window_sees_more_requests_than_it_may() -> None:
    async def main() -> list[float]:
        pace, begun = Pace(3, window=0.4), []

        async def request() -> None:
            await pace.turn()
            begun.append(time.monotonic())

        await asyncio.gather(*(request() for _ in range(8)))
        return begun

    begun = asyncio.run(main())
    assert begun[2] - begun[0] < 0.3, "the first ones need not wait"
    assert all(later - earlier >= 0.39 for earlier, later in zip(begun, begun[3:], strict=False))


def test_a_pause_is_kept_by_all_and_bounded() -> None:
    async def main() -> None:
        pace = Pace()
        assert pace.free()
        pace.hold(0.3)
        assert not pace.free()
        start = time.monotonic()
        await asyncio.gather(pace.turn(), pace.turn())
        assert time.monotonic() - start >= 0.29
        assert pace.free()
        pace.hold(1e9)
        assert pace._wait() <= LONGEST_HOLD

    asyncio.run(main())


def test_the_longest_waiting_goes_first_and_who_gives_up_takes_nothing() -> None:
    async def main() -> list[int]:
        pace, order = Pace(1, window=0.2), []

        async def request(number: int) -> None:
            await pace.turn()
            order.append(number)

        tasks = [asyncio.create_task(request(number)) for number in range(4)]
        await asyncio.sleep(0.05)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        return order

    assert asyncio.run(main()) == [0, 2, 3]


@pytest.mark.parametrize(
    ("url", "limit"),
    [
        ("https://api.openai.com/v1", 25),
        ("https://api.anthropic.com", 1),
        ("http://127.0.0.1:8000/v1", 2),
        ("http://127.0.0.1:8001/v1", None),
        ("https://openai.example", 25),
        ("https://myopenai.example", None),
    ],
)
def test_a_provider_is_named_by_its_host_or_a_part_of_it(url: str, limit: int | None) -> None:
    """Each of two processes has its share, at least 1."""
    pacer = Pacer({"openai": 50, "anthropic": 1, "127.0.0.1:8000": 5}, processes=2)

    async def main() -> None:
        pace = pacer.of(url)
        assert pace._begun.maxlen == limit
        assert pacer.of(url) is pace

    asyncio.run(main())


def test_hosts_of_one_limit_share_it() -> None:
    async def main() -> None:
        pacer = Pacer({"openai": 50})
        assert pacer.of("https://api.openai.com") is pacer.of("https://eu.openai.com")
        assert pacer.of("https://a.example") is not pacer.of("https://b.example")

    asyncio.run(main())


def test_what_is_held_back_takes_no_time() -> None:
    """Neither of the phase, nor of the turn, nor of what is reported; a stall counts for the report."""

    async def main() -> None:
        clock, told = PhaseClock(10), []
        stalls = Stalls(clock.freeze, told.append)
        pace = Pace()
        holding = Holding(pace, lambda: stalls.waiting(paced=True))
        with stalls.invoke():
            pace.hold(0.4)
            with holding.call():
                waiting = asyncio.create_task(holding.turn())
                assert await holding.ends_within(waiting, 0.1), "it is over after 0.4 s, of which 0 count"
            assert 0.35 < holding.seconds() < 1
            assert clock.elapsed() < 0.2
            with stalls.waiting():
                await asyncio.sleep(0.2)
        assert abs(sum(told) - holding.seconds()) < 0.05

    asyncio.run(main())


def test_a_session_that_works_is_not_held_back() -> None:
    async def main() -> None:
        clock = PhaseClock(10)
        stalls = Stalls(clock.freeze)
        pace = Pace()
        holding = Holding(pace, lambda: stalls.waiting(paced=True))
        with stalls.invoke(), holding.call():
            pace.hold(0.3)
            with holding.call():
                waiting = asyncio.create_task(holding.turn())
                await asyncio.sleep(0.1)
                assert not clock.frozen, "its other call is under way"
                await waiting
        assert holding.seconds() == 0
        assert not await holding.ends_within(asyncio.create_task(asyncio.sleep(5)), 0.05)

    asyncio.run(main())
