"""``pytest-ageval status``, ``cancel``, ``list`` and ``rm``: suite runs, from outside of their session."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_ageval.cli_output import complain, say
from pytest_ageval.errors import AgevalError
from pytest_ageval.report.numbers import cost, seconds
from pytest_ageval.suite import control, suites
from pytest_ageval.suite.control import State
from pytest_ageval.suite.record import read_header
from pytest_ageval.suite.roots import evidence_roots

Parser = argparse.ArgumentParser

#: Attempts that `status` names.
NAMED = 10


def _common(parser: Parser) -> None:
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="a data set, or the directory of the evidence (default: as configured, and data sets around)",
    )


def _which(parser: Parser, *, default: str | None) -> None:
    parser.add_argument(
        "suite",
        nargs="?" if default else None,
        default=default,
        metavar="SUITE",
        help="an id, the beginning of one, a path, or last",
    )


def _selected(options: argparse.Namespace) -> list[Path]:
    return control.select(options.suite, evidence_roots(options.dir, Path.cwd()))


# -- status ----------------------------------------------------------------------------------------


def status_arguments(parser: Parser) -> None:
    """Which suite run, and the form of the output."""
    _which(parser, default="last")
    _common(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def status(options: argparse.Namespace) -> int:
    """Show what is done, what runs, how long it takes, what it costs."""
    for root in _selected(options):
        found = control.state(root)
        if options.json:
            say(json.dumps(found.as_dict(), ensure_ascii=False, sort_keys=True))
            continue
        for line in _status(found):
            say(line)
    return 0


def _status(found: State) -> Iterator[str]:
    progress = found.progress
    counts, usage = progress.get("counts") or {}, progress.get("usage") or {}
    session = progress.get("session") or {}
    yield f"suite {found.root.name}: {found.status}, {progress['done']} of {progress['total']} settled"
    rows = {
        "data set": progress.get("dataset_id"),
        "regrades": ", ".join(found.parents) or None,
        "verdicts": ", ".join(f"{counts.get(name, 0)} {name}" for name in ("pass", "fail", "error")),
        "elapsed": seconds(session.get("seconds")),
        "left": None if found.seconds_left is None else f"about {seconds(found.seconds_left)}",
        "cost": None if usage.get("cost_usd") is None else cost(usage["cost_usd"]),
        "path": str(found.root),
    }
    for name, value in rows.items():
        if value is not None:
            yield f"  {name:9} {value}"
    running = progress.get("running") or [] if found.goes_on else []
    for row in running[:NAMED]:
        yield f"  running   {row['slot']} since {row['since']}"
    if len(running) > NAMED:
        yield f"  and {len(running) - NAMED} more"


# -- cancel ----------------------------------------------------------------------------------------


def cancel_arguments(parser: Parser) -> None:
    """Which suite run, and how long to wait."""
    _which(parser, default=None)
    _common(parser)
    parser.add_argument(
        "--wait", type=float, default=30.0, metavar="SECONDS", help="for its end (default 30)"
    )


def cancel(options: argparse.Namespace) -> int:
    """Ask the session to stop and wait for it: attempts that run are ended and cleaned up."""
    code = 0
    for root in _selected(options):
        try:
            found = control.cancel(root, options.wait)
        except AgevalError as error:
            complain(str(error))
            code = 2
            continue
        done, total = found.progress.get("done"), found.progress.get("total")
        say(f"suite {root.name}: {found.status}, {done} of {total} settled")
        code = max(code, 2 if found.goes_on else 0)
    return code


# -- list ------------------------------------------------------------------------------------------


def list_arguments(parser: Parser) -> None:
    """Where, and the form of the output."""
    _common(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def list_suites(options: argparse.Namespace) -> int:
    """A line for each suite run, oldest first; one that cannot be read is named on standard error."""
    rows: list[tuple[str, ...]] = []
    code = 0
    for evidence in evidence_roots(options.dir, Path.cwd()):
        for root in suites(evidence):
            try:
                found = control.state(root)
                created = read_header(root).created_at
            except AgevalError as error:
                complain(f"{root}: {error}")
                code = 2
                continue
            if options.json:
                row = {**found.as_dict(), "created_at": created}
                say(json.dumps(row, ensure_ascii=False, sort_keys=True))
            else:
                rows.append(_row(found, created))
    if rows:
        for line in _table([HEAD, *rows]):
            say(line)
    elif not options.json and code == 0:
        say("there are no suite runs here")
    return code


HEAD = ("suite", "begun", "data set", "status", "settled", "pass", "fail", "error", "cost", "regrades")


def _row(found: State, created: str) -> tuple[str, ...]:
    progress: dict[str, Any] = found.progress
    counts = progress.get("counts") or {}
    return (
        found.root.name,
        created[:19].replace("T", " "),
        str(progress.get("dataset_id") or "-"),
        found.status,
        f"{progress.get('done')}/{progress.get('total')}",
        *(str(counts.get(name, "-")) for name in ("pass", "fail", "error")),
        cost((progress.get("usage") or {}).get("cost_usd")),
        ", ".join(found.parents) or "-",
    )


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


# -- rm --------------------------------------------------------------------------------------------


def rm_arguments(parser: Parser) -> None:
    """Which suite run, how much of it, and whether to ask."""
    _which(parser, default=None)
    _common(parser)
    parser.add_argument("--evidence", action="store_true", help="also the attempts that only it names")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def remove(options: argparse.Namespace) -> int:
    """Remove a suite run. Evidence that another suite run names stays."""
    roots = _selected(options)
    for root in roots:
        attempts = f" and {len(control.evidence_of(root))} attempts" if options.evidence else ""
        say(f"{root}{attempts}")
    if not options.yes and not _agreed():
        complain("nothing was removed; --yes removes without asking")
        return 2
    for root in roots:
        count = control.remove(root, evidence=options.evidence)
        say(f"removed suite {root.name}" + (f" and {count} attempts" if options.evidence else ""))
    return 0


def _agreed() -> bool:
    if not sys.stdin.isatty():
        return False
    sys.stdout.write("remove? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
