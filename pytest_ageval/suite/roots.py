"""Where the commands look for evidence when nobody names a place: as a run in this directory would."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ageval.suite.places import DIRECTORY

if TYPE_CHECKING:
    import pytest

#: Directories below the current one that are searched for data sets.
DEPTH = 5
_PASSED_OVER = frozenset(("node_modules", "__pycache__", "venv", "site-packages"))

#: Files in which pytest finds its configuration.
_CONFIGURATIONS = (
    *("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"),
)

#: What must stand in one of them before pytest is asked to read it.
_MARKS = (b"ageval_dir", b"ageval-dir")


def evidence_roots(given: Path | None, here: Path) -> list[Path]:
    """Roots of evidence that hold suite runs.

    `given`, or the ``.ageval`` below it. Without it: the configured one (`configured`), then those of the
    data sets around and below `here`. Raises ConfigError ``invalid_option``.
    """
    if given is not None:
        return [place for place in (given, given / ".ageval") if (place / DIRECTORY).is_dir()]
    named = configured(here)
    found = [named] if named is not None else []
    found += [place / ".ageval" for place in (here, *here.parents)]
    found += _below(here, DEPTH)
    unique = {place.absolute(): None for place in found if (place / DIRECTORY).is_dir()}
    return list(unique)


def _below(directory: Path, depth: int) -> Iterator[Path]:
    try:
        entries = [Path(e.path) for e in os.scandir(directory) if e.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for entry in sorted(entries):
        if (entry / DIRECTORY).is_dir():
            yield entry
        elif depth > 1 and entry.name not in _PASSED_OVER and not entry.name.startswith("."):
            yield from _below(entry, depth - 1)


def configured(here: Path) -> Path | None:
    """The directory of the evidence that ``pytest`` in `here` would take; None for that of each data set.

    In this order: ``--ageval-dir`` in ``addopts`` or ``PYTEST_ADDOPTS``, ``AGEVAL_DIR``, the ini key
    ``ageval_dir``. pytest itself reads its configuration, and only where one could name a directory; no
    conftest.py is read. Raises ConfigError ``invalid_option`` for a configuration that pytest refuses.
    """
    named = os.environ.get("AGEVAL_DIR")
    if not _may_be_configured(here):
        return here / Path(named).expanduser() if named else None
    from pytest_ageval.cli_options import probe
    from pytest_ageval.options import resolve

    def look(config: pytest.Config) -> Path | None:
        value, source = resolve(config, "dir")
        base = config.rootpath if source == "ini" else here
        return None if value is None else base / Path(value).expanduser()

    before = Path.cwd()
    try:
        os.chdir(here)
        return probe(["--noconftest"], look)
    finally:
        os.chdir(before)


def _may_be_configured(here: Path) -> bool:
    """A configuration at or above `here`, or the environment, has the word."""
    if "ageval-dir" in os.environ.get("PYTEST_ADDOPTS", ""):
        return True
    for directory in (here.absolute(), *here.absolute().parents):
        for name in _CONFIGURATIONS:
            try:
                text = (directory / name).read_bytes()
            except OSError:
                continue
            if any(mark in text for mark in _MARKS):
                return True
    return False
