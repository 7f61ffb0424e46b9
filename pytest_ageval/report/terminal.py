"""The terminal: a line before the run, a table after it, the command that repeats the errors."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.errors import AgevalError
from pytest_ageval.report import usage
from pytest_ageval.report.numbers import interval, seconds, total, total_seconds

if TYPE_CHECKING:
    import pytest

#: Options whose file holds the whole run, and gates that judge all of it; a part must not take its place.
REPORTS = frozenset(
    (
        *("--html", "--junitxml", "--junit-xml", "--report-log", "--json-report-file", "--csv"),
        *(f"--{ours}{gate}" for gate in ("fail-under", "max-errors", "baseline") for ours in ("", "ageval-")),
    )
)

#: Switches that belong to such a file.
SWITCHES = frozenset(("--self-contained-html", "--json-report"))

#: Node ids that a command line may name; more of them go into a file.
NAMED_IDS = 3

#: Roles that the line about skipped attempts names.
NAMED_ROLES = 5

Results = Mapping[str, Mapping[str, Any]]

COLUMNS: tuple[str, ...] = (
    *("data set", "agent", "pass", "fail", "error", "scored", "pass rate [95 %]", "score"),
    *("tokens", "cost", "time"),
)


def headline(config: pytest.Config, nodeids: Iterable[str]) -> str:
    """What is about to run: agents x boxes x attempts, isolation, where the evidence goes.

    Empty when nothing will, or when that cannot be told: what is wrong is an error of its own.
    """
    from pytest_ageval.job import Job
    from pytest_ageval.report.header import describe

    job = Job.of(config)
    try:
        return "" if job.usage_error is not None else f"ageval: {describe(job, nodeids)}"
    except AgevalError:
        return ""


def leftovers() -> list[str]:
    """A line when killed runs left boxes that have a directory on this machine.

    Only directories are looked at: an engine or a vendor is asked by ``pytest-ageval clean``.
    """
    from pytest_ageval.box import work_parent

    try:
        if not any(work_parent().iterdir()):
            return []
    except OSError:  # there is no such directory: nothing was ever left
        return []
    from ageval_boxes import _leftovers

    found = [left for left in _leftovers.find(None, {}) if not left.alive_owner]
    if not found:
        return []
    boxes = f"{len(found)} left-over box{'es' if len(found) != 1 else ''}"
    return [
        f"ageval: {boxes} of killed runs; remove {'them' if len(found) != 1 else 'it'} with: "
        "pytest-ageval clean"
    ]


def summarize(
    reporter: pytest.TerminalReporter,
    config: pytest.Config,
    results: Results,
    warnings: Results,
    unbound: Mapping[str, Sequence[str]],
    not_run: Mapping[str, str],
) -> None:
    """Write the summary section. `unbound` are the attempts skipped for want of an agent, with the roles.

    `not_run` are those that were not begun because the budget was used up.
    """
    from pytest_ageval.job import Job

    reporter.section("ageval")
    for line in table(results.values()) if results else ():
        reporter.write_line(line)
    for line in usage.lines(results.values(), Job.of(config).ledger):
        reporter.write_line(line)
    if unbound:
        reporter.write_line(_unbound_line(unbound))
    for nodeid, row in warnings.items():
        reporter.write_line(f"clean-up warning: {nodeid}: {row['message']}")
    places = sorted({str(Path(d).parent) for r in results.values() if (d := r.get("attempt_dir"))})
    for place in places:
        reporter.write_line(f"evidence: {_relative(place)}")
    if not_run:
        command = rerun_command(config, list(not_run), Path(places[0]) if places else None, "not-run.txt")
        attempts = "1 attempt was" if len(not_run) == 1 else f"{len(not_run)} attempts were"
        reporter.write_line(
            f"{attempts} not run: the budget is used up ({next(iter(not_run.values()))}); run with: {command}"
        )
    errors = [nodeid for nodeid, row in results.items() if row.get("status") == "ERROR"]
    if errors:
        command = rerun_command(config, errors, Path(places[0]) if places else None)
        if config.getoption("ageval_resume") and not config.getoption("ageval_retry_errors"):
            command += " --retry-errors"  # else they would be shown, as they were now
        reporter.write_line(f"repeat the errors: {command}")


def _unbound_line(unbound: Mapping[str, Sequence[str]]) -> str:
    roles = list(dict.fromkeys(role for found in unbound.values() for role in found))
    more = f" and {len(roles) - NAMED_ROLES} more" if len(roles) > NAMED_ROLES else ""
    attempts = "1 attempt was" if len(unbound) == 1 else f"{len(unbound)} attempts were"
    return (
        f"{attempts} skipped: nobody plays {', '.join(roles[:NAMED_ROLES])}{more}; choose an agent with "
        "--agent NAME (--agent oracle runs the tasks' solutions), or bind the roles in profiles.yaml"
    )


def table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """`groups` with columns of equal width."""
    cells = groups(rows)
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    return [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def groups(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """One line for each data set and variant, below `COLUMNS`; nothing is averaged over them."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        named = [str(row[name]) for name in ("agent", "model", "effort", "box") if row.get(name)]
        who = " / ".join([*named, *(f"{k}={v}" for k, v in (row.get("parameters") or {}).items())])
        found.setdefault((str(row.get("dataset") or "-"), who or "-"), []).append(row)
    return [COLUMNS, *(_line(*key, found[key]) for key in sorted(found))]


