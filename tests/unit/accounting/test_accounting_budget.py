"""Budgets: one sum for all processes, every call counted once, nothing unknown counted as zero in silence."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from pytest_ageval.accounting import (
    Account,
    Budget,
    CallMeter,
    Ledger,
    Meter,
    Price,
    PriceFile,
    Prices,
    Spent,
)
from pytest_ageval.accounting.meter import add, beyond
from pytest_ageval.executor import Usage

PRICES = Prices(PriceFile("p.yaml", "2026-11-30", (Price("m", 1_000_000, 2_000_000),)))
CALL = Usage(prompt_tokens=10, completion_tokens=5)


def meter(budget=Budget(), ledger=None):  # noqa: B008 - immutable
    return Meter(budget, ledger, PRICES)


def calls(made, surface="run"):
    return CallMeter(made, surface, "m", None)


def ledger(tmp_path, **limits):
    return Ledger(tmp_path / "run" / "ledger", Budget(**limits))


# -- the ledger ------------------------------------------------------------------------------------


def spend(path, times):
    book = Ledger(path, Budget(max_tokens=1))
    for _ in range(times):
        book.add(Spent(tokens=3, cost_usd=0.5, calls=1))


def test_no_process_loses_what_another_one_spends(tmp_path):
    book = ledger(tmp_path, max_tokens=10)
    assert book.spent() == Spent(), "nothing was spent, and no file is made by asking"
    assert not book.path.exists()
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=spend, args=(book.path, 200)) for _ in range(3)]
    for each in workers:
        each.start()
    threads = [threading.Thread(target=spend, args=(book.path, 100)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for each in (*workers, *threads):
        each.join()
    assert book.spent() == Spent(tokens=3000, cost_usd=500.0, calls=1000)


def test_a_budget_is_used_up_when_it_is_reached(tmp_path):
    book = ledger(tmp_path, max_tokens=10, max_cost_usd=1.0)
    book.add(Spent(tokens=9, cost_usd=0.9))
    assert book.exhausted() is None
    book.add(Spent(tokens=1))
    assert book.exhausted() == ("max_tokens", "10 of 10 tokens")
    book.add(Spent(cost_usd=0.2))
    assert book.exhausted() == ("max_cost", "$1.1000 of $1.0000")


def test_a_budget_that_is_small_is_not_shown_as_nothing():
    assert Spent(cost_usd=0.0032).words("max_cost", Budget(max_cost_usd=0.000001)) == "$0.0032 of $0.000001"


def test_a_suite_run_is_told_what_is_spent_with_and_without_a_budget(tmp_path):
    record = Account(tmp_path / "suite" / "spent.json")
    free = Ledger(tmp_path / "ledger", Budget(), record)
    free.add(Spent(tokens=9, calls=1))
    assert free.exhausted() is None
    assert not free.path.exists(), "nobody asks for it"
    later = ledger(tmp_path, max_tokens=10)
    later.begin(record.spent())
    assert later.exhausted() is None
    later.recorded_in(record).add(Spent(tokens=1, calls=1))
    assert later.exhausted() == ("max_tokens", "10 of 10 tokens")
    assert later.before == Spent(tokens=9, calls=1)
    assert record.spent() == Spent(tokens=10, calls=2), "what came before is in it once"


def test_a_call_that_is_told_again_is_not_paid_again(tmp_path):
    book = ledger(tmp_path, max_tokens=1000)
    made = meter(Budget(max_tokens=100), book)
    session = calls(made)
    session.replays([CALL, CALL])
    session.begin()
    session.called(CALL)
    session.called(CALL)
    assert book.spent() == Spent()
    assert made.tally.spent().tokens == 30, "but it counts for the attempt"
    session.called(CALL)
    session.settle(Usage(prompt_tokens=40, completion_tokens=20), answered=True)
    assert book.spent().tokens == 30
    assert made.tally.spent().tokens == 60


# -- calls -----------------------------------------------------------------------------------------


def test_a_call_is_counted_for_the_attempt_and_for_the_run(tmp_path):
    book = ledger(tmp_path, max_tokens=100)
    made = meter(Budget(max_tokens=20), book)
    session, judge = calls(made), calls(made, "evaluate")
    session.begin()
    assert session.refuse() is None
    session.settle(CALL, answered=True)
    judge.begin()
    judge.settle(CALL, answered=True)
    assert made.tally.spent().tokens == 15
    assert book.spent().tokens == 30
    assert book.spent().cost_usd == pytest.approx(2 * 20)
    session.settle(CALL, answered=True)
    assert session.refuse() == "the attempt's budget is used up (30 of 20 tokens)"
    assert session.refused is not None
    assert not session.refused.whole_run
    assert judge.refuse() is None, "the judge does not work for the agent"
    book.add(Spent(tokens=100))
    assert judge.refuse() == "the run's budget is used up (145 of 100 tokens)"
    assert session.refuse() == "the run's budget is used up (145 of 100 tokens)"
    assert session.refused.whole_run
    session.begin()
    assert session.refused is None


def test_calls_within_an_invoke_are_counted_as_they_happen_and_once(tmp_path):
    made = meter(Budget(max_tokens=40))
    session = calls(made)
    session.begin()
    session.called(CALL)
    session.called(CALL)
    assert session.refuse() is None
    session.called(CALL)
    assert session.refuse() is not None
    session.settle(Usage(prompt_tokens=30, completion_tokens=15), answered=True)
    assert made.tally.spent() == Spent(tokens=45, cost_usd=60.0, calls=3, estimated_usd=60.0)
    session.begin()
    session.settle(Usage(prompt_tokens=30, completion_tokens=15), answered=True)
    assert made.tally.spent().tokens == 90, "the next invoke starts anew"


def test_a_result_may_know_more_than_its_calls():
    made = meter()
    session = calls(made)
    session.begin()
    session.called(CALL)
    session.settle(Usage(prompt_tokens=25, completion_tokens=5, unavailable="partial"), answered=True)
    assert made.tally.spent().tokens == 30
    assert beyond(CALL, [CALL]) is None
    assert beyond(Usage(unavailable="not_reported"), [CALL]) is None


@pytest.mark.parametrize(
    ("usage", "answered", "unknown"),
    [
        (Usage(unavailable="not_reported"), True, 1),
        (Usage(unavailable="not_reported"), False, 0),  # a refused request has used nothing
        (Usage(unavailable="lost_on_timeout"), False, 1),
        (Usage(prompt_tokens=5, unavailable="partial"), False, 1),
        (Usage(source="none", unavailable="not_reported"), True, 0),  # no model was called
    ],
)
def test_what_is_not_known_is_counted_as_not_known(usage, answered, unknown):
    made = meter(Budget(max_tokens=1000))
    session = calls(made)
    session.begin()
    session.settle(usage, answered=answered)
    assert made.tally.spent().unknown_tokens == unknown
    assert made.uncounted == bool(unknown)


def test_a_reported_cost_of_unknown_tokens_counts_for_a_budget_of_money():
    made = meter(Budget(max_cost_usd=1.0))
    session = calls(made)
    session.begin()
    session.settle(Usage(cost_usd=1.5), answered=True)
    assert not made.uncounted
    assert session.refuse() == "the attempt's budget is used up ($1.5000 of $1.0000)"


def test_the_tries_of_one_invoke_are_added():
    first = Usage(prompt_tokens=7, completion_tokens=1, source="s", unavailable="partial")
    assert add([first, CALL]) == Usage(prompt_tokens=17, completion_tokens=6, unavailable="partial")
    assert add([Usage(unavailable="not_reported"), CALL]) == CALL, (
        "a request that was refused has used nothing"
    )
    assert add([Usage(unavailable="lost_on_timeout"), CALL]).unavailable == "partial"
    assert add([]).unavailable == "not_reported"
