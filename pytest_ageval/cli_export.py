"""``pytest-ageval export``: the evidence of attempts in the formats of other programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ageval.cli_output import say
from pytest_ageval.config.where import display
from pytest_ageval.errors import AgevalError, ConfigError
from pytest_ageval.evidence.layout import safe_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pytest_ageval.export.source import Recorded

FORMATS = ("atif", "harbor", "otel")


def arguments(parser: argparse.ArgumentParser) -> None:
    """PATH, the format, and where it goes."""
    parser.add_argument(
        "path",
        type=Path,
        help="an attempt, a directory of attempts, a suite run (its path, its id, or last), or a data set",
    )
    parser.add_argument(
        "--format", required=True, choices=FORMATS, help="ATIF, trials of Harbor, or OpenTelemetry spans"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="atif, harbor: a directory (harbor: by default harbor-jobs beside runs); otel: a file; "
        "atif, otel: by default standard output",
    )
    parser.add_argument("--endpoint", metavar="URL", help="otel: send the spans to an OTLP/HTTP collector")
    parser.add_argument(
        "--content", action="store_true", help="otel: with prompts, answers, arguments and results"
    )


def _place(path: Path) -> Path:
    """A path as it is; else the suite run of that name."""
    from pytest_ageval.compare.sides import find

    return path if path.exists() else find(str(path))


def export(options: argparse.Namespace) -> int:
    """Write the trajectories at a path. Attempts that did not end are named on standard error."""
    from pytest_ageval.export import source

    if options.format != "otel" and (options.endpoint or options.content):
        raise ConfigError("invalid_option", "--endpoint and --content are for --format otel")
    found, unfinished = source.attempts(_place(options.path))
    for path in unfinished:
        sys.stderr.write(f"note: {display(path)} has no trajectory; it is left out\n")
    try:
        if options.format == "atif":
            _atif(found, options.out)
        elif options.format == "harbor":
            _harbor(found, options.out)
        else:
            _otel(found, options)
    except ConfigError:
        raise
    except AgevalError as error:  # evidence that cannot be read
        raise ConfigError(error.title, error.message) from error
    return 0


def _atif(attempts: Sequence[Recorded], out: Path | None) -> None:
    from pytest_ageval.export import atif

    documents = [(each, *pair) for each in attempts for pair in atif.documents(each)]
    if out is None:
        if len(documents) != 1:
            raise ConfigError(
                "invalid_option",
                f"there are {len(documents)} sessions, and one document holds one",
                hint="name a directory with --out",
            )
        say(json.dumps(documents[0][2], indent=2, ensure_ascii=False))
        return
    for attempt, session_id, document in documents:
        path = out / attempt.attempt_id / f"{safe_name(session_id)}.trajectory.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    say(f"{len(documents)} trajector{'y' if len(documents) == 1 else 'ies'} in {display(out)}")


def _harbor(attempts: Sequence[Recorded], out: Path | None) -> None:
    from pytest_ageval.export import harbor

    jobs: dict[Path, int] = {}
    for attempt in attempts:
        if not attempt.result:
            sys.stderr.write(f"note: {display(attempt.root)} has no result; it is left out\n")
            continue
        trial = harbor.write_trial(attempt, out or harbor.jobs_directory(attempt.root.absolute()))
        jobs[trial.parent] = jobs.get(trial.parent, 0) + 1
    for job, written in jobs.items():
        harbor.write_job(job)
        say(f"{written} trial{'s' if written != 1 else ''} in {display(job)}")


def _otel(attempts: Sequence[Recorded], options: argparse.Namespace) -> None:
    from pytest_ageval.export import otel

    traces = [otel.spans(attempt, content=options.content) for attempt in attempts]
    if options.out is not None:
        with options.out.open("w", encoding="utf-8") as stream:
            for trace in traces:
                otel.write(trace, stream)
    if options.endpoint is not None:
        for trace in traces:
            otel.send(trace, options.endpoint)
    if options.out is None and options.endpoint is None:
        for trace in traces:
            otel.write(trace, sys.stdout)
        return
    where = " and ".join(str(place) for place in (options.out, options.endpoint) if place is not None)
    say(f"{sum(map(len, traces))} spans of {len(traces)} attempts to {where}")
