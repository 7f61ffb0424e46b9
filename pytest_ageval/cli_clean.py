"""``pytest-ageval clean``: what killed runs left behind, on every kind of box."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pytest_ageval import cli_options
from pytest_ageval.across.sweep import abandoned
from pytest_ageval.box import Box, Leftover, work_parent
from pytest_ageval.cli_output import complain, say
from pytest_ageval.errors import AgevalError, ConfigError
from pytest_ageval.registry import Registry

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Of which run, how old, and whether to only look."""
    parser.add_argument("--run", metavar="ID", help="only what the run with this id left behind")
    parser.add_argument(
        "--older-than", type=duration, metavar="TIME", help="only what is older: 90s, 30m, 2h, 7d"
    )
    parser.add_argument("--dry-run", action="store_true", help="show it, and remove nothing")


def duration(text: str) -> float:
    """Seconds of ``90s``, ``30m``, ``2h`` or ``7d``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m, 2h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def clean(options: argparse.Namespace) -> int:
    """Remove boxes whose run is gone: a killed machine or process. Kept workspaces stay.

    Kinds of plugins, and of the conftest.py files from here on, are among them. A kind that cannot be
    used here is named and passed over; one that fails makes the exit code 2.
    """
    registry = _registry()
    count, failed = 0, False
    for kind in registry.box_kinds():
        try:
            cls = registry.box(kind)
            why = None if cls.keeps_notes else cls.check({})
            if why is not None:
                complain(f"{kind}: not looked at: {why.splitlines()[0]}")
                continue
            lines = list(_clean_kind(kind, cls, options))
        except Exception as error:  # a vendor's SDK may raise anything; the other kinds are cleaned
            text = f"{error.title}: {error.message}" if isinstance(error, AgevalError) else str(error)
            complain(f"{kind}: could not be cleaned: {text}")
            failed = True
            continue
        count += len(lines)
        for line in lines:
            say(line)
    if not options.dry_run:
        _remove_notes()
        _remove_copies()
        _remove_empty_runs()
    word = "would be removed" if options.dry_run else "removed"
    say(f"{count} left-over box{'es' if count != 1 else ''} {word}" if count else "nothing was left behind")
    return 2 if failed else 0


def _registry() -> Registry:
    """The kinds that a run from here would have; ours alone if pytest cannot read its configuration."""
    try:
        return cli_options.read(Path(), [])[1]
    except ConfigError as error:
        complain(f"kinds of plugins are not looked at: {error}")
        return Registry()


def _clean_kind(kind: str, cls: type[Box], options: argparse.Namespace) -> Iterator[str]:
    """A line for each box that was, or would be, removed."""
    labels = {"ageval.run": options.run} if options.run else {}
    if not options.dry_run and options.older_than is None:
        yield from (f"removed {what}" for what in cls.reap(labels))
        return
    for left in cls.leftovers(labels):
        if left.alive_owner or not _old_enough(left, options.older_than):
            continue
        if options.dry_run:
            yield f"would remove {describe(left)}"
        elif left.labels.get("ageval.attempt"):
            # The labels of an attempt are those of no other, so only this one is removed.
            yield from (f"removed {what}" for what in cls.reap(left.labels))
        else:
            complain(f"{kind}: {left.where} has no label of an attempt; it goes without --older-than")


def _old_enough(left: Leftover, seconds: float | None) -> bool:
    """What has no known age is not taken for old."""
    if seconds is None:
        return True
    return left.age_seconds is not None and left.age_seconds >= seconds


def describe(left: Leftover) -> str:
    """``local box of attempt_1 (run run_1): /tmp/..., 2.5 h old``."""
    attempt = left.labels.get("ageval.attempt", "an unknown attempt")
    run = f" (run {left.labels['ageval.run']})" if "ageval.run" in left.labels else ""
    age = "" if left.age_seconds is None else f", {_words(left.age_seconds)} old"
    return f"{left.kind} box of {attempt}{run}: {left.where}{age}"


def _words(seconds: float) -> str:
    for unit, size in reversed(_UNITS.items()):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return "0 s"


def _remove_notes() -> None:
    """The notes of killed runs about what they were at (see `job.running_dir`)."""
    for directory in Path(tempfile.gettempdir()).glob("ageval-run_*"):
        with contextlib.suppress(OSError):
            if directory.stat().st_uid == os.geteuid() and not any(map(_writer_lives, directory.iterdir())):
                shutil.rmtree(directory)


def _remove_copies() -> None:
    """Files that a controller on another machine had sent here."""
    for base in abandoned():
        shutil.rmtree(base, ignore_errors=True)


def _remove_empty_runs() -> None:
    """The directories of runs whose boxes are all gone."""
    with contextlib.suppress(OSError):
        for directory in work_parent().iterdir():
            with contextlib.suppress(OSError):  # not empty
                directory.rmdir()


def _writer_lives(note: Path) -> bool:
    try:
        os.kill(int(json.loads(note.read_bytes())["pid"]), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True
