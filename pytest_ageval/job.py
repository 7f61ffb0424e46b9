"""What one pytest session evaluates. Made when the first task is collected."""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_ageval import across, options, sequencer
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_ageval.accounting import Ledger, Prices
    from pytest_ageval.attempt import Attempt, AttemptOptions, Identity
    from pytest_ageval.collection import TaskFile, TaskItem
    from pytest_ageval.config import Dataset, JobOptions, LockedTask, TaskDocument, Variant
    from pytest_ageval.extensions import PluginPackage
    from pytest_ageval.faces import BoxFace
    from pytest_ageval.pacing import Pacer
    from pytest_ageval.registry import Registry
    from pytest_ageval.regrading import Regrading
    from pytest_ageval.suites import Suites

_KEY = pytest.StashKey["Job"]()
RUN_ID = pytest.StashKey[str]()


def run_id(config: pytest.Config) -> str:
    """The id of this session; every worker of a distributed run has the controller's."""
    given = getattr(config, "workerinput", {}).get("ageval_run_id")
    if given:
        return str(given)
    if RUN_ID not in config.stash:
        config.stash[RUN_ID] = f"run_{os.urandom(16).hex()}"
    return config.stash[RUN_ID]


def running_dir(config: pytest.Config) -> Path:
    """Where processes of this run note what they are at; exists while attempts run."""
    link = across.current()
    return link.running if link is not None else Path(tempfile.gettempdir()) / f"ageval-{run_id(config)}"


def work_dir(config: pytest.Config) -> Path:
    """Where the boxes of this run have their directories on the host, if they have any."""
    from pytest_ageval.box import work_parent

    return work_parent() / run_id(config)[:12]


