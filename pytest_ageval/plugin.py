"""The pytest plugin: options, ini keys and hooks. It does nothing in a run that has no task.

Everything heavy (YAML, HTTP, asyncio, the engine) is imported when the first task is collected.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ageval import collection, discovery, hookspecs, sequencer
from pytest_ageval.controller import Controller
from pytest_ageval.fixtures import (  # fixtures are found here by name
    ageval_variant,
    attempt,
    box,
    executor,
    scripted_model,
)
from pytest_ageval.gates import wiring
from pytest_ageval.interrupts import Worker
from pytest_ageval.options import OPTIONS, resolve
from pytest_ageval.suite_recorder import SuiteRecorder

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from pathlib import Path

__all__ = ["ageval_variant", "attempt", "box", "executor", "scripted_model"]

MARKER = (
    "ageval(task, dataset, agent, model, effort, box, attempt, ...): one attempt at one task; "
    "select with -m \"ageval(agent='codex', attempt=1)\""
)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Make the extension points known, before any conftest.py is read."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Each option has a command-line spelling, an environment variable and an ini key."""
    group = parser.getgroup("ageval", "agent evaluation")
    taken = _taken_flags(parser)
    for option in OPTIONS:
        flags = [flag for flag in option.flags if flag not in taken]
        group.addoption(*flags, option.long, **option.argparse())
        parser.addini(option.ini, f"Default of {option.long}.", type=option.ini_type, default=None)


def _taken_flags(parser: pytest.Parser) -> set[str]:
    """Flags of other plugins: for ours there is always the long spelling.

    Who is loaded before us can be asked, in a way that pytest does not promise. pytest-base-url may
    be loaded after us, and it would be the one to fail.
    """
    groups = [*getattr(parser, "_groups", ()), *filter(None, [getattr(parser, "_anonymous", None)])]
    taken = {name for group in groups for option in group.options for name in option.names()}
    if importlib.util.find_spec("pytest_base_url") is not None:
        taken.add("--base-url")
    return taken


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, Any, Any]:
    """A task directory that is named on the command line is data: its conftest.py stays unread.

    pytest reads the conftest.py beside every path argument, and has no switch for a single path.
    So, for as long as it looks, such an argument is replaced by the directory above the task.
    """
    namespace = early_config.known_args_namespace
    given: Sequence[str] = namespace.file_or_dir or ()
    namespace.file_or_dir = discovery.outside_tasks(given, early_config.invocation_params.dir)
    try:
        return (yield)
    finally:
        namespace.file_or_dir = given


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the part that only one process has."""
    config.addinivalue_line("markers", MARKER)
    discovery.forget(config)
    sequencer.configure(config)
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Worker(config), "ageval-worker")
    else:
        controller = Controller(config)
        config.pluginmanager.register(controller, "ageval-controller")
        config.pluginmanager.register(SuiteRecorder(config, controller.interrupts), "ageval-suites")
    wiring.register(config)
    _configure_in_flight(config)
    if config.getoption("tx", None) and not hasattr(config, "workerinput"):
        _configure_hosts(config)


def _configure_in_flight(config: pytest.Config) -> None:
    try:
        limit = resolve(config, "in_flight")[0]
    except pytest.UsageError:  # said when the options are checked
        return
    if limit is None or limit > 1:
        from pytest_ageval.inflight.plugin import InFlight

        config.pluginmanager.register(InFlight(config), "ageval-in-flight")


def _configure_hosts(config: pytest.Config) -> None:
    if any("ssh=" in str(text) for text in config.getoption("tx")):
        from pytest_ageval.across.controller import configure

        configure(config)


@pytest.hookimpl(tryfirst=True)
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A task may be called ``build`` or ``venv``; everywhere else pytest's rules stand."""
    return False if discovery.is_hidden_task(collection_path, config) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A task directory is one task, whole; the directory with the tasks of a data set is one collector."""
    if discovery.is_task_directory(path):
        return collection.task_collector(parent, path)
    if discovery.dataset_with_tasks_in(path) is not None:
        from pytest_ageval.tasks_root import TasksRoot

        return TasksRoot.from_parent(parent, path=path)
    return None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A task file whose directory pytest did not collect, because it is the root of the run."""
    if file_path.name in discovery.TASK_FILES and discovery.is_task_directory(file_path.parent):
        return collection.TaskFile.from_parent(parent, path=file_path)
    return None


def pytest_unconfigure() -> None:
    """End the event loop, if one was started, while threads can still be."""
    portal = sys.modules.get("pytest_ageval.portal")
    if portal is not None:
        portal.shutdown()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each agent, box and attempt."""
    if isinstance(metafunc.definition.parent, collection.TaskFile):
        metafunc.definition.parent.parametrize(metafunc)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse a command line that cannot be meant; put attempts in rounds."""
    collection.arrange(config, items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Only the evaluator's verdict fails a test; every other exception is an error."""
    if not isinstance(item, collection.TaskItem | collection.BrokenTask):
        return (yield)
    from pytest_ageval.report import item as item_report

    item_report.before(item, call)
    report = yield
    item_report.after(item, call, report)
    if call.when == "teardown":
        from pytest_ageval.attempt_face import forget

        forget(item)
    return report


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> Iterable[str]:
    """What is about to run, when there is a task among it, and what killed runs left behind."""
    attempts = [item.nodeid for item in items if isinstance(item, collection.TaskItem)]
    if config.get_verbosity() < 0 or not attempts:
        return ()
    from pytest_ageval.report import terminal

    return (*filter(None, [terminal.headline(config, attempts)]), *terminal.leftovers())
