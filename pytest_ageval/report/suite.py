"""The last lines in the terminal: the suite run, what of it was not run this time, how to go on."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_ageval.report.numbers import cost, seconds, total, total_seconds

if TYPE_CHECKING:
    import pytest

    from pytest_ageval.suite.run import SuiteRun

#: Options that say what is to be done with a suite run; the command that goes on has its own.
_OURS = ("resume", "retry-errors", "replace")


def lines(
    config: pytest.Config, runs: Sequence[SuiteRun], shown: Sequence[Mapping[str, Any]], problem: str | None
) -> Iterator[str]:
    """`shown` is the data of the reports of attempts that were not run."""
    if problem is not None:
        yield problem
    yield from _saved([row for row in shown if row.get("source") != "reused"], "recorded", "not run again")
    yield from _saved([row for row in shown if row.get("source") == "reused"], "reused", "saved")
    for run in runs:
        where = os.path.relpath(run.layout.root, config.invocation_params.dir)
        left = f", {run.total - run.done} not needed" if _decided(run) else ""
        settled = f"{run.done} of {run.total} settled{left}"
        yield f"suite {run.header.suite_run_id}: {run.status}, {settled} ({where})"
        if run.problem is not None:
            yield f"suite {run.header.suite_run_id}: could not be written in full: {run.problem}"
    names = list(dict.fromkeys(run.header.suite_run_id for run in runs))
    if any(run.done < run.total and not _decided(run) for run in runs):
        controller = config.pluginmanager.getplugin("ageval-controller")
        left_out = controller is not None and controller.not_run
        budget = ", with a budget above what is spent" if left_out else ""
        yield f"go on with it{budget}: {_command(config, names)}"
    if any(row.status == "ERROR" for run in runs for row in run.rows.values()):
        yield f"its errors once more: {_command(config, names, '--retry-errors')}"


def _decided(run: SuiteRun) -> bool:
    """Nothing is left to do, though slots are empty: ``--attempts auto`` did not need them."""
    return run.status == "complete" and run.done < run.total


def _saved(rows: Sequence[Mapping[str, Any]], word: str, what: str) -> Iterator[str]:
    """``reused 12 attempts: saved $1.20, 34m10s``."""
    if not rows:
        return
    money = total((row.get("usage") or {}).get("cost_usd") for row in rows)
    time = total(total_seconds(row) for row in rows)
    parts = [text for value, text in ((money, cost(money)), (time, seconds(time))) if value is not None]
    attempts = "1 attempt" if len(rows) == 1 else f"{len(rows)} attempts"
    yield f"{word} {attempts}: {what}{' ' if what == 'saved' else ', '}{', '.join(parts)}".rstrip(" ,")


def _command(config: pytest.Config, names: Sequence[str], *more: str) -> str:
    """The command line of this run, going on with a suite run; with several ids, with the last of each."""
    arguments = list(_without_ours(list(map(str, config.invocation_params.args))))
    which = names[0] if len(names) == 1 else "last"
    return " ".join(["pytest", *map(shlex.quote, arguments), f"--resume={which}", *more])


def _without_ours(arguments: Sequence[str]) -> Iterator[str]:
    flags = {f"--{prefix}{name}" for name in _OURS for prefix in ("", "ageval-")}
    values = {"--resume", "--ageval-resume"}
    skip = False
    for index, text in enumerate(arguments):
        if skip:
            skip = False
        elif text.partition("=")[0] not in flags:
            yield text
        elif text in values:
            following = arguments[index + 1 : index + 2]
            skip = bool(following) and not following[0].startswith("-")
