"""How long a provider that is down is waited for."""

from pytest_ageval.attempt.clock import PhaseClock
from pytest_ageval.sessions.stall import LONGEST, Backoff, Stalls


def test_waits_grow_and_end_with_the_budget():
    backoff = Backoff(budget=120)
    waits = list(iter(backoff.next, None))
    assert waits
    assert sum(waits) <= 120
    assert backoff.tries == len(waits)
    for number, wait in enumerate(waits):
        assert 0 < wait <= min(LONGEST, 2**number)


def test_no_budget_no_second_try():
    assert Backoff(budget=0).next() is None


def test_retry_after_is_a_lower_bound():
    wait = Backoff(budget=100).next(retry_after=7)
    assert wait is not None
    assert 7 <= wait < 8


def test_a_provider_that_asks_for_more_than_the_budget_is_not_waited_for():
    assert Backoff(budget=5).next(retry_after=600) is None


def test_two_attempts_do_not_come_back_together():
    assert len({Backoff(budget=100).next() for _ in range(20)}) > 10


def test_the_clock_stands_still_only_while_all_wait():
    clock = PhaseClock(10)
    stalls = Stalls(clock.freeze)
    with stalls.invoke():
        assert not clock.frozen
        with stalls.waiting():
            assert clock.frozen
            with stalls.invoke():
                assert not clock.frozen, "the other one works"
            assert clock.frozen
        assert not clock.frozen
    assert not clock.frozen
