"""Fixtures for tests with real workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from worker_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture(autouse=True)
def no_zombies_of_ours() -> Any:
    """No test may leave a process of a worker behind."""
    yield
    left = [
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
        and b"AGEVAL_WORKER_SERVER" in _environ(entry)
        and _parent(entry) == os.getpid()
    ]
    assert left == []


def _environ(entry: Path) -> bytes:
    try:
        return (entry / "environ").read_bytes()
    except OSError:
        return b""


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
