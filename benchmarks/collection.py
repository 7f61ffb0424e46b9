"""What collecting costs, for data sets of some sizes: everything, one task by name, and with workers.

    python -m benchmarks.collection [--sizes 1000 10000]

Peers list the same number of tasks: ageval-cli the same data set (`ageval tasks`, and `ageval lock --task`
for one, which also hashes the files), inspect-ai a directory with a file a task (`inspect list tasks`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks import peers, tables
from benchmarks.datasets import make
from benchmarks.measure import Cost, TooLongError, median, run

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--in-flight=1"]
OURS = "pytest-ageval"
INSPECT_TASK = """\
from inspect_ai import Task, task


@task
def task_{number:05d}() -> Task:
    return Task()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10000])
    parser.add_argument("--times", type=int, default=1, help="runs of each, of which the median counts")
    parser.add_argument("--at-most", type=float, default=900, help="seconds for one run")
    peers.add_option(parser)
    options = parser.parse_args()
    found = peers.find(("ageval-cli", "inspect-ai"), options.peer_venv)
    rows: dict[tuple[str, ...], Cost | str] = {}

    def measure(who: str, size: int, what: str, argv: list[str], cwd: Path) -> None:
        key = (f"{size}, {what}", who)
        tables.progress(", ".join(key))
        try:
            rows[key] = median([run(argv, cwd=cwd, timeout=options.at_most) for _ in range(options.times)])
        except TooLongError as error:
            rows[key] = str(error)

    with tempfile.TemporaryDirectory(prefix="agb-") as directory:
        scratch = Path(directory)
        plain = scratch / "plain"
        plain.mkdir()
        (plain / "test_one.py").write_text("def test_one(): pass\n")
        measure("pytest", 1, "an ordinary test", [*PYTEST, "--collect-only", "."], plain)
        for size in options.sizes:
            root = make(scratch / f"d{size}", size)
            name = f"task-{size // 2:05d}"
            measure(OURS, size, "all", [*PYTEST, "--collect-only", str(root)], scratch)
            if "ageval-cli" in found:
                measure("ageval-cli", size, "all", [found["ageval-cli"].program, "tasks", str(root)], scratch)
            if "inspect-ai" in found:
                files = _inspect_tasks(scratch / f"i{size}", size)
                listing = [found["inspect-ai"].program, "list", "tasks"]
                measure("inspect-ai", size, "all", [*listing, files.name], scratch)
            path = str(root / "tasks" / name)
            measure(OURS, size, "one by its path", [*PYTEST, "--collect-only", path], scratch)
            if "ageval-cli" in found:
                argv = [found["ageval-cli"].program, "lock", str(root), "--task", name]
                measure("ageval-cli", size, "one by its path", argv, scratch)
            if "inspect-ai" in found:
                argv = [*listing, f"{files.name}/{name.replace('-', '_')}.py"]
                measure("inspect-ai", size, "one by its path", argv, scratch)
            measure(OURS, size, "one by -k", [*PYTEST, "--collect-only", "-k", name, str(root)], scratch)
            for workers in ("0", "4"):
                argv = [*PYTEST, "-k", name, "-n", workers, str(root)]
                measure(OURS, size, f"one by -k, run by -n {workers}", argv, scratch)
    tables.costs("tasks", rows, "by")
    _ratios(options.sizes, rows)


def _ratios(sizes: list[int], rows: dict[tuple[str, ...], Cost | str]) -> None:
    lines = []
    for size in sizes:
        for what in ("all", "one by its path"):
            ours = rows[f"{size}, {what}", OURS]
            for who in ("ageval-cli", "inspect-ai"):
                theirs = rows.get((f"{size}, {what}", who))
                if isinstance(ours, Cost) and isinstance(theirs, Cost):
                    lines.append([f"{size}, {what}", f"{who} / {OURS}", theirs.cpu / ours.cpu])
    if len(sizes) > 1 and all(isinstance(rows[f"{size}, all", OURS], Cost) for size in sizes):
        first, last = (rows[f"{size}, all", OURS].cpu / size for size in (min(sizes), max(sizes)))
        lines.append(["all", f"{OURS}, a task of {max(sizes)} / a task of {min(sizes)}", last / first])
    tables.table(["tasks", "ratio of CPU seconds", ""], lines, [None, None, 2])


def _inspect_tasks(root: Path, size: int) -> Path:
    root.mkdir()
    for number in range(size):
        (root / f"task_{number:05d}.py").write_text(INSPECT_TASK.format(number=number))
    return root


if __name__ == "__main__":
    main()