class Job:
    """Options, classes and ids of one session.

    `usage_error` is what is wrong with the command line (an agent that does not exist); it is
    raised when the collection is complete.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.usage_error: ConfigError | None = None
        self._seen = False
        self.roles: set[str] = set()
        self.parameters: set[str] = set()
        #: One task of each data set, to try the cells of the matrix on.
        self._samples: dict[Path, TaskDocument] = {}
        self._marks: set[str] = set()
        self._reported: set[Path] = set()
        self._attempts = 0

    @classmethod
    def of(cls, config: pytest.Config) -> Job:
        """The session's job."""
        if _KEY not in config.stash:
            config.stash[_KEY] = cls(config)
        return config.stash[_KEY]

    @classmethod
    def existing(cls, config: pytest.Config) -> Job | None:
        """The session's job, if a task was collected in this process."""
        return config.stash.get(_KEY, None)

    # -- the command line ------------------------------------------------------------------------

    @cached_property
    def options(self) -> JobOptions:
        """The options, each with its source. Raises ConfigError and `pytest.UsageError`."""
        from pytest_ageval.config import JobOptions

        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for name, option in _FIELDS.items():
            value, source = options.resolve(self.config, option)
            if value is not None:
                values[name] = tuple(value) if isinstance(value, list) else value
                sources[name] = source
        if "attempts" in values:
            values["attempts"], _ = options.parse_attempts(values["attempts"])
        if sources.get("matrix") == "ini":  # the files are below the rootdir
            values["matrix"] = [
                text if text[:1] == "/" else str(self._path(text, "ini")) for text in values["matrix"]
            ]
        return JobOptions(**values, sources=sources)

    def option(self, name: str) -> Any:
        """The value of an option that does not belong to the configuration of a task."""
        return options.resolve(self.config, name)[0]

    @property
    def running(self) -> Path:
        """Where processes of this run note what they are at."""
        return running_dir(self.config)

    @cached_property
    def suites(self) -> Suites:
        """The suite runs that attempts belong to."""
        from pytest_ageval.suites import Suites

        return Suites(self)

    @cached_property
    def prices(self) -> Prices:
        """What models cost, where their calls do not say. Raises ConfigError."""
        from pytest_ageval.accounting import Prices

        given, source = options.resolve(self.config, "prices")
        if given is None:
            return Prices()
        from pytest_ageval.config.prices import load_prices

        return Prices(load_prices(self._path(given, source)))

    @cached_property
    def ledger(self) -> Ledger | None:
        """What the whole run has spent, if it has a budget. Raises ConfigError."""
        from pytest_ageval.accounting import Budget, Ledger
        from pytest_ageval.config.job import check_budget

        budget = Budget(self.option("max_cost"), self.option("max_tokens"))
        check_budget("--max-cost", budget.max_cost_usd)
        check_budget("--max-tokens", budget.max_tokens)
        return Ledger(running_dir(self.config) / "ledger", budget) if budget else None

    def _ledger_of(self, dataset_root: Path) -> Ledger | None:
        """Where the calls of an attempt are counted: for the run's budget, and in its suite run."""
        from pytest_ageval.accounting import Account, Budget, Ledger
        from pytest_ageval.suite.places import SuiteLayout

        place = self.suites.of(dataset_root)
        if place is None:
            return self.ledger
        link = across.current()
        record = Account(SuiteLayout(place.root).spent) if link is None else link.account(place.root)
        if self.ledger is not None:
            return self.ledger.recorded_in(record)
        return Ledger(running_dir(self.config) / "ledger", Budget(), record)

    @cached_property
    def pacer(self) -> Pacer:
        """When requests to providers may go out, for all attempts of this process. Raises ConfigError."""
        from pytest_ageval.inflight import limits
        from pytest_ageval.pacing import Pacer

        return Pacer(limits.requests_per_minute(self), limits.workers(self.config))

    def budget_used_up(self) -> str | None:
        """Why no further attempt may begin; None while the run's budget lasts."""
        found = None if self.ledger is None else self.ledger.exhausted()
        return None if found is None else f"--{found[0].replace('_', '-')}: {found[1]}"

    @cached_property
    def registry(self) -> Registry:
        """Box kinds and executors, those of plugins and conftest.py files included.

        Complete once the collection is.
        """
        from pytest_ageval.registry import Registry

        return Registry(
            self.config.hook.pytest_ageval_box_kinds(),
            self.config.hook.pytest_ageval_executors(),
            self._plugins(),
        )

    def _plugins(self) -> list[PluginPackage]:
        """Those of ``--ageval-plugins``. A relative ini value is below the rootdir."""
        given, source = options.resolve(self.config, "plugins")
        if not given:
            return []
        from pytest_ageval.extensions import find_plugins
        from pytest_ageval.registry import BOXES, EXECUTORS

        base = self.config.rootpath if source == "ini" else self.config.invocation_params.dir
        return find_plugins(
            [base / Path(path).expanduser() for path in given], {*BOXES, *EXECUTORS, "default"}
        )

    @cached_property
    def variants(self) -> Sequence[Variant]:
        """Every combination of agent, model, box and attempt."""
        from pytest_ageval.config import plan_variants

        return plan_variants(self.options)

    @cached_property
    def regrading(self) -> Regrading | None:
        """The recorded attempts that are judged again, if that is what the session does."""
        from pytest_ageval.regrading import regrading

        return regrading(self)

    def variants_of(self, file: TaskFile) -> Sequence[Variant]:
        """One for each item of a task."""
        return self.variants if self.regrading is None else self.regrading.variants(file)

    def task_seen(self, root: Path | None) -> None:
        """A task of the data set `root` is being collected: check the command line, register hooks. Once."""
        if self._seen:
            return
        self._seen = True
        if root is not None:
            from pytest_ageval.recalled import recall

            self._check(lambda: recall(self, root))
        from pytest_ageval.attempt import defaults

        if not self.config.pluginmanager.is_registered(defaults):
            self.config.pluginmanager.register(defaults, "ageval-defaults")
        self._check(self._read_options)

    def task_loaded(self, root: Path, task: TaskDocument) -> None:
        """A task has been read: what options may name, they may name because a task has it."""
        self.roles.update(task.roles)
        self.parameters.update(task.parameters)
        self._samples.setdefault(root, task)

    def _check(self, check: Callable[[], None]) -> None:
        try:
            check()
        except ConfigError as error:
            self.usage_error = error
        except pytest.UsageError as error:
            self.usage_error = ConfigError("invalid_option", str(error))

    def _read_options(self) -> None:
        """All of them can be understood."""
        from pytest_ageval.inflight import limits

        for name in options.BY_NAME:
            self.option(name)
        in_flight = self.option("in_flight")
        if in_flight is not None and in_flight < 1:
            raise ConfigError("invalid_option", "--in-flight must be at least 1")
        limits.check(self)
        _ = self.variants
        _ = self.ledger, self.prices, self.regrading
        sequencer.start(self.config)
        self._check_tape()
        self.suites.check()

    def _check_tape(self) -> None:
        """``--record`` and ``--replay`` can be meant, and there is something to replay."""
        record, replay = self.place("record"), self.place("replay")
        if record is not None and replay is not None:
            raise ConfigError("invalid_option", "--record and --replay exclude each other")
        if (record or replay) is not None and self.options.gateway == "off":
            option = "--record" if record is not None else "--replay"
            raise ConfigError("invalid_option", f"{option} needs the model gateway, and --gateway is off")
        if replay is not None and not replay.is_dir():
            raise ConfigError("invalid_option", f"--replay: {replay} is not a directory")

    def _look_up_names(self) -> None:
        """Every agent and every box exists. Only now have all conftest.py files been read."""
        from pytest_ageval.config.variant_check import check_cells, check_names

        if self.regrading is not None:
            self.regrading.check()
            return
        check_names(self.variants, self.options, self.registry)
        samples = [(self.dataset(root), task) for root, task in self._samples.items()]
        check_cells(self.variants, self.options, self.registry, samples, self.parameters)
        self._look_up_roles()

    def _look_up_roles(self) -> None:
        """A role that is spelled almost like one of the tasks' is a slip.

        Another one is not: the tasks that have it may just not be among those of this run.
        """
        from pytest_ageval.config.job import check_roles

        try:
            check_roles(self.options, self.roles)
        except ConfigError as error:
            if error.hint:
                raise

    def refuse_bad_usage(self, items: list[pytest.Item]) -> None:
        """Raise `pytest.UsageError` if the command line is wrong.

        A worker cannot: it runs nothing, and the controller says why.
        """
        if self.usage_error is None:
            self._check(self._look_up_names)
        if self.usage_error is None:
            return
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["ageval_usage_error"] = str(self.usage_error)
            items.clear()
        else:
            raise pytest.UsageError(str(self.usage_error))

    # -- data sets and tasks ---------------------------------------------------------------------

    def dataset_error(self, root: Path) -> ConfigError | None:
        """What is wrong with the data set itself (ageval.yaml, profiles.yaml), if anything is."""
        from pytest_ageval.config import load_profiles

        try:
            load_profiles(self.dataset(root), self.options.profiles)
        except ConfigError as error:
            return error
        return None

    def dataset(self, root: Path) -> Dataset:
        """The data set at `root`."""
        from pytest_ageval.config import load_dataset

        return load_dataset(root, self.config.rootpath)

    def first_report(self, root: Path) -> bool:
        """True the first time that it is asked of `root`."""
        if root in self._reported:
            return False
        self._reported.add(root)
        return True

    def register_mark(self, name: str) -> None:
        """Make a mark known, or ``--strict-markers`` would refuse it."""
        if name not in self._marks:
            self._marks.add(name)
            self.config.addinivalue_line("markers", f"{name}: of a task")

    def unbound_roles(self, item: TaskItem) -> Sequence[str]:
        """Roles of the task that neither the command line nor the data set binds."""
        from pytest_ageval.config import unbound_roles

        if self.regrading is not None:
            return ()

        dataset = self.dataset(cast("Path", item.file.root))
        return unbound_roles(item.file.task, dataset, item.variant, self.options)

    def lock(self, item: TaskItem, *, credentials: bool = True) -> LockedTask:
        """The locked configuration of an item. Without `credentials` no key needs to be set."""
        from pytest_ageval.config import lock_task

        dataset = self.dataset(cast("Path", item.file.root))
        # What is replayed needs no key.
        if self.regrading is not None:
            keys = credentials and self.place("replay") is None
            return self.regrading.lock(item, dataset, self.registry, credentials=keys)
        locked = lock_task(
            item.file.task,
            dataset,
            item.variant,
            self.options,
            self.registry,
            credentials=credentials and self.place("replay") is None,
        )
        if (link := across.current()) is not None:
            link.export(getattr(self.registry.box(locked.box.kind), "key_name", None))
        if locked.budget.max_cost_usd is not None or self.option("max_cost") is not None:
            from pytest_ageval.config.prices import check_priced

            check_priced(locked, self.prices)
        return locked

    # -- attempts --------------------------------------------------------------------------------

    def attempt(self, item: TaskItem, locked: LockedTask, resume: Path | None = None) -> Attempt:
        """A new attempt with its own directory, or the one in the directory `resume`, to go on with.

        Raises `ResumeError`.
        """
        from pytest_ageval.attempt import Attempt

        if resume is not None:
            return Attempt.resume(
                resume,
                locked,
                hooks=item.ihook,
                registry=self.registry,
                identity=self._identity(item, locked),
                options=self._attempt_options(locked.dataset_root),
            )
        attempt = Attempt(
            locked,
            hooks=item.ihook,
            registry=self.registry,
            identity=self._identity(item, locked),
            runs_dir=self.runs_dir(locked.dataset_root),
            options=self._attempt_options(locked.dataset_root),
        )
        if self.regrading is not None:
            attempt.source = self.regrading.source(item)
        return attempt

    def _identity(self, item: TaskItem, locked: LockedTask) -> Identity:
        from pytest_ageval.attempt import Identity
        from pytest_ageval.recorded import DECISION

        suite, decision = self.suites.of(locked.dataset_root), item.stash.get(DECISION, None)
        return Identity(
            run_id=run_id(self.config),
            suite_run_id=None if suite is None else suite.root.name,
            slot=item.nodeid if decision is None else decision.slot,
            worker=worker(self.config),
            index=item.variant.attempt,
        )

    def _attempt_options(self, root: Path) -> AttemptOptions:
        from pytest_ageval.attempt import AttemptOptions
        from pytest_ageval.config import resolve_secret

        dataset = self.dataset(root)
        return AttemptOptions(
            keep_workspace=bool(self.option("keep_workspace")),
            keep_raw=bool(self.option("keep_raw")),
            trust_tasks=bool(self.option("trust_tasks")),
            script_start=self.option("script_start") or "fork",
            hidden=(self.config.rootpath / ".env",),
            permission=self.options.policy,
            gateway="off" if self.options.gateway == "off" else "auto",
            record=self.place("record"),
            replay=self.place("replay"),
            export=self.option("export"),
            secret=lambda name: resolve_secret(name, dataset),
            ledger=self._ledger_of(root),
            prices=self.prices,
            checkpoints=self.option("checkpoints") or "step",
            pacer=self.pacer,
        )

    def evidence_root(self, dataset_root: Path) -> Path:
        """``--ageval-dir``, or ``.ageval`` in the data set. A relative ini value is below the rootdir."""
        return self.place("dir") or dataset_root / ".ageval"

    def place(self, name: str) -> Path | None:
        """The path that an option names, absolute; None when it was not given."""
        given, source = options.resolve(self.config, name)
        if given is None:
            return None
        return self._path(given, source)

    def _path(self, given: str, source: str) -> Path:
        """A path of an option. A relative one of the ini file is below the rootdir."""
        base = self.config.rootpath if source == "ini" else self.config.invocation_params.dir
        return Path(base) / Path(given).expanduser()

    def runs_dir(self, dataset_root: Path) -> Path:
        """Where attempts have their directories. What is made here is kept out of version control."""
        root = self.evidence_root(dataset_root)
        ours = root == dataset_root / ".ageval" or not root.exists()
        if ours and not (root / "runs").exists():
            with contextlib.suppress(OSError):  # the attempt will say that nothing can be written here
                (root / "runs").mkdir(parents=True, exist_ok=True)
                (root / ".gitignore").write_text("# Made by pytest-ageval.\n*\n", encoding="utf-8")
        return root / "runs"

    def loose_box(self, name: str, work_dir: Path) -> BoxFace:
        """A box that belongs to no attempt, for an ordinary test."""
        from pytest_ageval.box import BoxSpec
        from pytest_ageval.faces import BoxFace

        kind = (self.options.boxes or ("local",))[0]
        box_options = {
            row.name: row.value for row in self.options.parsed_box_options if row.kind in (None, kind)
        }
        identity = f"test_{os.urandom(8).hex()}"
        labels = {
            "ageval.run": run_id(self.config),
            "ageval.worker": worker(self.config),
            "ageval.attempt": identity,
        }
        spec = BoxSpec(kind, identity, name, work_dir, options=box_options, labels=labels)
        return BoxFace(self.registry.box(kind)(spec))


def worker(config: pytest.Config) -> str:
    """The name of this process in the run: ``gw0``, or ``main``."""
    return str(getattr(config, "workerinput", {}).get("workerid", "main"))


#: Fields of `JobOptions` and the options that they come from.
_FIELDS = {
    "agents": "agent",
    "models": "model",
    "boxes": "box",
    "box_options": "box_option",
    "sets": "set",
    "attempts": "attempts",
    "profiles": "profiles",
    "efforts": "effort",
    "matrix": "matrix",
    "base_url": "base_url",
    "reward_key": "reward_key",
    "pass_threshold": "pass_threshold",
    "max_cost_per_attempt": "max_cost_per_attempt",
    "max_tokens_per_attempt": "max_tokens_per_attempt",
    "permission": "permission",
    "auth": "agent_auth",
    "gateway": "gateway",
}
