"""Collection: a task directory becomes one test item for each agent, box and attempt.

`TaskFile` is a `pytest.Module` whose module is made up, and `TaskItem` a `pytest.Function`, so that
fixtures, marks, selection and every other plugin treat an attempt as the test that it is.

A task directory is data. Nothing below it is collected or imported, its own conftest.py included;
this holds for a task that is named on the command line too, by its directory or by its file.
"""

from __future__ import annotations

import sys
import types
import unicodedata
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_ageval import recorded
from pytest_ageval.discovery import HARBOR_FILE, task_file
from pytest_ageval.errors import AgevalError, ConfigError, TaskFailed
from pytest_ageval.names import mark_names, safe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pluggy

    from pytest_ageval.attempt_face import AttemptFace
    from pytest_ageval.config import TaskDocument, Variant
    from pytest_ageval.faces import BoxFace
    from pytest_ageval.job import Job

# -- nodes -----------------------------------------------------------------------------------------


class _OfDataset(pytest.Collector):
    """Takes its hooks, and so the conftest.py files that count, from above the task directory."""

    @property
    def ihook(self) -> pluggy.HookRelay:
        """The hooks that act on the data set."""
        return cast("pytest.Collector", self.parent).ihook


class TaskDirectory(_OfDataset, pytest.File):
    """A task's directory, of which only the task file is collected.

    It is a `pytest.File` because pytest imports the conftest.py of every `pytest.Directory`.
    """

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """The task."""
        path = task_file(self.path)
        ignored = not self.session.isinitpath(path) and self.ihook.pytest_ignore_collect(
            collection_path=path, config=self.config
        )
        if not ignored:
            yield TaskFile.from_parent(self, path=path)


class UnnamableTask(_OfDataset, pytest.File):
    """A task whose directory's name cannot stand in an id, a report or a terminal.

    Its path is the escaped name, so that its id can.
    """

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """One item that says so."""
        error = ConfigError(
            "invalid_package",
            "the directory's name holds control characters or is not UTF-8",
            file=str(self.path),
            hint="rename it",
        )
        yield BrokenTask.from_parent(self, name=safe(self.path.name), error=error)


def task_collector(parent: pytest.Collector, path: Path) -> pytest.Collector:
    """The collector of the task directory `path`."""
    if path.name.isprintable():  # surrogates (bytes that are not UTF-8) are not
        return TaskDirectory.from_parent(parent, path=path)
    shown = path.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return UnnamableTask.from_parent(parent, path=path.with_name(escaped.replace("\\", "_")))


