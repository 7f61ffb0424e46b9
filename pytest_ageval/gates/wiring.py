"""Registers what a run asked for beside the attempts themselves: gates, known failures, the CI's forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ageval.gates import known

if TYPE_CHECKING:
    import pytest


def register(config: pytest.Config) -> None:
    """Called once the options are known, in every process. Raises `pytest.UsageError`."""
    config.addinivalue_line("markers", known.MARKER_LINE)
    config.pluginmanager.register(known.KnownFailures(config), "ageval-known-failures")
    if hasattr(config, "workerinput"):
        return
    from pytest_ageval.gates import session

    if session.asked(config):
        keeper = session.GateKeeper(config, session.read(config))
        config.pluginmanager.register(keeper, "ageval-gates")
