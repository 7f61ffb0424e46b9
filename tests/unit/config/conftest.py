"""Fixtures of the configuration's tests."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from config_helpers import DataSet


@pytest.fixture
def ds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    """An empty data set; the current directory is its root, and no variable of ours is set."""
    for name in ("PARROT_KEY", "PARROT_URL", "MY_KEY", "MY_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return DataSet(tmp_path)


@pytest.fixture
def bound(ds: DataSet) -> Callable[[str], None]:
    """A task with the role `solver` in a room, played by a parrot; the argument goes below the profile."""

    def bind(more: str = "") -> None:
        ds.task("agent_profiles: [{id: solver}]\n")
        ds.profiles(
            "environment: room\nagent_profiles:\n  solver:\n    executor: parrot\n"
            "    api_key: ${MY_KEY}\n" + textwrap.indent(textwrap.dedent(more), "    ") + "\n"
        )

    return bind
