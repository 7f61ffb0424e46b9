"""What one attempt costs: trivial local attempts, here and in ageval-cli, side by side in one run.

    python benchmarks/attempts.py --ageval /path/to/ageval --sizes 20 200

The figure per attempt is the slope between the two sizes: start-up is in neither.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

from measure import Cost, run

from datasets import make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ageval", help="the `ageval` program of a peer installation")
    parser.add_argument("--sizes", type=int, nargs=2, default=[20, 200])
    parser.add_argument("--shape", choices=["scripts", "shell"], nargs="*", default=["scripts", "shell"])
    parser.add_argument("--isolation", choices=["none", "bwrap"], nargs="*", default=["none", "bwrap"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows: dict[str, list[Cost]] = {}
        for size in options.sizes:
            for shape, isolation in itertools.product(options.shape, options.isolation):
                root = make(Path(scratch, f"ours-{shape}-{isolation}-{size}"), size, shape)
                argv = [sys.executable, "-m", "pytest", str(root), "-q", "-p", "no:cacheprovider"]
                argv += ["--box", "local", "--box-option", f"isolation={isolation}"]
                argv += ["--agent", "oracle"] if shape == "shell" else []
                name = f"pytest-ageval ({shape}, {isolation})"
                rows.setdefault(name, []).append(run(argv, cwd=Path(scratch)))
            if options.ageval:
                root = make(Path(scratch, f"peer-{size}"), size)
                argv = [options.ageval, "run", str(root), "--max-concurrent-tasks", "1", "--json"]
                rows.setdefault("ageval-cli", []).append(run(argv, cwd=Path(scratch)))
        report(options.sizes, rows)


def report(sizes: list[int], rows: dict[str, list[Cost]]) -> None:
    small, large = sizes
    print(f"{'':32}{'attempts':>9}{'wall s':>9}{'CPU s':>9}{'peak MB':>9}")
    for name, costs in rows.items():
        for size, cost in zip(sizes, costs, strict=True):
            print(f"{name:32}{size:9}{cost.wall:9.2f}{cost.cpu:9.2f}{cost.peak_mb:9.1f}")
    print(f"\n{'per attempt':32}{'wall ms':>9}{'CPU ms':>9}")
    slopes = {}
    for name, (first, last) in rows.items():
        slopes[name] = [
            (getattr(last, key) - getattr(first, key)) / (large - small) * 1000 for key in ("wall", "cpu")
        ]
        print(f"{name:32}{slopes[name][0]:9.1f}{slopes[name][1]:9.1f}")
    peer = slopes.pop("ageval-cli", None)
    if peer is not None:
        for name, ours in slopes.items():
            wall, cpu = (theirs / mine for theirs, mine in zip(peer, ours, strict=True))
            print(f"ageval-cli / {name}: wall {wall:.1f}x, CPU {cpu:.1f}x")


if __name__ == "__main__":
    main()
