"""``pytest-ageval gate``: the gates of a run, on a suite run that is over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ageval.cli_output import say
from pytest_ageval.errors import AgevalError, ConfigError

if TYPE_CHECKING:
    import argparse

    from pytest_ageval.compare.sides import Side
    from pytest_ageval.gates.rules import Decision, Gates

NOT_COMPLETE = "the suite run is not complete; judge it all the same with --allow-incomplete"


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
    parser.add_argument(
        "--allow-incomplete",
        action="store_true",
        help="judge a suite run, or a baseline, of which not every slot has settled",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument(
        "--evidence", "--dir", type=Path, metavar="DIR", help="root of the evidence that ids are in"
    )


def gate(options: argparse.Namespace) -> int:
    """Print a line for each decision. Exit code 0: all gates passed; 10: one did not.

    A suite run that is not complete is not judged, and that is no success either.
    """
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
    kept = None
    if options.write_baseline is not None:
        kept = baseline.of_side(side, allow_incomplete=options.allow_incomplete)
    found = _decisions(gates, side, allow_incomplete=options.allow_incomplete)
    if options.format == "json":
        say(json.dumps([decision._asdict() for decision in found], indent=2, ensure_ascii=False))
    else:
        for decision in found:
            say(decision.line)
    if kept is not None:
        baseline.write(options.write_baseline, kept)
        if options.format == "text":
            say(f"baseline of suite run {kept.name} written to {options.write_baseline}")
    return all(decision.passed is not False for decision in found)


def _decisions(gates: Gates, side: Side, *, allow_incomplete: bool) -> list[Decision]:
    """What the gates say; of a suite run that is not complete, that it is not."""
    from pytest_ageval.gates.rules import Decision

    if not gates:
        return []
    found: list[Decision] = []
    if not side.completeness.whole:
        found.append(Decision("complete", None if allow_incomplete else False, side.completeness.words))
        if not allow_incomplete:
            return [*found, *(Decision(name, None, NOT_COMPLETE) for name in gates.names())]
    return [*found, *gates.judge(side.with_whole_paths())]


def _gates(options: argparse.Namespace) -> Gates:
    from pytest_ageval import stats
    from pytest_ageval.gates import baseline
    from pytest_ageval.gates.rules import Gates, parse_alpha, parse_errors, parse_rate

    if options.baseline is not None:
        stats.require("--baseline")
    return Gates(
        None if options.fail_under is None else parse_rate(options.fail_under),
        None if options.max_errors is None else parse_errors(options.max_errors),
        None
        if options.baseline is None
        else baseline.load(options.baseline, options.evidence, allow_incomplete=options.allow_incomplete),
        parse_alpha(options.baseline_alpha),
    )
