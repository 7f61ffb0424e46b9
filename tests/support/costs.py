"""Ratios of what two commands cost in one run: they hold on any machine, an absolute time does not.

CPU seconds are those of the process tree. Noise only adds to them, so the least of several interleaved
runs is closest to the truth; a busy machine needs more of them.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def cpu(argv: Sequence[str], cwd: Path, **environment: str) -> float:
    """CPU seconds of a command that must exit 0. Compiled files are written and read."""
    dropped = {"PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, cwd=cwd, env=kept | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def check(
    ratio: Callable[[list[float]], float],
    limit: float,
    *measures: Callable[[], float],
    least: int = 2,
    most: int = 8,
    warm: bool = True,
) -> None:
    """Fail when `ratio` of the least of each measure stays above `limit` for `most` rounds.

    With `warm` every measure runs once before the rounds, which does not count.
    """
    for measure in measures if warm else ():
        measure()
    rounds: list[list[float]] = []
    found = limit + 1.0
    while len(rounds) < least or (found > limit and len(rounds) < most):
        rounds.append([measure() for measure in measures])
        found = ratio([min(column) for column in zip(*rounds, strict=True)])
    assert found <= limit, f"{found:.2f} is above {limit:g}: {rounds}"
