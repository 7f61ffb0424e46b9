"""The options of a run, for commands that are not one: as pytest itself would read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from pytest_ageval.config import JobOptions
    from pytest_ageval.registry import Registry


class _Probe:
    """Stops pytest when it has read its configuration, plugins and conftest.py files."""

    def __init__(self) -> None:
        self.found: tuple[JobOptions, Registry] | None = None
        self.error: Exception | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        """In place of a test session."""
        from pytest_ageval.job import Job

        try:
            job = Job.of(config)
            self.found = job.options, job.registry
        except (ConfigError, pytest.UsageError) as error:
            self.error = error
        return 0


def read(path: Path, arguments: Sequence[str]) -> tuple[JobOptions, Registry]:
    """What ``pytest PATH ARGUMENTS`` would run with: command line, environment, ini, conftest.py hooks.

    Raises ConfigError ``invalid_option`` when pytest refuses the command line or its configuration; pytest
    has then said why on standard error.
    """
    probe = _Probe()
    # We are imported before pytest could rewrite us: a warning that a configuration may make an error.
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main([str(path), *quiet, *arguments], plugins=[probe])
    if isinstance(probe.error, ConfigError):
        raise probe.error
    if probe.error is not None:
        raise ConfigError("invalid_option", str(probe.error))
    if probe.found is None:
        raise ConfigError("invalid_option", f"pytest refused its options (exit code {int(code)})")
    return probe.found
