"""``pytest-ageval``: what is not a test run. Each command is one function in `COMMANDS`.

Exit code 0, or 2 with the reason on standard error. (``check`` and ``doctor --strict`` have 1 as well,
``gate`` has 10.)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pytest_ageval import (
    cli_analyze,
    cli_check,
    cli_clean,
    cli_compare,
    cli_doctor,
    cli_export,
    cli_gate,
    cli_import,
    cli_options,
    cli_suite,
)
from pytest_ageval._version import __version__
from pytest_ageval.cli_output import complain, say
from pytest_ageval.config import (
    Dataset,
    LockedTask,
    TaskDocument,
    check_roles,
    find_dataset_root,
    load_dataset,
    load_task,
    lock_task,
    plan_variants,
    schemas,
)
from pytest_ageval.config.prepare import prepare
from pytest_ageval.config.where import did_you_mean, display, printable
from pytest_ageval.errors import AgevalError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Parser = argparse.ArgumentParser
T = TypeVar("T")
R = TypeVar("R")


class Command(NamedTuple):
    """One subcommand: `arguments` declares its options, `run` does it and returns the exit code."""

    help: str
    arguments: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """The console script."""
    parser = Parser(prog="pytest-ageval", description="Tools around agent evaluations with pytest.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.help, description=command.help)
        command.arguments(sub)
    options = parser.parse_args(argv)
    try:
        code = COMMANDS[options.command].run(options)
        sys.stdout.flush()
    except AgevalError as error:
        complain(str(error))
        return 2
    except BrokenPipeError:  # the reader of our output has enough
        sys.stderr.close()
        return 0
    return code


# -- lock ----------------------------------------------------------------------------------------


REPEATABLE = {
    "--agent": ("agents", "NAME or ROLE=NAME", "the agent"),
    "--model": ("models", "ID", "model in place of the agent's own"),
    "--box": ("boxes", "KIND", "kind of box"),
    "--box-option": ("box_options", "NAME=VALUE", "option of the box"),
    "--effort": ("efforts", "LEVEL", "reasoning effort asked of the model"),
    "--set": ("sets", "POINTER=JSON", "replace one value"),
    "--matrix": ("matrix", "FILE|POINTER=[...]", "combine all values of a list, or what a file says"),
}


BUDGETS = ("max_cost_per_attempt", "max_tokens_per_attempt")


def lock_arguments(parser: Parser) -> None:
    """The same options as a run."""
    parser.add_argument("path", type=Path, help="a data set, a task's directory or its task.yaml")
    parser.add_argument("--task", action="append", default=[], metavar="ID", help="only this task")
    parser.add_argument("--explain", action="store_true", help="show where each value comes from")
    for flag, (dest, metavar, text) in REPEATABLE.items():
        parser.add_argument(
            flag,
            dest=dest,
            action="append",
            default=[],
            metavar=metavar,
            help=f"{text} (repeatable)",
        )
    parser.add_argument("--attempts", type=int, metavar="N", help="attempts at each task")
    parser.add_argument("--profiles", metavar="FILE", help="in place of the data set's profiles.yaml")
    parser.add_argument("--base-url", metavar="URL", help="address of the model's API")
    parser.add_argument("--max-cost-per-attempt", type=float, metavar="USD", help="US dollars of one attempt")
    parser.add_argument("--max-tokens-per-attempt", type=int, metavar="N", help="tokens of one attempt")


def lock(options: argparse.Namespace) -> int:
    """Print the locks of the tasks at a path, without starting anything.

    One lock is one JSON document; several are a JSON list. What is wrong with one task goes to
    standard error (exit code 2) and does not stop the others. A key that is not set is no error here.
    """
    job, registry = cli_options.read(options.path, list(run_arguments(options)))
    dataset, names = find_tasks(options.path, options.task)
    tasks, broken = collect(names, lambda name: [load_task(dataset.tasks_root / name)])
    check_roles(job, (role for task in tasks for role in task.roles))
    variants = [v for v in plan_variants(job) if v.attempt == 1]  # attempts share their lock
    locks, refused = collect(
        tasks,
        lambda task: [
            lock_task(task, dataset, variant, job, registry, credentials=False) for variant in variants
        ],
    )
    if options.explain:
        say("\n\n".join("\n".join(explain(found)) for found in locks))
    elif locks:
        documents = [found.document for found in locks]
        say(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2, sort_keys=True))
    return 2 if broken or refused else 0


def run_arguments(options: argparse.Namespace) -> Iterator[str]:
    """The options of `lock_arguments` as pytest spells them."""
    for flag, (dest, _, _) in REPEATABLE.items():
        for value in getattr(options, dest):
            yield f"{flag}={value}"
    for name in (*("attempts", "profiles", "base_url"), *BUDGETS):
        value = getattr(options, name)
        if value is not None:
            yield f"--ageval-{name.replace('_', '-')}={value}"


def collect(items: Iterable[T], work: Callable[[T], list[R]]) -> tuple[list[R], int]:
    """What `work` gives for all items, and how many it refused; each refusal is shown once."""
    found: list[R] = []
    seen: set[str] = set()
    broken = 0
    for item in items:
        try:
            found += work(item)
        except ConfigError as error:
            broken += 1
            if str(error) not in seen:
                complain(error)
            seen.add(str(error))
    return found, broken


def explain(locked: LockedTask) -> Iterator[str]:
    """A table: pointer, value, where it comes from."""
    yield f"{locked.dataset_id} {locked.task_id}  {locked.digest}"
    rows = [
        (
            row.pointer,
            json.dumps(row.value, ensure_ascii=False),
            f"{row.source} ({row.note})" if row.note else row.source,
        )
        for row in locked.resolution
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    for pointer, value, source in rows:
        yield f"  {pointer:{widths[0]}}  {value:{widths[1]}}  {source}"


# -- tasks ---------------------------------------------------------------------------------------


def tasks_arguments(parser: Parser) -> None:
    """PATH and the form of the output."""
    parser.add_argument("path", type=Path, help="a data set, a task's directory or its task.yaml")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def tasks(options: argparse.Namespace) -> int:
    """List the tasks at a path; what is wrong with a task goes to standard error (exit code 2)."""
    dataset, names = _names(options.path)
    found, broken = collect(names, lambda name: [load_task(dataset.tasks_root / name)])
    for task in found:
        for note in task.notes:
            sys.stderr.write(f"note: {printable(note)}\n")
        if options.json:
            say(json.dumps(_row(task), ensure_ascii=False, sort_keys=True))
        else:
            say("\t".join((task.task_id, ",".join(task.roles) or "-", ",".join(task.tags) or "-")))
    return 2 if broken else 0


def _row(task: TaskDocument) -> dict[str, Any]:
    return {
        "task_id": task.task_id,
        "path": display(task.path),
        "description": task.description,
        "tags": task.tags,
        "roles": task.roles,
        "requires": sorted(task.requires),
    }


def find_tasks(path: Path, ids: Sequence[str]) -> tuple[Dataset, list[str]]:
    """The data set of `path` and the ids that are meant. Raises ConfigError ``unknown_task``."""
    dataset, names = _names(path)
    for wanted in ids:
        if wanted not in names:
            raise ConfigError(
                "unknown_task",
                f"there is no task {wanted!r} in {dataset.dataset_id}",
                hint=did_you_mean(wanted, names),
            )
    return dataset, list(ids or names)


def _names(path: Path) -> tuple[Dataset, list[str]]:
    root = find_dataset_root(path)
    if root is None:
        raise ConfigError("invalid_package", f"no data set (ageval.yaml) at or above {display(path)}")
    dataset = load_dataset(root, Path.cwd())
    directory = (path if path.is_dir() else path.parent).absolute()
    names = dataset.task_ids()
    if directory.parent == dataset.tasks_root.absolute():
        names = [name for name in names if name == directory.name]
    if not names:
        raise ConfigError("unknown_task", f"there is no task at {display(path)}")
    return dataset, names


# -- prepare, schemas ----------------------------------------------------------------------------


def prepare_arguments(parser: Parser) -> None:
    """PATH."""
    parser.add_argument("path", type=Path, help="a data set")


def prepare_dataset(options: argparse.Namespace) -> int:
    """Fetch a data set's declared assets and run its prepare script."""
    root = find_dataset_root(options.path)
    if root is None:
        raise ConfigError("invalid_package", f"no data set at or above {display(options.path)}")
    prepare(load_dataset(root), say)
    return 0