class TaskFile(_OfDataset, pytest.Module):
    """One task. Its module is made up: one function, `run_attempt`, that is named like the task."""

    #: The parsed task.
    task: TaskDocument

    @cached_property
    def task_id(self) -> str:
        """The directory's name, in the Unicode form in which ids are compared (NFC)."""
        return unicodedata.normalize("NFC", self.path.parent.name)

    @property
    def job(self) -> Job:
        """What the session evaluates."""
        from pytest_ageval.job import Job

        return Job.of(self.config)

    def _getobj(self) -> types.ModuleType:
        function = self._function()
        module = types.ModuleType(function.__module__)
        setattr(module, function.__name__, function)
        return module

    def _function(self) -> types.FunctionType:
        """`run_attempt` under the name of the task."""
        name = safe(self.task_id)
        function = types.FunctionType(run_attempt.__code__, run_attempt.__globals__, name)
        function.__doc__ = None
        # Collected whatever `python_functions` says.
        function.__test__ = True  # type: ignore[attr-defined]
        return function

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """The items of the task, or one that reports what is wrong with it.

        A broken data set concerns all its tasks and is a collection error, once.
        """
        self.job.task_seen(self.root)
        if self.job.usage_error is not None:
            yield self._broken(self.job.usage_error)
            return
        try:
            if not self._dataset_is_good():
                return
        except ConfigError as error:
            yield self._broken(error)
            return
        yield from self.items()

    def items(self, shape: Sequence[pytest.Function] | None = None) -> Iterator[pytest.Item]:
        """The items of the task, or one that reports what is wrong with it.

        `shape` are the functions that pytest made for another task of the same directory: if nothing but the
        session decides how a task is parametrized, then all tasks are parametrized alike.
        """
        try:
            self.task = self._load()
        except ConfigError as error:
            yield self._broken(error)
            return
        self.job.task_loaded(cast("Path", self.root), self.task)
        self._mark()
        if shape is None and not self.job.variants_of(self):
            yield self._broken(
                ConfigError("regrade_not_found", f"no attempt at {self.task_id} is recorded"), Unrecorded
            )
            return
        function = None if shape is None else self._function()
        for found in self.functions() if shape is None else shape:
            yield self._item(found, found.obj if function is None else function)

    def functions(self) -> list[pytest.Function]:
        """What pytest makes of the module: one function for each agent, box and attempt."""
        return cast("list[pytest.Function]", super().collect())

    def _item(self, found: pytest.Function, function: Any) -> TaskItem:
        name = function.__name__
        item: TaskItem = TaskItem.from_parent(
            self,
            name=f"{name}[{found.callspec.id}]",
            originalname=name,
            callobj=function,
            callspec=found.callspec,
            # pytest has no other way to say that it is the same; without it, it is found out again.
            fixtureinfo=getattr(found, "_fixtureinfo", None),
            keywords={found.callspec.id: True},
        )
        item.add_marker(self._mark_of(item.variant))
        return item

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Give the function of this task its variants."""
        metafunc.parametrize(
            "ageval_variant",
            [pytest.param(variant, id=variant.id) for variant in self.job.variants_of(self)],
            indirect=True,
        )

    @cached_property
    def root(self) -> Path | None:
        """The data set's root, if there is one."""
        from pytest_ageval.config import find_dataset_root

        found: Path | None = find_dataset_root(self.path)
        return found

    def _dataset_is_good(self) -> bool:
        """False when it is broken and an earlier task has said so."""
        root = self.root
        if root is None:
            raise ConfigError(
                "missing_reference",
                "there is no ageval.yaml above this task",
                file=self._shown(self.path),
                hint="a task lies in <data set>/tasks/<task id>/, beside <data set>/ageval.yaml",
            )
        error = self.job.dataset_error(root)
        if error is not None and self.job.first_report(root):
            raise self.CollectError(
                f"{error.file or 'the data set'} is broken; no task of {self._shown(root)} can run\n{error}"
            )
        return error is None

    def _load(self) -> Any:
        from pytest_ageval.config import load_task

        if self.path.name == HARBOR_FILE:
            from pytest_ageval.config.harbor import load_harbor_task

            strict = self.job.option("harbor_unknown") != "warn"
            task = load_harbor_task(self.path, strict=strict)
            for note in task.notes:
                self.warn(pytest.PytestWarning(note))
            return task
        return load_task(self.path)

    def _shown(self, path: Path) -> str:
        try:
            return str(path.relative_to(self.config.rootpath))
        except ValueError:
            return str(path)

    def _broken(self, error: ConfigError, kind: type[BrokenTask] | None = None) -> BrokenTask:
        item: BrokenTask = (kind or BrokenTask).from_parent(self, name=safe(self.task_id), error=error)
        named = {"task": self.task_id, "dataset": self.dataset_id}
        item.add_marker(pytest.mark.ageval(**{k: v for k, v in named.items() if v}))
        return item

    @cached_property
    def dataset_id(self) -> str | None:
        """The data set's id, if it can be read."""
        root = self.root
        try:
            return None if root is None else self.job.dataset(root).dataset_id
        except ConfigError:
            return None

    def _mark(self) -> None:
        """Marks and words by which the task can be selected: tags, roles, needs."""
        self.extra_keyword_matches.add(self.task_id)
        tags = self.task.tags
        self.extra_keyword_matches.update(tags)
        needs = sorted(self.task.requires)
        for text in (*tags, *(f"role_{role}" for role in self.task.roles), *(f"needs_{n}" for n in needs)):
            for name in mark_names(text):
                self.job.register_mark(name)
                self.add_marker(name)

    def _mark_of(self, variant: Variant) -> pytest.MarkDecorator:
        named = {
            "task": self.task_id,
            "dataset": self.dataset_id,
            "agent": variant.agent,
            "model": variant.model,
            "effort": variant.effort,
            "box": variant.box,
            "attempt": variant.attempt,
        }
        named = {**variant.marks, **named}
        found: pytest.MarkDecorator = pytest.mark.ageval(
            **{name: value for name, value in named.items() if value is not None and value != ""}
        )
        return found


