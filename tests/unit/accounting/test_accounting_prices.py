"""Prices: the user's table first, then the package; what cannot be known has a reason."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from pytest_ageval.accounting import Price, PriceFile, Prices, library
from pytest_ageval.evidence import by_role, from_exclusive, from_inclusive, from_unknown, sum_usage
from pytest_ageval.executor import Usage

TABLE = PriceFile(
    "prices.yaml",
    "2026-11-30",
    (Price("Mine-*", 10, 30, cache_read=1, cache_write=12.5), Price("plain", 10, 30)),
)
PRICES = Prices(TABLE)


def test_cached_tokens_cost_the_same_whatever_the_source_counts():
    """The case of a session whose 112224 cached tokens were billed twice: $44.58 shown, $7 real."""
    price = Price("m", input=1, output=2, cache_read=0.1)
    inclusive = from_inclusive(113415, 990, cached=112224)
    exclusive = from_exclusive(1191, 990, cached=112224)
    expected = (1191 * 1 + 112224 * 0.1 + 990 * 2) / 1_000_000
    assert price.cost(inclusive) == price.cost(exclusive) == pytest.approx(expected)


def test_what_cannot_be_told_has_no_cost():
    usage = from_unknown(1000, 50, cached=200)
    row = PRICES.row(usage, "mine-1")
    assert row["cost_unavailable"] == "ambiguous"
    assert "cost_usd" not in row


def test_written_tokens_have_a_price_of_their_own():
    usage = Usage(prompt_tokens=100, completion_tokens=10, cached_tokens=60, cache_write_tokens=30)
    row = PRICES.row(usage, "MINE-large")
    assert row["cost_usd"] == pytest.approx((10 * 10 + 60 * 1 + 30 * 12.5 + 10 * 30) / 1e6)
    assert (row["cost_source"], row["price_table"]) == ("estimated", "prices.yaml (2026-11-30)")
    assert PRICES.row(usage, "plain")["cost_usd"] == pytest.approx((100 * 10 + 10 * 30) / 1e6)


def test_a_reported_cost_is_never_replaced():
    row = PRICES.row(Usage(prompt_tokens=1, completion_tokens=1, cost_usd=0.0), "mine-1")
    assert (row["cost_usd"], row["cost_source"]) == (0.0, "reported")


@pytest.mark.parametrize(
    ("usage", "model", "reason"),
    [
        (Usage(unavailable="lost_on_timeout"), "mine-1", "lost_on_timeout"),
        (Usage(prompt_tokens=5, unavailable="partial"), "mine-1", "partial"),
        (Usage(completion_tokens=5), "mine-1", "partial"),
        (Usage(prompt_tokens=5, completion_tokens=5), None, "model_unknown"),
        (Usage(prompt_tokens=5, completion_tokens=5), "no-such-model-1", "no_price"),
    ],
)
def test_no_cost_has_a_reason(usage, model, reason):
    assert PRICES.row(usage, model)["cost_unavailable"] == reason


def test_a_session_without_a_model_has_no_cost_to_speak_of():
    usage = Usage(source="none", unavailable="not_reported")
    assert PRICES.row(usage, None) == {"source": "none", "unavailable": "not_reported"}


def test_without_any_table_the_reason_is_that(monkeypatch):
    monkeypatch.setattr(library, "installed", lambda: False)
    library.find.cache_clear()
    row = Prices().row(Usage(prompt_tokens=5, completion_tokens=5), "gpt-4.1-mini")
    library.find.cache_clear()
    assert row["cost_unavailable"] == "no_price_table"


# -- the package -----------------------------------------------------------------------------------


def test_the_package_prices_what_the_users_table_does_not_name():
    pytest.importorskip("genai_prices")
    usage = Usage(prompt_tokens=1_000_000, completion_tokens=0)
    row = PRICES.row(usage, "gpt-4.1-mini", "https://api.openai.com/v1")
    assert row["cost_usd"] > 0
    assert re.fullmatch(r"genai-prices \S+ \(\d{4}-\d\d-\d\d\)", row["price_table"])
    cached = Usage(prompt_tokens=1_000_000, completion_tokens=0, cached_tokens=1_000_000)
    assert PRICES.row(cached, "gpt-4.1-mini")["cost_usd"] < row["cost_usd"]


@pytest.mark.parametrize("model", ["openai/gpt-4o", "gpt-4o"])
def test_a_name_may_begin_with_its_provider(model):
    pytest.importorskip("genai_prices")
    known = Prices().row(Usage(prompt_tokens=1000, completion_tokens=100), "gpt-4o")
    for url in (None, "http://127.0.0.1:1/v1", "${MY_URL}"):
        assert Prices().row(Usage(prompt_tokens=1000, completion_tokens=100), model, url) == known


def test_nothing_is_fetched_and_nothing_is_imported_before_it_is_needed():
    code = """
import sys, socket
def refuse(*args, **kwargs):
    raise AssertionError("the network was asked")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
from pytest_ageval.accounting import Prices
from pytest_ageval.executor import Usage
assert "genai_prices" not in sys.modules
row = Prices().row(Usage(prompt_tokens=1000, completion_tokens=1), "gpt-4.1-mini")
assert row["cost_source"] == "estimated", row
"""
    pytest.importorskip("genai_prices")
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


# -- sums ------------------------------------------------------------------------------------------


def test_a_sum_says_which_part_is_estimated():
    usage = Usage(prompt_tokens=100_000, completion_tokens=0)
    rows = [
        PRICES.row(usage, "mine-1"),
        PRICES.row(Usage(cost_usd=0.25), "mine-1"),
        PRICES.row(Usage(unavailable="lost_on_timeout"), "mine-1"),
    ]
    found = sum_usage(rows)
    assert found["cost_usd"] == pytest.approx(1.25)
    assert found["cost_source"] == "mixed"
    assert found["cost_estimated_usd"] == pytest.approx(1.0)
    assert found["cost_unavailable"] == ["lost_on_timeout"]
    assert sum_usage([found, found])["cost_estimated_usd"] == pytest.approx(2.0), "sums can be summed"
    assert sum_usage([found, found])["cost_unavailable"] == ["lost_on_timeout"]
    assert sum_usage(rows[:1])["cost_source"] == "estimated"
    assert "cost_source" not in sum_usage(rows[2:])


def test_roles_are_summed_apart():
    usage = Usage(prompt_tokens=1, completion_tokens=2)
    found = by_role([("b", usage), ("a", usage), ("b", usage)])
    assert list(found) == ["a", "b"]
    assert (found["b"]["prompt_tokens"], found["b"]["invocations"]) == (2, 2)
