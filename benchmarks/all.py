"""Every measurement that this machine allows, one after the other, into one Markdown file.

    python -m benchmarks.all --output FILE [--quick] [--peer-venv DIR] [--only NAME ...]

The full run takes hours on two cores, most of them for peers; `--quick` takes minutes, and shows only that
everything works. A measurement that fails is in the file with the end of what it said, and the exit
code is 1. Progress goes to FILE with the suffix .log.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.tables import load, machine, progress

HERE = Path(__file__).parent
#: The arguments of each: of a full run, and of a quick one.
PROGRAMS: dict[str, tuple[list[str], list[str]]] = {
    "startup": (["--times=20"], ["--times=2"]),
    "collection": (["--sizes", "1000", "10000"], ["--sizes", "50", "100"]),
    "attempts": (["--sizes", "20", "200", "2000"], ["--sizes", "5", "15", "--at-once", "1"]),
    "in_flight": (["--at-once", "1", "8", "64", "256"], ["--at-once", "1", "8", "--seconds=0.5"]),
    "boxes": (["--times=15"], ["--times=1"]),
    "docker": (["--pairs=15", "--attempts=20"], ["--pairs=1", "--attempts=0"]),
    "soak": (["--count=2000"], ["--count=40", "--in-flight=8"]),
    "harbor": (["--times=2"], ["--times=1"]),
}
#: Those with an option ``--peer-venv``, and those that the quick run leaves out.
WITH_PEERS = {"startup", "collection", "attempts", "in_flight", "harbor"}
SLOW = {"docker", "soak", "harbor"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the Markdown file, written as it goes")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--peer-venv", type=Path, action="append", default=[])
    parser.add_argument("--docker-config", type=Path, help="for harbor: a directory with cli-plugins")
    parser.add_argument("--only", nargs="*", choices=PROGRAMS, help="these only")
    options = parser.parse_args()
    shared = [f"--peer-venv={place.absolute()}" for place in options.peer_venv]
    failed = []
    with options.output.open("w", encoding="utf-8") as file:
        print(f"# Measurements\n\n{machine()}.\n", file=file, flush=True)
        for name in options.only or [name for name in PROGRAMS if not (options.quick and name in SLOW)]:
            more = PROGRAMS[name][options.quick] + (shared if name in WITH_PEERS else [])
            if name == "harbor" and options.docker_config:
                more = [*more, f"--docker-config={options.docker_config.absolute()}"]
            progress(f"== {name} {' '.join(more)}")
            text, code = section(name, more, options.output.with_suffix(".log"))
            failed += [name] * bool(code)
            print(text, file=file, flush=True)
    if failed:
        progress(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def section(name: str, more: list[str], log: Path) -> tuple[str, int]:
    """The output of one program under a heading, and its exit code."""
    before, started = load(), time.monotonic()
    shown = " ".join(["python -m", f"benchmarks.{name}", *(a for a in more if "peer-venv" not in a)])
    with log.open("w", encoding="utf-8") as stream:
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", *more],
            cwd=HERE.parent,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            check=False,
        )
    body = done.stdout.strip()
    if not any(line.startswith("|") for line in body.splitlines()):
        body = f"```text\n{body}\n```"
    if done.returncode:
        body += f"\n\nIt exited {done.returncode}:\n\n```text\n{log.read_text()[-3000:].strip()}\n```"
    seconds = time.monotonic() - started
    return (
        f"## {name}\n\n    {shown}\n\n{seconds:.0f} s; {before} before, {load()} after.\n\n{body}\n",
        done.returncode,
    )


if __name__ == "__main__":
    sys.exit(main())
