"""What the programs print: Markdown on standard output, progress on standard error."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
from tabulate import tabulate

from benchmarks.measure import Cost

Cell = str | int | float | None


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], digits: Sequence[int | None] = ()) -> None:
    """Print a table. `digits` after the point for each column; None: the cell as it is."""
    places = [*digits, *[None] * (len(head) - len(digits))]
    shown = [
        [
            f"{cell:.{place}f}" if isinstance(cell, int | float) and place is not None else cell
            for cell, place in zip(row, places, strict=True)
        ]
        for row in rows
    ]
    align = ["left" if place is None else "right" for place in places]
    print(tabulate(shown, head, tablefmt="pipe", colalign=align, disable_numparse=True, missingval="-"))
    print(flush=True)


def costs(what: str, rows: Mapping[tuple[str, ...], Cost | str], *more: str) -> None:
    """A table of costs: one row a key, whose parts are the first columns. A text says why there is none."""
    head = [what, *more, "wall s", "CPU s", "peak MB"]
    cells: list[list[Cell]] = []
    notes = []
    for key, cost in rows.items():
        if isinstance(cost, str):
            cells.append([*key, None, None, None])
            notes.append(f"{', '.join(key)}: {cost}")
        else:
            cells.append([*key, cost.wall, cost.cpu, cost.peak_mb])
    table(head, cells, [*[None] * (1 + len(more)), 2, 2, 0])
    for note in notes:
        remark(note)


def remark(text: str) -> None:
    """A line below a table."""
    print(f"{text}\n", flush=True)


def progress(text: str) -> None:
    """Say what is going on to who watches."""
    print(text, file=sys.stderr, flush=True)


def machine() -> str:
    """The machine and the versions, in one line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    names = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line
    )
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {names.get('PRETTY_NAME', 'Linux').strip(chr(34))}, "
        f"Python {platform.python_version()}, pytest {pytest.__version__}, "
        f"pytest-ageval {version('pytest-ageval')}"
    )


def load() -> str:
    """How busy the machine is."""
    return f"load average {os.getloadavg()[0]:.1f}"
