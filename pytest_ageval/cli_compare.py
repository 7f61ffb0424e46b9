"""``pytest-ageval compare``: suite runs, or the agents of one, beside each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ageval.cli_output import say
from pytest_ageval.errors import AgevalError, ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pytest_ageval.compare.sides import Side

#: Names of the sides, as long as there are letters.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def arguments(parser: argparse.ArgumentParser) -> None:
    """SUITE..., what they are divided by, and the form of the output."""
    from pytest_ageval.compare.sides import DIMENSIONS

    parser.add_argument(
        "suite", nargs="+", help="an id, the beginning of one, 'last', or a path; the first is the reference"
    )
    parser.add_argument("--by", choices=DIMENSIONS, help="compare within one suite run")
    parser.add_argument("--all-pairs", action="store_true", help="every side with every other")
    parser.add_argument(
        "--alpha", type=float, default=0.05, metavar="P", help="level of the tests (default 0.05)"
    )
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")
    parser.add_argument(
        "--evidence", "--dir", type=Path, metavar="DIR", help="root of the evidence that ids are in"
    )


def compare(options: argparse.Namespace) -> int:
    """Print the figures and the comparisons. Exit code 0, whatever they say."""
    from pytest_ageval import stats

    stats.require("pytest-ageval compare")
    if not 0 < options.alpha < 1:
        raise ConfigError("invalid_option", f"--alpha must be between 0 and 1, found {options.alpha}")
    try:
        sides = _sides(options)
    except ConfigError:
        raise
    except AgevalError as error:  # a record that cannot be read
        raise ConfigError(error.title, error.message) from error
    from pytest_ageval.compare import pairs, render

    report = pairs.report(sides, alpha=options.alpha, all_pairs=options.all_pairs)
    if options.format == "json":
        say(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        shown = render.text(report) if options.format == "text" else render.markdown(report)
        for line in shown.split("\n"):
            say(line)
    return 0


def _sides(options: argparse.Namespace) -> Sequence[Side]:
    from pytest_ageval.compare.sides import divide, find, read_side

    paths = [find(name, options.evidence) for name in options.suite]
    if options.by is None:
        labels = LETTERS if len(paths) <= len(LETTERS) else [f"S{n}" for n in range(1, len(paths) + 1)]
        return [read_side(path, label) for path, label in zip(paths, labels, strict=False)]
    if len(paths) != 1:
        raise ConfigError("invalid_option", "--by divides one suite run; name just one")
    return divide(read_side(paths[0], "A"), options.by)
