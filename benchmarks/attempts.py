"""What one attempt costs: trivial local attempts by us and by peers, side by side in one run.

    python -m benchmarks.attempts [--sizes 20 200 2000] [--at-once 1 2 8]

Every attempt makes a box, publishes one JSON object, and has it evaluated; no model is called. ageval-cli
runs the same data set. For inspect-ai an attempt is a sample in its local sandbox (no isolation): once with
all the work in its own process, once with two commands, which is closer to what the others do.
Before anything counts, everybody runs one attempt.

"Per attempt" is the slope between two sizes: start-up is in neither figure.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks import peers, tables
from benchmarks.datasets import Shape, make
from benchmarks.measure import Cost, TooLongError, median, run

TASKS = Path(__file__).with_name("inspect_tasks.py")
OURS = "pytest-ageval"
#: How many attempts at once, and the option that says so.
WAYS = {1: ["-n0", "--in-flight=1"], 2: ["-n2", "--in-flight=1"], 8: ["-n0", "--in-flight=8"]}


#: Seconds of wall time and of CPU time.
Figure = tuple[float, float]


@dataclass(frozen=True)
class Contender:
    """Somebody who runs attempts, so many at once. `measure` takes their number and an empty directory."""

    name: str
    how: str
    at_once: int
    measure: Callable[[int, Path, float], Cost]


def ours(at_once: int, isolation: str, shape: Shape = "scripts") -> Contender:
    """`pytest` on the data set. With the shape "shell", an agent and commands in the box do the work."""

    def measure(size: int, scratch: Path, timeout: float) -> Cost:
        root = make(scratch / "data", size, shape)
        argv = [sys.executable, "-m", "pytest", str(root), "-q", "-p", "no:cacheprovider"]
        argv += [*WAYS[at_once], "--box=local", f"--box-option=isolation={isolation}"]
        argv += ["--agent=oracle"] if shape == "shell" else []
        cost = run(argv, cwd=scratch, timeout=timeout)
        assert f"{size} passed" in cost.output, cost.output[-2000:]
        return cost

    how = f"{' '.join(WAYS[at_once])}, {'bubblewrap' if isolation == 'bwrap' else 'no isolation'}"
    return Contender(OURS, how + (", agent in the box" if shape == "shell" else ""), at_once, measure)


def ageval_cli(found: peers.Found, at_once: int) -> Contender:
    """`ageval run` on the data set. It has no isolation on this kind of box."""

    def measure(size: int, scratch: Path, timeout: float) -> Cost:
        root = make(scratch / "data", size)
        argv = [found.program, "run", str(root), "--max-concurrent-tasks", str(at_once), "--json"]
        cost = run(argv, cwd=scratch, timeout=timeout)
        assert f'"pass":{size}' in cost.output, cost.output[-2000:]
        return cost

    return Contender("ageval-cli", f"--max-concurrent-tasks {at_once}", at_once, measure)


def inspect_ai(found: peers.Found, at_once: int, command: bool) -> Contender:
    """`inspect eval` with as many samples."""

    def measure(size: int, scratch: Path, timeout: float) -> Cost:
        argv = [found.program, "eval", f"{TASKS}@trivial", "--model=mockllm/model", "--display=none"]
        argv += ["-T", f"attempts={size}", "-T", f"command={str(command).lower()}"]
        argv += [f"--log-dir={scratch / 'logs'}", f"--max-samples={at_once}"]
        cost = run(argv, cwd=scratch, timeout=timeout)
        check_inspect(found, scratch / "logs", size)
        return cost

    how = f"--max-samples {at_once}, {'two commands' if command else 'no command'}"
    return Contender("inspect-ai", how, at_once, measure)


def check_inspect(found: peers.Found, logs: Path, size: int) -> None:
    """Its exit code does not say whether the samples passed."""
    (log,) = logs.glob("*.eval")
    shown = run([found.program, "log", "dump", "--header-only", str(log)], cwd=logs).output
    results = json.loads(shown[shown.index("{") :])["results"]
    passed = results["scores"][0]["metrics"]["accuracy"]["value"]
    assert (results["completed_samples"], passed) == (size, 1.0), results


def contenders(found: dict[str, peers.Found], at_once: list[int]) -> list[Contender]:
    """All who can be measured here."""
    rows = []
    for number in at_once:
        rows += [ours(number, "none"), ours(number, "bwrap"), ours(number, "bwrap", "shell")]
        if peer := found.get("ageval-cli"):
            rows.append(ageval_cli(peer, number))
        if peer := found.get("inspect-ai"):
            rows += [inspect_ai(peer, number, command) for command in (False, True)]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20, 200, 2000])
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 2, 8], choices=WAYS)
    parser.add_argument("--times", type=int, default=1, help="runs of each, of which the median counts")
    parser.add_argument(
        "--at-most", type=float, default=900, help="seconds for one run; longer ones are left out"
    )
    peers.add_option(parser)
    options = parser.parse_args()
    found = peers.find(("ageval-cli", "inspect-ai"), options.peer_venv)
    rows: dict[tuple[str, ...], Cost | str] = {}
    everybody = contenders(found, options.at_once)
    tables.progress("one attempt by each, which does not count")
    for who in everybody:
        attempt(who, 1, [], 1, options.at_most)
    for size in sorted(options.sizes):
        for who in everybody:
            key = (who.name, who.how, str(size))
            earlier = [(int(k[2]), cost) for k, cost in rows.items() if k[:2] == key[:2]]
            tables.progress(", ".join(key))
            rows[key] = attempt(who, size, earlier, options.times, options.at_most)
    tables.costs("by", rows, "how", "attempts")
    slopes(everybody, sorted(options.sizes), rows)


def attempt(
    who: Contender, size: int, earlier: list[tuple[int, Cost | str]], times: int, at_most: float
) -> Cost | str:
    """The cost of a size, or why it was not measured."""
    if earlier:
        smaller, cost = earlier[-1]
        if isinstance(cost, str):
            return "a smaller size took too long"
        expected = cost.wall * size / smaller
        if expected > at_most:
            return f"not run: about {expected:.0f} s are expected, and --at-most is {at_most:g}"
    costs = []
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="agb-") as directory:
            try:
                costs.append(who.measure(size, Path(directory), at_most))
            except TooLongError:
                return f"ended after {at_most:g} s"
    return median(costs)


def slopes(everybody: list[Contender], sizes: list[int], rows: dict[tuple[str, ...], Cost | str]) -> None:
    """What one more attempt costs, and the ratios of those who run as many at once."""
    lines: list[list[tables.Cell]] = []
    figures: dict[Contender, dict[str, Figure]] = {}
    for who in everybody:
        measured = [(s, c) for s in sizes if isinstance(c := rows[who.name, who.how, str(s)], Cost)]
        figures[who] = {f"{size} attempts": (cost.wall, cost.cpu) for size, cost in measured}
        for (less, first), (more, last) in pairwise(measured):
            slope = _slope(less, first, more, last)
            lines.append([who.name, who.how, f"{less} to {more}", *(1000 * s for s in slope)])
        if len(measured) > 1:
            figures[who]["one more attempt"] = _slope(*measured[0], *measured[-1])
    if lines:
        tables.table(
            ["by", "how", "attempts", "wall ms each", "CPU ms each"], lines, [None, None, None, 1, 1]
        )
    ratios = [
        [f"{peer.name}, {peer.how}", f"{we.name}, {we.how}", what, *_divided(theirs, figures[we][what])]
        for peer in everybody
        for we in everybody
        if we.name == OURS != peer.name and we.at_once == peer.at_once
        for what, theirs in figures[peer].items()
        if what in figures[we]
    ]
    if ratios:
        tables.table(["peer", "divided by", "of", "wall", "CPU"], ratios, [None, None, None, 2, 2])


def _slope(less: int, first: Cost, more: int, last: Cost) -> Figure:
    return (last.wall - first.wall) / (more - less), (last.cpu - first.cpu) / (more - less)


def _divided(theirs: Figure, ours: Figure) -> list[float | None]:
    """Small sizes can show a slope of nothing or less, of which there is no ratio."""
    return [mine / other if min(mine, other) > 0 else None for mine, other in zip(theirs, ours, strict=True)]


if __name__ == "__main__":
    main()
