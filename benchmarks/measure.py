"""Run a command and say what it cost: wall time, CPU time and peak memory of the whole process tree."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Seconds between two looks at the tree's memory.
PERIOD = 0.02


@dataclass(frozen=True)
class Cost:
    """What a command cost. Seconds and megabytes (proportional set size, so shared pages count once)."""

    wall: float
    cpu: float
    peak_mb: float
    output: str


def run(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> Cost:
    """Run `argv` to its end. Raises RuntimeError with its output when it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    merged = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | dict(env or {})
    process = subprocess.Popen(
        argv, cwd=cwd, env=merged, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    peak = Peak(process.pid)
    output, _ = process.communicate()
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise RuntimeError(f"{' '.join(argv)} exited {process.returncode}:\n{output[-3000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, cpu, peak.stop(), output)


class Peak:
    """Watches the memory of a process and its descendants from a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(PERIOD):
            self._peak = max(self._peak, sum(map(_pss, _tree(self._pid))))

    def stop(self) -> float:
        """The peak in megabytes."""
        self._ended.set()
        self._thread.join()
        return self._peak / 1024


def _tree(root: int) -> list[int]:
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


def _pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)
