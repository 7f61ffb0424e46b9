"""Run a command and say what it cost: wall time, CPU time and peak memory of the whole process tree."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Seconds between two looks at the tree's memory; a look takes at most this share of one core.
PERIOD = 0.02
SHARE = 0.1
#: Seconds that what a command leaves behind may go on.
GRACE = 5.0
#: Linux: orphans among our descendants become our children, so that their CPU time is counted.
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Cost:
    """What a command cost. Seconds and megabytes (proportional set size, so shared pages count once)."""

    wall: float
    cpu: float
    peak_mb: float
    output: str = ""


class TooLongError(RuntimeError):
    """A command was ended because its time was up."""


def run(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None, timeout: float | None = None
) -> Cost:
    """Run `argv` to its end, and what it left behind.

    Raises RuntimeError with its output when it fails, and TooLongError after `timeout` seconds.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    others = _children(os.getpid())
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+", errors="replace") as stream:
        process = subprocess.Popen(
            argv, cwd=cwd, env=environment(env), stdout=stream, stderr=subprocess.STDOUT
        )
        peak = Peak(process.pid)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            _kill(process.pid)
            process.wait()
            raise TooLongError(f"{' '.join(argv)} was ended after {timeout:g} s") from None
        finally:
            wall = time.perf_counter() - started
            peak_mb = peak.stop()
            _reap(others)
        stream.seek(0)
        output = stream.read()
    if code:
        raise RuntimeError(f"{' '.join(argv)} exited {code}:\n{output[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, cpu, peak_mb, output)


def single(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> Cost:
    """The same for a short command of one process: its peak memory is the resident set that the kernel saw.

    Raises RuntimeError when it fails.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        argv, cwd=cwd, env=environment(env), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    # What wait4 says of memory is no use: it begins with that of the process that started this one.
    peak = 0
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        peak = max(peak, _status(process.pid, "VmHWM:"))
        time.sleep(0.01)
    wall = time.perf_counter() - started
    _, status, usage = ended
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(argv)} exited {process.returncode}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, peak / 1024)


def median(costs: Sequence[Cost]) -> Cost:
    """The median seconds of several runs, and their highest peak."""
    middle = [statistics.median(getattr(cost, key) for cost in costs) for key in ("wall", "cpu")]
    return Cost(middle[0], middle[1], max(cost.peak_mb for cost in costs), costs[-1].output)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of what is measured. Without compiled files each start would compile anew."""
    dropped = {"PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS", "PYTHONPATH"}
    return {k: v for k, v in os.environ.items() if k not in dropped} | dict(more or {})


class Peak:
    """Watches the memory of a process and its descendants from a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        pause = PERIOD
        while not self._ended.wait(pause):
            begun = time.thread_time()
            self._peak = max(self._peak, sum(map(_pss, tree(self._pid))))
            pause = max(PERIOD, (time.thread_time() - begun) / SHARE)

    def stop(self) -> float:
        """The peak in megabytes."""
        self._ended.set()
        self._thread.join()
        return self._peak / 1024


def tree(root: int) -> list[int]:
    """A process and all its descendants."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += _children(pid)
    return found


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found.update(map(int, (task / "children").read_text().split()))
    return found


def _pss(pid: int) -> int:
    return _field(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def _status(pid: int, name: str) -> int:
    return _field(Path(f"/proc/{pid}/status"), name)


def _field(path: Path, name: str) -> int:
    """Kilobytes; 0 when there is no such line, or the process has gone."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def _kill(root: int) -> None:
    for pid in tree(root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _reap(others: set[int]) -> None:
    """Wait for the orphans of a command; what goes on for too long is killed."""
    deadline = time.monotonic() + GRACE
    while orphans := _children(os.getpid()) - others:
        for pid in orphans:
            if time.monotonic() > deadline:
                _kill(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
