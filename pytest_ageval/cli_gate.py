"""``pytest-ageval gate``: the gates of a run, on a suite run that is over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ageval.cli_output import say
from pytest_ageval.errors import AgevalError, ConfigError

if TYPE_CHECKING:
    import argparse

    from pytest_ageval.gates.rules import Gates


def arguments(parser: argparse.ArgumentParser) -> None:
    """SUITE and the gates, as pytest takes them."""
    parser.add_argument("suite", help="an id, the beginning of one, 'last', or a path")
    parser.add_argument("--fail-under", metavar="RATE", help="least pass rate of each group: 0.8 or 80%%")
    parser.add_argument("--max-errors", metavar="N", help="most ERRORs: 3 or 5%%")
    parser.add_argument("--baseline", metavar="FILE|SUITE", help="what must not get significantly worse")
    parser.add_argument(
        "--baseline-alpha", type=float, default=0.05, metavar="P", help="level (default 0.05)"
    )
    parser.add_argument(
        "--write-baseline", type=Path, metavar="FILE", help="keep this suite run as a baseline"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--evidence", type=Path, metavar="DIR", help="root of the evidence that ids are in")


def gate(options: argparse.Namespace) -> int:
    """Print a line for each decision. Exit code 0: all gates passed; 10: one did not."""
    from pytest_ageval.gates.session import EXIT_GATES

    try:
        passed = _judge(options)
    except ConfigError:
        raise
    except AgevalError as error:  # a record that cannot be read
        raise ConfigError(error.title, error.message) from error
    return 0 if passed else EXIT_GATES


def _judge(options: argparse.Namespace) -> bool:
    from pytest_ageval.compare.sides import find, read_side
    from pytest_ageval.gates import baseline

    gates = _gates(options)
    if not gates and options.write_baseline is None:
        raise ConfigError(
            "invalid_option", "name a gate: --fail-under, --max-errors, --baseline (or --write-baseline)"
        )
    side = read_side(find(options.suite, options.evidence), options.suite)
    found = gates.judge(side.with_whole_paths()) if gates else []
    if options.format == "json":
        say(json.dumps([decision._asdict() for decision in found], indent=2, ensure_ascii=False))
    else:
        for decision in found:
            say(decision.line)
    if options.write_baseline is not None:
        kept = baseline.of_rows(side.suite_run_id, side.rows, side.attempt_dir)
        baseline.write(options.write_baseline, kept)
    return all(decision.passed is not False for decision in found)


def _gates(options: argparse.Namespace) -> Gates:
    from pytest_ageval import stats
    from pytest_ageval.gates import baseline
    from pytest_ageval.gates.rules import Gates, parse_alpha, parse_errors, parse_rate

    if options.baseline is not None:
        stats.require("--baseline")
    return Gates(
        None if options.fail_under is None else parse_rate(options.fail_under),
        None if options.max_errors is None else parse_errors(options.max_errors),
        None if options.baseline is None else baseline.load(options.baseline, options.evidence),
        parse_alpha(options.baseline_alpha),
    )
