"""``pytest-ageval import``: trials of Harbor as attempts of ours."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ageval.cli_output import complain, say
from pytest_ageval.config.where import display, printable
from pytest_ageval.errors import AgevalError, ConfigError
from pytest_ageval.suite.roots import configured

if TYPE_CHECKING:
    import argparse

    from pytest_ageval.imports.attempt import Rules
    from pytest_ageval.imports.trials import Job, Trial


def arguments(parser: argparse.ArgumentParser) -> None:
    """PATH, where it goes, and the rules for the verdict."""
    parser.add_argument("path", type=Path, help="a trial of Harbor, a job, or a directory of jobs")
    parser.add_argument(
        "--into", type=Path, metavar="DIR", help="root of the evidence (as configured, else .ageval)"
    )
    parser.add_argument(
        "--pass-threshold", type=float, metavar="NUMBER", help="the reward from which on a trial passes (1)"
    )
    parser.add_argument("--reward-key", metavar="NAME", help="the reward that decides (reward)")
    parser.add_argument("--tasks", type=Path, metavar="DIR", help="where the tasks are on this machine")
    parser.add_argument("--dataset-id", metavar="ID", help="name of the data set in place of the trial's own")


def import_(options: argparse.Namespace) -> int:
    """Import what is at a path. Exit code 2 when a trial could not be; the others are imported."""
    from pytest_ageval.imports import trials
    from pytest_ageval.imports.attempt import Rules

    _check(options)
    rules = Rules(options.reward_key, options.pass_threshold, options.tasks, options.dataset_id)
    found = trials.find(options.path)
    for path in found.unfinished:
        _note(f"{display(path)} has no result.json: it did not end; it is left out")
    for error in found.broken:
        complain(error)
    into = options.into or configured(Path.cwd()) or Path(".ageval")
    _prepare(into)
    refused = [_job(job, into.absolute(), rules) for job in found.jobs]
    return 2 if any(refused) or found.broken else 0


def _check(options: argparse.Namespace) -> None:
    threshold = options.pass_threshold
    if threshold is not None and not 0.0 < threshold <= 1.0:
        raise ConfigError(
            "invalid_option", f"--pass-threshold takes a number above 0, at most 1, found {threshold:g}"
        )
    if options.tasks is not None and not options.tasks.is_dir():
        raise ConfigError("invalid_option", f"--tasks: {display(options.tasks)} is not a directory")


def _prepare(root: Path) -> None:
    """What is made here is kept out of version control, as a run does."""
    try:
        new = not root.exists()
        (root / "runs").mkdir(parents=True, exist_ok=True)
        if new:
            (root / ".gitignore").write_text("# Made by pytest-ageval.\n*\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            "evidence_unwritable",
            f"{display(root)} cannot be written: {error.strerror}",
            hint="name another directory with --into",
        ) from error


def _job(job: Job, root: Path, rules: Rules) -> int:
    """Import one job; how many of its trials could not be."""
    from pytest_ageval.evidence import read_result
    from pytest_ageval.imports import suites
    from pytest_ageval.imports.attempt import attempt_id, import_trial

    done: list[Trial] = []
    new: list[Trial] = []
    refused = 0
    for trial in job.trials:
        try:
            if import_trial(trial, job, root / "runs", rules):
                new.append(trial)
            else:
                _note(f"{display(trial.path)} has been imported already; it stays as it is")
        except (AgevalError, OSError) as error:
            refused += 1
            complain(_told(trial, error))
        else:
            done.append(trial)
    if not done:
        return refused
    try:
        suite = suites.record(job, done, root)
    except AgevalError as error:
        raise ConfigError(error.title, error.message) from error
    results = [read_result(root / "runs" / attempt_id(trial)) or {} for trial in new]
    counts = Counter(str(result["status"]) for result in results)
    words = ", ".join(f"{counts[status]} {status}" for status in ("PASS", "FAIL", "ERROR") if counts[status])
    say(
        f"{len(new)} of {len(job.trials)} trials of {job.path.name} imported"
        f"{f' ({words})' if words else ''}; suite run {display(suite)}"
    )
    return refused


def _told(trial: Trial, error: AgevalError | OSError) -> ConfigError:
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, AgevalError):
        return ConfigError(error.title, error.message, file=display(trial.path))
    return ConfigError("import_failed", f"{display(trial.path)}: {error}")


def _note(text: str) -> None:
    sys.stderr.write(f"note: {printable(text)}\n")
