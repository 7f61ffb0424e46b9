"""From nothing to a box in which a command can run, and away again: local (both), docker, ssh.

    python -m benchmarks.boxes --times 15

The docker box is of the image ageval-attempt:base; the ssh box is on an sshd that this program starts on
loopback. A kind that cannot be used here is passed over.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pytest_ageval.box import BoxSpec
from pytest_ageval.errors import BoxError
from pytest_ageval.registry import Registry

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import sshd

Row = tuple[float, float]


async def once(kind: str, options: dict[str, Any], directory: Path, number: int) -> Row:
    """Seconds until a command has run in a new box, and until the box is gone."""
    labels = {"ageval.run": "benchmark", "ageval.attempt": f"{kind}-{number}"}
    work = directory / f"{kind}-{number}"
    spec = BoxSpec(kind, f"bench-{number}", "t", work, options=options, labels=labels)
    box = Registry().box(kind)(spec)
    begun = time.monotonic()
    try:
        await box.preflight()
        await box.start()
        assert (await box.exec(["true"])).ok
        ready = time.monotonic()
    finally:
        ending = time.monotonic()
        await box.stop()
    return ready - begun, time.monotonic() - ending


async def measure(kind: str, options: dict[str, Any], times: int) -> list[Row]:
    """The first box, which pays for imports and connections, does not count."""
    with tempfile.TemporaryDirectory(prefix="agb-") as directory:
        rows = [await once(kind, options, Path(directory), number) for number in range(times + 1)]
    return rows[1:]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=15, help="boxes of each kind")
    options = parser.parse_args()
    with ExitStack() as stack:
        kinds: list[tuple[str, str, dict[str, Any]]] = [
            ("local (bubblewrap)", "local", {"isolation": "bwrap"}),
            ("local (no isolation)", "local", {"isolation": "none"}),
            ("docker", "docker", {}),
        ]
        if sshd.MISSING is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agb-ssh-")))
            kinds.append(("ssh", "ssh", stack.enter_context(sshd.sshd(directory)).options))
        print(f"{'box':22} {'ready, median s':>16} {'worst s':>9} {'gone, median s':>15}")
        for name, kind, given in kinds:
            try:
                rows = asyncio.run(measure(kind, given, options.times))
            except BoxError as error:
                print(f"{name:22} {error.title}")
                continue
            ready, gone = zip(*rows, strict=True)
            middle, last = statistics.median(ready), statistics.median(gone)
            print(f"{name:22} {middle:16.3f} {max(ready):9.3f} {last:15.3f}")


if __name__ == "__main__":
    main()
