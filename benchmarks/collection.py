"""What collecting costs: CPU seconds and peak memory for 1,000 and 10,000 tasks.

python benchmarks/collection.py
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from measure import run

from datasets import make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10000])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        empty = Path(scratch, "empty")
        empty.mkdir()
        (empty / "test_one.py").write_text("def test_one(): pass\n")
        base = run([*pytest, "--collect-only", str(empty)], cwd=empty)
        print(f"{'':44}{'CPU s':>9}{'peak MB':>9}")
        print(f"{'pytest, one ordinary test':44}{base.cpu:9.2f}{base.peak_mb:9.1f}")
        for size in options.sizes:
            root = make(Path(scratch, str(size)), size)
            for name, extra in (
                ("collect all", ["--collect-only"]),
                ("collect all, select one by -k", ["--collect-only", "-k", "task-00007"]),
            ):
                cost = run([*pytest, *extra, str(root)], cwd=root)
                print(f"{f'{size} tasks, {name}':44}{cost.cpu:9.2f}{cost.peak_mb:9.1f}")
            one = root / "tasks" / "task-00007" / "task.yaml"
            cost = run([*pytest, "--collect-only", str(one)], cwd=root)
            print(f"{f'{size} tasks, name one':44}{cost.cpu:9.2f}{cost.peak_mb:9.1f}")


if __name__ == "__main__":
    main()
