"""The start-up tax: what a project without tasks pays because the plugin is installed.

    python -m benchmarks.startup [--times 20]

Environments are made for it: pytest alone, and pytest with this project, of one interpreter and with the same
pytest. The difference is the tax: our plugin, those that our dependencies register, and what pytest needs to
find them. `-p no:ageval` would leave the last two in both figures, and so does
PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 with an explicit `-p`: that one is shown too, as "the plugin's own part".
An installed deepeval is compared with pytest alone on deepeval's interpreter.

The runs of all rows take turns. "best" is the least of them, "median" the middle one, "peak MB" the resident
set. `pytest --version` loads no plugin, `pytest -VV` loads all.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks import peers, tables
from benchmarks.measure import Cost, single

ROOT = Path(__file__).parents[1]
NO_AUTOLOAD = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
COMMANDS = {
    "pytest --version": ["--version"],
    "pytest -VV": ["-VV"],
    "pytest -q": ["-q", "-p", "no:cacheprovider"],
}


@dataclass
class Row:
    """One environment, one command. `base` is the row that it is compared with."""

    name: str
    python: Path
    command: str
    more: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    base: Row | None = None
    costs: list[Cost] = field(default_factory=list)

    def run(self, project: Path) -> None:
        """Once more."""
        argv = [str(self.python), "-m", "pytest", *COMMANDS[self.command], *self.more]
        self.costs.append(single(argv, cwd=project, env=self.env))

    @property
    def best(self) -> float:
        """CPU milliseconds."""
        return 1000 * min(cost.cpu for cost in self.costs)

    @property
    def median(self) -> float:
        """CPU milliseconds."""
        return 1000 * statistics.median(cost.cpu for cost in self.costs)

    @property
    def peak(self) -> float:
        """Megabytes."""
        return statistics.median(cost.peak_mb for cost in self.costs)


def rows(scratch: Path, found: dict[str, peers.Found], extras: str) -> list[Row]:
    """The rows, and the environments that they need."""
    requirement = f"pytest=={pytest.__version__}"
    tables.progress("making environments")
    alone = peers.make_venv(scratch / "alone", [requirement])
    installed = peers.make_venv(scratch / "installed", [requirement, f"{ROOT}{extras}"])
    peer_alone = None
    if peer := found.get("deepeval"):
        theirs = _output([peer.python, "-c", "import pytest; print(pytest.__version__)"])
        peer_alone = peers.make_venv(scratch / "peer", [f"pytest=={theirs}"], peer.python)
    made = []
    for command in COMMANDS:
        base = Row("pytest alone", alone, command)
        ours = Row(f"with pytest-ageval{extras}", installed, command, base=base)
        bare = Row("the same, no plugin loaded", installed, command, env=NO_AUTOLOAD, base=base)
        part = ("-p", "pytest_ageval.plugin")
        own = Row("the plugin's own part", installed, command, part, NO_AUTOLOAD, base=bare)
        made += [base, ours, bare, own]
        if peer is not None and peer_alone is not None:
            version = _output([peer.python, "-c", "import platform; print(platform.python_version())"])
            base = Row(f"pytest alone, Python {version}", peer_alone, command)
            made += [base, Row("with deepeval", Path(peer.python), command, base=base)]
    return made


def _output(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--extras", default="", help="of pytest-ageval, for example [docker,xdist]")
    peers.add_option(parser)
    options = parser.parse_args()
    found = peers.find(("deepeval",), options.peer_venv)
    with tempfile.TemporaryDirectory(prefix="agb-") as directory:
        project = Path(directory, "project")
        project.mkdir()
        (project / "test_one.py").write_text("def test_one(): pass\n")
        measured = rows(Path(directory), found, options.extras)
        for number in range(options.times + 1):
            tables.progress(f"round {number} of {options.times}")
            for row in measured:
                row.run(project)
    for row in measured:
        del row.costs[0]  # compiled files are written, the disk's cache is filled
    head = ["command", "environment", "CPU ms, best", "median", "peak MB", "tax: best", "median", "MB"]
    tables.table(head, [_line(row) for row in measured], [None, None, 1, 1, 0, 1, 1, 0])


def _line(row: Row) -> list[tables.Cell]:
    cells: list[tables.Cell] = [f"`{row.command}`", row.name, row.best, row.median, row.peak]
    if row.base is None:
        return [*cells, None, None, None]
    return [*cells, row.best - row.base.best, row.median - row.base.median, row.peak - row.base.peak]


if __name__ == "__main__":
    main()
