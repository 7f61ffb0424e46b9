"""The peers that are measured beside us, each in an environment of its own.

    python -m benchmarks.peers [--into DIR] [NAME ...]

makes these environments (default: all peers, in `.peers`); the other programs look there, or where their
option ``--peer-venv`` says. A peer that is not found is named in the output.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import progress, remark

DEFAULT = Path(__file__).parents[1] / ".peers"
#: The oldest Python on which all of them run.
OLDEST = (3, 12)


@dataclass(frozen=True)
class Peer:
    """What to install, and the program that shows it is there."""

    requirements: tuple[str, ...]
    program: str


PEERS = {
    "ageval-cli": Peer(("ageval-cli==0.10.0",), "ageval"),
    "inspect-ai": Peer(("inspect-ai==0.3.285", "openai==3.57.0"), "inspect"),
    "deepeval": Peer(("deepeval==4.3.1",), "deepeval"),
    "harbor": Peer(("harbor==0.26.0",), "harbor"),
}


@dataclass(frozen=True)
class Found:
    """An installed peer."""

    name: str
    program: str
    python: str

    @property
    def version(self) -> str:
        """The version that is installed."""
        code = f"from importlib.metadata import version; print(version({self.name!r}))"
        return subprocess.run(
            [self.python, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()


def add_option(parser: argparse.ArgumentParser) -> None:
    """``--peer-venv``."""
    parser.add_argument(
        "--peer-venv",
        type=Path,
        action="append",
        help="an environment with peers, or a directory with one environment for each (default: .peers)",
    )


def find(names: Iterable[str], given: Sequence[Path] | None) -> dict[str, Found]:
    """The peers that are installed; the others are named on standard output."""
    found = {}
    for name in names:
        program = PEERS[name].program
        for place in given or [DEFAULT]:
            for venv in (place / name, place):
                # Not resolved: the link's own directory says which environment it belongs to.
                if (path := venv.absolute() / "bin" / program).is_file():
                    found.setdefault(name, Found(name, str(path), str(path.with_name("python"))))
        if name in found:
            remark(f"Peer: {name} {found[name].version}.")
        else:
            remark(f"Not measured: {name} is not installed (`python -m benchmarks.peers {name}`).")
    return found


def make_venv(place: Path, requirements: Sequence[str], python: str = sys.executable) -> Path:
    """A new environment with `requirements`, its files compiled; the path of its Python."""
    inside = str(place / "bin" / "python")
    if uv := shutil.which("uv"):
        command = [uv, "pip", "install", "-q", "--compile-bytecode", "--python", inside]
        subprocess.run([uv, "venv", "-q", "-p", python, str(place)], check=True)
    else:
        command = [inside, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([python, "-m", "venv", str(place)], check=True)
    subprocess.run([*command, *requirements], check=True)
    return Path(inside)


def newer_python() -> str:
    """A Python that every peer runs on. Raises SystemExit when there is none."""
    if sys.version_info >= OLDEST:
        return sys.executable
    names = [f"python3.{minor}" for minor in (13, 12)]
    places = sorted(Path.home().glob(".pyenv/versions/3.1[23]*/bin/python"), reverse=True)
    for path in (*filter(None, map(shutil.which, names)), *map(str, places)):
        code = f"import sys; sys.exit(sys.version_info < {OLDEST})"
        if subprocess.run([path, "-c", code], check=False, capture_output=True).returncode == 0:
            return path
    raise SystemExit("the peers need Python 3.12 or newer: name one with --python")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PEERS))
    parser.add_argument("--into", type=Path, default=DEFAULT)
    parser.add_argument("--python", help="the interpreter of the environments: 3.12 or newer")
    options = parser.parse_args()
    if unknown := set(options.names) - PEERS.keys():
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    python = options.python or newer_python()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in options.names or PEERS:
        place = options.into / name
        if (place / "bin" / PEERS[name].program).exists():
            progress(f"{name} is there: {place}")
            continue
        progress(f"installing {', '.join(PEERS[name].requirements)} into {place}")
        make_venv(place, PEERS[name].requirements, python)


if __name__ == "__main__":
    main()
