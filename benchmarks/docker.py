"""What the docker box adds to the engine's own calls, and what a whole attempt in a container costs.

    python -m benchmarks.docker --pairs 15 --attempts 20

First pairs: the bare calls of the Docker SDK (create, start, copy in, two commands with output and exit code,
copy out, remove by force), and a box that is opened, does the same and is closed, in turns. The figure is the
median of the pairs' ratios, so that what else the machine does is in both. Three boxes:

    shared   /attempt is a directory of the host: copies do not go through the engine
    copied   as with an engine that does not see this machine's files
    image    the image's own user and working directory, as Harbor's tasks have it; copied too

Then trivial tasks through pytest, one after the other, with ``--in-flight 8`` and with ``-n 4``; or with
``--harbor`` tasks of `datasets/harbor` with the oracle.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.datasets import make
from benchmarks.measure import run

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.docker_pairs import BOXES, pairs, requests
from support.engine_log import engine_log

ROOT = Path(__file__).parents[1]
ROWS = ((), ("--in-flight", "8"), ("-n", "4"))


def compare(times: int, *, listed: bool) -> None:
    """Print the pairs."""
    print(f"{'box':10}{'bare ms':>9}{'box ms':>9}{'ratio':>8}{'worst':>8}{'requests':>10}")
    for name in BOXES:
        asked = requests(name)
        found = pairs(name, times)
        bare, box = (statistics.median(column) * 1000 for column in zip(*found, strict=True))
        ratios = [mine / theirs for theirs, mine in found]
        print(
            f"{name:10}{bare:9.0f}{box:9.0f}{statistics.median(ratios):8.2f}{max(ratios):8.2f}{len(asked):10}"
        )
        if listed:
            print(*(f"    {row}" for row in asked), sep="\n")


def attempts(root: Path, number: int, times: int, *words: str) -> None:
    """Print what an attempt costs through pytest."""
    title = f"{number} x {root.name}"
    print(f"\n{title:22}{'wall s':>8}{'CPU s':>8}{'peak MB':>9}   an attempt: wall s, CPU s, requests")
    with tempfile.TemporaryDirectory(prefix="agb-") as scratch:
        argv = [sys.executable, "-m", "pytest", str(root), "-q", "-p", "no:cacheprovider", *words]
        argv += ["--ageval-dir", str(Path(scratch, "evidence"))]
        with engine_log(Path(scratch)) as log:
            # Also makes what is made once.
            run(argv, cwd=Path(scratch), env={"DOCKER_HOST": log.host})
            asked = len(log.requests)
        for row in ROWS:
            costs = [run([*argv, *row], cwd=Path(scratch)) for _ in range(times)]
            wall, cpu = (statistics.median(getattr(c, key) for c in costs) for key in ("wall", "cpu"))
            peak = max(cost.peak_mb for cost in costs)
            each = f"{wall / number:8.3f}{cpu / number:8.3f}{asked / number:8.1f}"
            print(f"{' '.join(row) or 'one at a time':22}{wall:8.1f}{cpu:8.1f}{peak:9.0f}   {each}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15, help="for each kind of box; 0: none")
    parser.add_argument("--attempts", type=int, default=20, help="of a run of pytest; 0: none")
    parser.add_argument("--times", type=int, default=1, help="runs of pytest, of which the median is shown")
    parser.add_argument("--harbor", nargs="*", default=[], help="tasks of datasets/harbor by name")
    parser.add_argument("--requests", action="store_true", help="list what a box asks the engine for")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if options.pairs:
        compare(options.pairs, listed=options.requests)
    with tempfile.TemporaryDirectory(prefix="agb-") as directory:
        if options.attempts:
            root = make(Path(directory, "trivial"), options.attempts)
            attempts(root, options.attempts, options.times, "--box", "docker")
        for name in options.harbor:
            root = Path(directory, name)
            shutil.copytree(ROOT / "datasets" / "harbor" / name, root / name)
            given = ("--agent", "oracle", "--attempts", str(options.attempts or 1))
            attempts(root, options.attempts or 1, options.times, *given)


if __name__ == "__main__":
    main()
