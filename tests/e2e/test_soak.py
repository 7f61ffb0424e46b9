"""The soak, short: attempts that go wrong in every way that it knows, many at once, and what is left."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.mark.parametrize(
    "options", [("--count", "60"), ("--count", "30", "--kill-at", "0.4")], ids=["run", "kill"]
)
def test_every_attempt_ends_as_it_must_and_leaves_nothing(options: tuple[str, ...]) -> None:
    argv = [
        sys.executable,
        "-m",
        "benchmarks.soak",
        *options,
        "--in-flight",
        "20",
        "--think",
        "0.5",
        "--seed",
        "7",
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not as it must be: nothing" in done.stdout
