"""The options of a run, for commands that are not one: as pytest itself would read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import pytest

from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from pytest_ageval.config import JobOptions
    from pytest_ageval.registry import Registry

T = TypeVar("T")


class _Probe(Generic[T]):
    """Stops pytest when it has read its configuration, plugins and conftest.py files."""

    def __init__(self, look: Callable[[pytest.Config], T]) -> None:
        self.look = look
        self.found: list[T] = []
        self.error: Exception | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        """In place of a test session."""
        try:
            self.found.append(self.look(config))
        except (ConfigError, pytest.UsageError) as error:
            self.error = error
        return 0


def probe(arguments: Sequence[str], look: Callable[[pytest.Config], T]) -> T:
    """What `look` finds in the configuration of ``pytest ARGUMENTS``.

    Raises ConfigError ``invalid_option`` when pytest refuses the command line or its configuration; pytest
    has then said why on standard error.
    """
    made = _Probe(look)
    # We are imported before pytest could rewrite us: a warning that a configuration may make an error.
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main([*arguments, *quiet], plugins=[made])
    if isinstance(made.error, ConfigError):
        raise made.error
    if made.error is not None:
        raise ConfigError("invalid_option", str(made.error))
    if not made.found:
        raise ConfigError("invalid_option", f"pytest refused its options (exit code {int(code)})")
    return made.found[0]


def read(path: Path, arguments: Sequence[str]) -> tuple[JobOptions, Registry]:
    """What ``pytest PATH ARGUMENTS`` would run with: command line, environment, ini, conftest.py hooks.

    Raises ConfigError ``invalid_option``, see `probe`.
    """

    def look(config: pytest.Config) -> tuple[JobOptions, Registry]:
        from pytest_ageval.job import Job

        job = Job.of(config)
        return job.options, job.registry

    return probe([str(path), *arguments], look)
