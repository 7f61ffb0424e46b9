"""Runs that are interrupted: a task that does not end, and what is left of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import DataSet


SECONDS = 30


def sleeper(demo: DataSet) -> str:
    """Two tasks, one of which does not end; what is returned recognises the process in its box."""
    mark = f"9{os.getpid()}{time.monotonic_ns() % 1000}"
    demo.task("quick")
    demo.task("sleeps", run="import time\ndef run(ctx):\n    time.sleep(600)\n")
    (demo.root / "conftest.py").write_text(
        dedent(
            f"""
            import os, threading
            from pathlib import Path

            def pytest_ageval_before_run(attempt):
                if attempt.task_id == "sleeps":
                    sleep = lambda: attempt.box.exec(["sleep", "{mark}"])
                    threading.Thread(target=sleep, daemon=True).start()
                    while not alive("{mark}"):
                        pass
                    Path({str(demo.root / "new")!r}).write_text(str(os.getpid()))
                    os.rename({str(demo.root / "new")!r}, {str(demo.root / "pid")!r})

            def alive(mark):
                for proc in Path("/proc").iterdir():
                    if proc.name.isdigit():
                        try:
                            if mark.encode() in (proc / "cmdline").read_bytes().split(b"\\0"):
                                return True
                        except OSError:
                            pass
                return False
            """
        )
    )
    return mark


def alive(mark: str) -> list[int]:
    found = []
    for proc in Path("/proc").iterdir():
        if proc.name.isdigit():
            try:
                if mark.encode() in (proc / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(proc.name))
            except OSError:
                continue
    return found


def until(condition: Callable[[], object], seconds: float = SECONDS) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def start(demo: DataSet, *args: str, ignore: bool = False) -> subprocess.Popen[str]:
    """pytest in a process group of its own, as a shell starts it; `ignore`: as in the background."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]
    if ignore:
        command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    return subprocess.Popen(
        command,
        cwd=demo.pytester.path,
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Whoever runs these tests under nohup has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )


def directories(scratch: Path) -> list[str]:
    """What is left in the temporary directory, apart from pytest's own and the boxes' common one."""
    found = [path.relative_to(scratch) for path in scratch.rglob("*")]
    ours = [path for path in found if not path.parts[0].startswith("pytest-of-")]
    return sorted(str(path) for path in ours if not re.fullmatch(r"pytest-ageval-\d+", str(path)))