def schemas_arguments(parser: Parser) -> None:
    """Which format."""
    parser.add_argument("format", nargs="?", choices=sorted(schemas.TYPES), help="only this format")


def print_schemas(options: argparse.Namespace) -> int:
    """Print the JSON Schema of a format, or an object with all of them."""
    if options.format:
        say(schemas.render(options.format).rstrip("\n"))
    else:
        say(json.dumps({name: schemas.schema(name) for name in schemas.TYPES}, indent=2))
    return 0


COMMANDS = {
    "lock": Command("Print the locked configuration of tasks.", lock_arguments, lock),
    "tasks": Command("List the tasks of a data set.", tasks_arguments, tasks),
    "analyze": Command(
        "Find out what the evidence tells beyond the verdict.", cli_analyze.arguments, cli_analyze.analyze
    ),
    "check": Command("Find out whether tasks are sound.", cli_check.arguments, cli_check.check),
    "clean": Command("Remove boxes that killed runs left behind.", cli_clean.arguments, cli_clean.clean),
    "compare": Command("Compare suite runs task by task.", cli_compare.arguments, cli_compare.compare),
    "doctor": Command("Show what can be used here.", cli_doctor.arguments, cli_doctor.doctor),
    "export": Command(
        "Write attempts as ATIF, as trials of Harbor, or as OpenTelemetry spans.",
        cli_export.arguments,
        cli_export.export,
    ),
    "import": Command(
        "Make attempts of the trials of a Harbor job.", cli_import.arguments, cli_import.import_
    ),
    "status": Command("Show how far a suite run is.", cli_suite.status_arguments, cli_suite.status),
    "cancel": Command("Stop a suite run, orderly.", cli_suite.cancel_arguments, cli_suite.cancel),
    "list": Command("List suite runs.", cli_suite.list_arguments, cli_suite.list_suites),
    "rm": Command("Remove a suite run.", cli_suite.rm_arguments, cli_suite.remove),
    "gate": Command("Decide whether a suite run is good enough.", cli_gate.arguments, cli_gate.gate),
    "prepare": Command(
        "Fetch a data set's assets and run its prepare script.", prepare_arguments, prepare_dataset
    ),
    "schemas": Command("Print the JSON Schemas of the formats.", schemas_arguments, print_schemas),
}

if __name__ == "__main__":
    sys.exit(main())