class _AttemptNode(pytest.Item):
    """An item of a task file."""

    @property
    def ihook(self) -> pluggy.HookRelay:
        """The hooks that act on the data set."""
        return cast("pytest.Collector", self.parent).ihook

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The task file: there is no other source to point at."""
        return self.path, 0, self.name

    def _repr_failure_py(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What an attempt came to is said in words (`report.item.classify`): no source is read for it.

        Not public; where pytest does not call it, a report only takes longer.
        """
        if isinstance(excinfo.value, AgevalError | TaskFailed):
            return excinfo.getrepr(style="value")
        return super()._repr_failure_py(excinfo, style)


class BrokenTask(_AttemptNode):
    """Stands for a task that cannot be run; its set-up raises the reason."""

    def __init__(self, *, error: ConfigError, **node: Any) -> None:
        super().__init__(**node)
        self.error = error

    def setup(self) -> None:
        """Raise what is wrong with the task."""
        raise self.error

    def runtest(self) -> None:
        """Never reached."""


class Unrecorded(BrokenTask):
    """Stands for a task of which ``--regrade`` finds no attempt; it is deselected."""


class TaskItem(_AttemptNode, pytest.Function):
    """One attempt at one task."""

    @property
    def file(self) -> TaskFile:
        """The task's collector."""
        return cast("TaskFile", self.parent)

    @property
    def variant(self) -> Variant:
        """Which agent, model, box and attempt."""
        return cast("Variant", self.callspec.params["ageval_variant"])

    def setup(self) -> None:
        """Fill the fixtures, then bring up the environment in the box that the fixture gave."""
        if recorded.look_up(self) is not None:  # not run, so it needs neither
            return
        super().setup()
        attempt = cast("AttemptFace | None", self.funcargs["attempt"])
        if attempt is None:  # --setup-plan: pytest shows the fixtures and makes none
            return
        attempt.use_executor(self.funcargs["executor"])
        attempt.environment(cast("BoxFace", self.funcargs["box"]))

    def runtest(self) -> None:
        """Run the attempt, or end as it did before."""
        shown = self.stash.get(recorded.SHOWN, None)
        if shown is None:
            super().runtest()
        else:
            shown.replay()


def run_attempt(attempt: AttemptFace, executor: object, box: object) -> None:
    """The body of every item: the agent works, the evaluator judges, the record is sealed."""
    attempt.settle()


# -- order ----------------------------------------------------------------------------------------


def arrange(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Rounds: first attempts at all tasks, then second ones; ordinary tests keep their places."""
    places = [place for place, item in enumerate(items) if isinstance(item, _AttemptNode)]
    if not places and "pytest_ageval.job" not in sys.modules:
        return
    from pytest_ageval.job import Job

    if not places and Job.existing(config) is None:
        return

    Job.of(config).refuse_bad_usage(items)
    _deselect(config, items)
    places = [place for place, item in enumerate(items) if isinstance(item, _AttemptNode)]
    attempts = sorted((items[place] for place in places), key=_round)
    for place, item in zip(places, attempts, strict=True):
        items[place] = item


def _deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what ``--regrade`` has nothing to judge of. pytest counts what was collected first."""
    left_out = [item for item in items if isinstance(item, Unrecorded)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not isinstance(item, Unrecorded)]


def _round(item: pytest.Item) -> int:
    return int(item.variant.attempt) if isinstance(item, TaskItem) else 1