def _line(dataset: str, who: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    passed = sum(row.get("status") == "PASS" for row in rows)
    failed = sum(row.get("status") == "FAIL" for row in rows)
    scored = passed + failed
    low, high = interval(passed, _scored_attempts(rows))
    scores = [row["score"] for row in rows if row.get("score") is not None]
    return (
        dataset,
        who,
        str(passed),
        str(failed),
        str(len(rows) - scored),
        f"{scored}/{len(rows)}",
        f"{passed / scored:.1%} [{low:.1%}, {high:.1%}]" if scored else "n/a",
        f"{sum(scores) / len(scores):.3f}" if scores else "n/a",
        usage.tokens_cell(rows),
        usage.cost_cell(rows),
        seconds(total(total_seconds(row) for row in rows)),
    )


def _scored_attempts(rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """For each task, how many of its attempts have a verdict."""
    return list(Counter(row.get("task") for row in rows if row.get("status") in ("PASS", "FAIL")).values())


def rerun_command(
    config: pytest.Config, nodeids: Sequence[str], place: Path | None, name: str = "errors.txt"
) -> str:
    """A command that runs these items again, in the directory and with the options of this run.

    Many ids go into a file called `name` beside `place`.
    """
    here = config.invocation_params.dir
    ids = [_from(here, config.rootpath, nodeid) for nodeid in nodeids]
    options = [shlex.quote(option) for option in _options(config)]
    if len(ids) > NAMED_IDS and place is not None and all("\n" not in one for one in ids):
        file = place.parent / name
        file.write_text("".join(f"{one}\n" for one in ids), encoding="utf-8")
        return " ".join(["pytest", *options, shlex.quote(f"@{_relative(str(file), here)}")])
    return " ".join(["pytest", *options, *(shlex.quote(one) for one in ids)])


def _from(here: Path, rootpath: Path, nodeid: str) -> str:
    """`nodeid`, which is relative to the rootdir, as an argument for a command in `here`."""
    path, separator, rest = nodeid.partition("::")
    return f"{os.path.relpath(rootpath / path, here)}{separator}{rest}"


def _options(config: pytest.Config) -> list[str]:
    """The command line without what it selected by path, and without the reports of the whole run."""
    paths = [] if config.args_source != config.ArgsSource.ARGS else list(config.args)
    found = []
    arguments = map(str, config.invocation_params.args)
    for text in arguments:
        name, has_value, _ = text.partition("=")
        if name in REPORTS:
            if not has_value:
                next(arguments, None)
        elif text in paths:
            paths.remove(text)
        elif not text.startswith("@") and text not in SWITCHES:
            found.append(text)
    return found


def _relative(path: str, here: Path | None = None) -> str:
    found = os.path.relpath(path, here)
    return path if found.startswith("..") else found
