"""Accounting: what was used, what it cost, and what may still be spent.

Imports no part of the pipeline, so that the lock, the sessions and the reports can all use it.
"""

from __future__ import annotations

from pytest_ageval.accounting.budget import Account, Budget, Ledger, Spent, Tally
from pytest_ageval.accounting.meter import CallMeter, Meter, Refusal
from pytest_ageval.accounting.prices import Price, PriceFile, Prices

__all__ = [
    "Account",
    "Budget",
    "CallMeter",
    "Ledger",
    "Meter",
    "Price",
    "PriceFile",
    "Prices",
    "Refusal",
    "Spent",
    "Tally",
]
