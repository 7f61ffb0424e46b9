"""Registers what a run asked for beside the attempts themselves: gates, known failures, the CI's forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ageval.ci import mode as ci_mode
from pytest_ageval.gates import known
from pytest_ageval.options import resolve

if TYPE_CHECKING:
    import pytest


#: Options that ask for gates.
GATES = ("fail_under", "max_errors", "baseline")


def register(config: pytest.Config) -> None:
    """Called once the options are known, in every process. Raises `pytest.UsageError`."""
    config.addinivalue_line("markers", known.MARKER_LINE)
    config.pluginmanager.register(known.KnownFailures(config), "ageval-known-failures")
    _register_ci(config)
    if hasattr(config, "workerinput"):
        return
    if any(resolve(config, name)[0] is not None for name in GATES):
        from pytest_ageval.gates import session

        keeper = session.GateKeeper(config, session.read(config))
        config.pluginmanager.register(keeper, "ageval-gates")


def _register_ci(config: pytest.Config) -> None:
    mode = ci_mode(config)
    if mode == "off":
        return
    if mode in ("gitlab", "jenkins") and config.getoption("xmlpath", None):
        from pytest_ageval.ci.attachments import Attachments

        config.pluginmanager.register(Attachments(mode), "ageval-attachments")
    if not hasattr(config, "workerinput"):
        from pytest_ageval.ci.reporter import Reporter

        config.pluginmanager.register(Reporter(config, mode), "ageval-ci")
