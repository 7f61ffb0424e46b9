"""``pytest-ageval analyze``: what the evidence tells beyond the verdict. Reads it and changes none of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.cli_output import say
from pytest_ageval.errors import AgevalError, ConfigError

if TYPE_CHECKING:
    import argparse

    from pytest_ageval.export.source import Recorded

    Found = tuple[list[Recorded], int, Path | None]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What is looked at, by which analyzer, and where the report goes."""
    from pytest_ageval.analyze.report import ANALYZERS

    parser.add_argument("path", help="a suite run, an attempt, a directory of attempts, or a data set")
    parser.add_argument("--analyzer", choices=ANALYZERS, default="stats")
    parser.add_argument("--model", metavar="ID", help="hack, review: ask this model for a second look")
    parser.add_argument(
        "--executor", default="openai-http", help="how: openai-http (default), anthropic-http"
    )
    parser.add_argument("--base-url", metavar="URL", help="address of the model's API")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report here (JSON)")
    parser.add_argument(
        "--evidence", "--dir", type=Path, metavar="DIR", help="root of the evidence that ids are in"
    )


def analyze(options: argparse.Namespace) -> int:
    """Print the report. That of a suite run is kept below its ``analysis/`` too. Exit code 0."""
    from pytest_ageval.analyze.report import report, text
    from pytest_ageval.evidence.files import document_bytes, plain, write_atomic

    try:
        attempts, unfinished, suite = _attempts(options)
        document = plain(report(attempts, options.analyzer, unfinished))
        if options.model is not None:
            document = _second_look(document, options)
    except ConfigError:
        raise
    except AgevalError as error:  # evidence that cannot be read
        raise ConfigError(error.title, error.message) from error
    out = options.out
    if out is None and suite is not None:
        out = suite / options.analyzer / "report.json"
        out.parent.mkdir(parents=True, exist_ok=True)
    if out is not None:
        write_atomic(out, document_bytes(document))
    if unfinished:
        sys.stderr.write(f"note: {unfinished} attempts have no trajectory; they are left out\n")
    if options.format == "json":
        say(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        for line in text(document):
            say(line)
    return 0


def _second_look(document: Any, options: argparse.Namespace) -> Any:
    from pytest_ageval.analyze.second import EXECUTORS, look
    from pytest_ageval.evidence.redact import Redactor

    if options.analyzer == "stats":
        raise ConfigError("invalid_option", "--model is for --analyzer hack and review")
    if options.executor not in EXECUTORS:
        known = ", ".join(EXECUTORS)
        raise ConfigError("invalid_option", f"--executor: one of {known}, found {options.executor!r}")
    look(document, options.executor, options.model, options.base_url)
    return Redactor().value(document)


def _is_told(directory: Path, analyzer: str) -> bool:
    """An attempt that did not end left its step log, in which the rules can look."""
    from pytest_ageval.evidence.layout import Layout

    return analyzer == "hack" and Layout(directory).activity.is_file()


def _attempts(options: argparse.Namespace) -> Found:
    """The attempts at a path; else those of the suite run of that name, with the place for its reports."""
    from pytest_ageval.compare.sides import find, is_suite, read_side
    from pytest_ageval.evidence.layout import Layout
    from pytest_ageval.export import source
    from pytest_ageval.suite.places import SuiteLayout

    path = Path(options.path)
    if path.is_dir() and not is_suite(path):
        try:
            found, missing = source.attempts(path)
            told = [source.Recorded(each) for each in missing if _is_told(each, options.analyzer)]
            return [*found, *told], len(missing) - len(told), None
        except ConfigError:
            if not (path / "ageval.yaml").is_file():
                raise  # the evidence of a data set may lie elsewhere
    side = read_side(find(options.path, options.evidence), "A")
    directories = dict.fromkeys(d for row in side.rows if (d := side.attempt_dir(row)) is not None)
    whole = [d for d in directories if Layout(d).trajectory.is_file() or _is_told(d, options.analyzer)]
    recorded = [source.Recorded(each) for each in whole]
    return recorded, len(directories) - len(whole), SuiteLayout(side.root).analysis
