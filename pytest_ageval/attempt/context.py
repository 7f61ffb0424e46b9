"""The attempt: what the phases share, and the order in which they may happen."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_ageval.accounting import Meter, Prices
from pytest_ageval.attempt.checkpoint import checkpoints_of
from pytest_ageval.attempt.clock import PhaseClock
from pytest_ageval.attempt.identity import Identity
from pytest_ageval.attempt.outcome import Outcome
from pytest_ageval.attempt.resume import Past, resume, take_up
from pytest_ageval.attempt.verdict import Verdict
from pytest_ageval.errors import AgevalError, BoxError, EvaluatorError, ExecutorError
from pytest_ageval.evidence import EvidenceStore, Redactor, now
from pytest_ageval.faces import BoxFace
from pytest_ageval.pacing import Pacer

if TYPE_CHECKING:
    from pytest_ageval.accounting import Ledger
    from pytest_ageval.attempt.harbor.state import StepRecord
    from pytest_ageval.attempt.mirror import Mirror
    from pytest_ageval.attempt.regrade import Source
    from pytest_ageval.box import Box
    from pytest_ageval.config.locked import LockedTask
    from pytest_ageval.executor import AgentResult, Executor, PermissionPolicy, Session, Usage
    from pytest_ageval.extensions.chain import PluginChain
    from pytest_ageval.registry import Registry
    from pytest_ageval.sessions.service import AgentService


@dataclass(frozen=True, slots=True)
class AttemptOptions:
    """How one attempt is carried out, where that cannot change its verdict.

    `keep_workspace` leaves the box's directories, `keep_raw` the vendors' own logs. `permission`
    answers agents that ask. `stall_seconds` is how long a provider that is down is waited for, in
    one invoke. `secret` looks up a credential by the name of its environment variable.
    `trust_tasks` lets run.py and evaluator.py see all that the user does. `script_start` is how their
    processes start. `hidden` are further
    directories and files that a contained script does not see. `ledger` is what the whole run has spent,
    if it has a budget, and `prices` what models cost. `pacer` says when requests to providers may go out.
    `gateway` is whether agents' model
    calls pass the gateway, `record` and `replay` the directory in which they are kept or looked up.
    `export` names the form in which a settled attempt is written once more.
    `checkpoints` is how often the agent's directories are kept: after each turn, also after each step
    of an agent whose loop runs on the host, or never; without them an attempt cannot be continued.
    """

    keep_workspace: bool = False
    keep_raw: bool = False
    permission: PermissionPolicy = "allow"
    stall_seconds: float = 3600.0
    secret: Callable[[str], str | None] = field(default=lambda name: None)
    trust_tasks: bool = False
    script_start: Literal["fork", "spawn"] = "fork"
    hidden: tuple[Path, ...] = ()
    ledger: Ledger | None = None
    prices: Prices = field(default_factory=Prices)
    gateway: Literal["auto", "off"] = "auto"
    record: Path | None = None
    replay: Path | None = None
    export: Literal["harbor"] | None = None
    checkpoints: Literal["off", "turn", "step"] = "step"
    pacer: Pacer = field(default_factory=Pacer)


class Attempt:
    """One execution of one task with one locked configuration; what every hook gets.

    `box` is the running box (synchronous methods, for hooks), `locked` the configuration,
    `identity` the ids, `evidence` the writer of the attempt directory, `phase` the current phase,
    `verdict` the bound verdict or None. `executor_factory`, when set, makes the executors in place of the
    hook ``pytest_ageval_executor``.
    """

    def __init__(
        self,
        locked: LockedTask,
        *,
        hooks: Any,
        registry: Registry,
        identity: Identity,
        runs_dir: Path,
        options: AttemptOptions | None = None,
        executor_factory: Callable[[Session], Executor] | None = None,
        again: bool = False,
    ) -> None:
        self.locked = locked
        self.hooks = hooks
        self.registry = registry
        self.identity = identity
        self.options = options or AttemptOptions()
        self.executor_factory = executor_factory
        self.meter = Meter(locked.budget, self.options.ledger, self.options.prices)
        self.redactor = Redactor()
        self.secrets = self._resolve_secrets()
        self._mask_agents_variables()
        self.evidence = EvidenceStore.create(
            runs_dir / identity.attempt_id,
            self.redactor,
            keep_raw=self.options.keep_raw,
            run_id=identity.run_id,
            price=self._price,
            again=again,
        )
        self.started_at = now()
        self.phase = "environment"
        self.clock = PhaseClock(None)
        self.raw_box: Box = _NotStarted()  # type: ignore[assignment]
        self.mirror: Mirror | None = None
        #: With ``evaluate_host.isolated``: the boxes in which the work is judged, by name.
        self.scoring_boxes: dict[str, asyncio.Future[Box]] = {}
        self.service: AgentService | None = None
        self._verdict: Verdict | None = None
        self._error: AgevalError | None = None
        self._added_metrics: dict[str, Any] = {}
        self.writers_stopped = False
        #: Of an attempt that judges the work of an earlier one: that one.
        self.source: Source | None = None
        self.recorded = False
        self.settled = False
        self.discarded = False
        self.limit: str | None = None
        self.terminal: dict[str, Any] | None = None
        #: Login files of the operator that are in the box, as it spells them.
        self.logins: list[str] = []
        self.flags: list[str] = []
        self.published: dict[str, str] = {}
        self.not_produced: list[str] = []
        self.directories: dict[str, tuple[Path, tuple[int, int] | None]] = {}
        self.timing: dict[str, float] = {}
        #: Seconds for which the attempt stood still because of the run's own pace; no part of its time.
        self.held_seconds = 0.0
        self.cleanup_warning: str | None = None
        #: Why the settled attempt could not be exported.
        self.export_warning: str | None = None
        self.summary_extra: dict[str, Any] = {}
        self.kept_workspace: str | None = None
        self.tails: dict[str, str] = {}
        self.judge_failure: AgentResult | None = None
        #: Of a Harbor task: what came of each step so far.
        self.steps: list[StepRecord] = []
        #: A command of the evaluator that could not be run for want of a box.
        self.scoring_failure: BoxError | None = None
        #: What records or replays the calls of a role.
        self.tapes: dict[str, Any] = {}
        self.checkpoints = checkpoints_of(self)
        self.keeping = asyncio.Lock()
        #: Copies of further directories of a box that shares none with this machine, by name.
        self.copies: dict[str, Mirror | None] = {}
        #: How often the attempt was continued, and what the processes before this one did.
        self.resumed = 0
        self.past: Past | None = None
        try:
            if again:
                self.past = take_up(self)
            else:
                self.evidence.write_lock(dict(locked.document))
        except BaseException:
            self.evidence.close()
            raise

    @classmethod
    def resume(cls, directory: Path, locked: LockedTask, **given: Any) -> Attempt:
        """The attempt of `directory`, to go on with; see `pytest_ageval.attempt.resume.resume`."""
        return resume(directory, locked, **given)

    # -- for hooks -------------------------------------------------------------------------------

    @property
    def box(self) -> BoxFace:
        """The box, with synchronous methods. Raises BoxError before it was made.

        An attempt that is continued when its verdict was known already has none: every use of it raises.
        """
        over = self.past is not None and self.past.over
        if isinstance(self.raw_box, _NotStarted) and not over:
            raise BoxError("environment_not_started", "the box has not been made yet")
        return BoxFace(self.raw_box)

    @property
    def verdict(self) -> Verdict | None:
        """The bound verdict, or None before there is one. It cannot be changed."""
        return self._verdict

    @property
    def error(self) -> AgevalError | None:
        """The first failure that makes the attempt an ERROR, or None."""
        return self._error

    @property
    def metrics(self) -> dict[str, Any]:
        """The verdict's metrics, and those that a hook added under names of its own."""
        bound = self._verdict.metrics if self._verdict is not None else {}
        return {**self._added_metrics, **bound}

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self.locked.task_id

    def held_back(self, seconds: float) -> None:
        """The attempt stood still for so long because others of the run call the same provider."""
        self.held_seconds += seconds

    def fact(self, name: str, detail: Any = None) -> None:
        """Note something in the evidence (``facts`` of summary.json)."""
        self.evidence.fact(self.phase, name, detail)

    async def before_turn(self) -> None:
        """Bring what run.py changed to the box, where the two share no files."""
        if self.locked.harbor is not None:  # there is no run.py
            return
        from pytest_ageval.attempt.mirror import mirror_of

        mirror = mirror_of(self)
        if mirror is not None:
            await mirror.push()

    async def after_turn(self) -> None:
        """Make the agent's files safe to read on the host, where run.py reads them next."""
        from pytest_ageval.attempt.guard import guard_files
        from pytest_ageval.attempt.mirror import mirror_of

        if self.writers_stopped or self.locked.harbor is not None:
            return
        mirror = mirror_of(self)
        if mirror is not None:
            await mirror.pull()
        await guard_files(self)

    async def slot(self, name: str, value: Any = None, *, role: str | None = None) -> Any:
        """Pass `value` through an extension point (for the session service, on behalf of `role`)."""
        from pytest_ageval.attempt import slots

        return await slots.call(self, name, value, role=role)

    @cached_property
    def plugins(self) -> PluginChain | None:
        """The ``ageval.plugin/1`` plugins that the profiles name; None if there is none."""
        if not any(binding.extensions for binding in self.locked.bindings.values()):
            return None
        from pytest_ageval.extensions.chain import PluginChain

        return PluginChain(self)

    # -- the phases ------------------------------------------------------------------------------

    async def environment(self, box: Box | None = None) -> None:
        """Open the box and prepare it. `box`: one that the caller made instead (started or not)."""
        from pytest_ageval.attempt.environment import environment, log_attempt

        log_attempt(self)
        with self.in_phase("environment", self.locked.limits.environment_seconds):
            await environment(self, box)

    async def run(self) -> None:
        """Let run.py and its agents work; then stop all writers and harvest the artifacts."""
        if self.source is not None:  # it was done in another attempt
            return
        if self.locked.harbor is not None:
            from pytest_ageval.attempt.harbor.run import run
        else:
            from pytest_ageval.attempt.run import run

        with self.in_phase("run", self.locked.limits.wall_time_seconds):
            await run(self)

    async def evaluate(self) -> None:
        """Bring up gold, run the evaluator, bind the verdict."""
        from pytest_ageval.attempt.evaluate import evaluate

        with self.in_phase("evaluate", self.locked.limits.evaluate_seconds):
            if self.source is not None:
                from pytest_ageval.attempt.regrade import restore

                await restore(self)
            await evaluate(self)

    async def record(self) -> None:
        """Seal trajectory and summary. Once; also after a phase failed."""
        if self.recorded:
            return
        self.recorded = True
        from pytest_ageval.attempt.record import record

        with self.in_phase("record", None):
            await record(self)

    async def cleanup(self) -> None:
        """Stop everything and write result.json. Idempotent; on every path."""
        if self.settled:
            return
        self.settled = True
        from pytest_ageval.attempt.cleanup import cleanup, export, settle

        try:
            with self.in_phase("cleanup", None):
                await cleanup(self)
        finally:
            settle(self)
        if self.options.export is not None:
            await export(self)

    @contextmanager
    def in_phase(self, name: str, budget: float | None) -> Iterator[None]:
        """Give the phase its clock, log its ends, and remember the first failure."""
        self.phase = name
        spent = 0.0 if self.past is None else self.past.run.phase(name).clock_ms / 1000
        self.clock = clock = PhaseClock(budget, spent)
        started, held = time.monotonic(), self.held_seconds
        request = f"phase_{name}"
        self.evidence.activity.append("phase", "in_flight", request, {"phase": name})
        ok = False
        try:
            yield
            ok = True
        except BaseException as error:
            self._failed(name, error)
            raise
        finally:
            elapsed = (time.monotonic() - started - (self.held_seconds - held)) * 1000
            self.timing[name] = round(self.timing.get(name, 0.0) + elapsed, 1)
            self.evidence.activity.append(
                "phase",
                "completed",
                request,
                {
                    "phase": name,
                    "elapsed_ms": round(self.timing[name]),
                    "clock_ms": round(clock.elapsed() * 1000),
                    "ok": ok,
                    "limit_reached": self.limit,
                    "checkpoint_seq": self.checkpoint_seq,
                    "flags": list(self.flags),
                },
            )

    @property
    def checkpoint_seq(self) -> int | None:
        """The number of the checkpoint that stands for what the box holds."""
        return (self.checkpoints.position or None) if self.checkpoints is not None else None

    def _failed(self, phase: str, error: BaseException) -> None:
        found = as_ageval_error(error, phase)
        if self.past is None or error is not self.past.failed:  # it stands there already
            self.evidence.fact(phase, "phase_failed", found.as_dict())
        self.fail(found)

    @property
    def interrupted(self) -> bool:
        """Somebody ended it: it has no result, and can be continued."""
        return self._error is not None and self._error.title == "interrupted"

    def fail(self, error: AgevalError) -> None:
        """Make the attempt an ERROR. The first failure counts, but for one that came of an interrupt."""
        if self._error is None or (self._error.title == "interrupted" and error.title != "interrupted"):
            self._error = error

    def bind(self, verdict: Verdict) -> None:
        """Bind the verdict. Once, in the evaluate phase. Raises EvaluatorError."""
        if self._verdict is not None or self.phase != "evaluate":
            raise EvaluatorError("verdict_already_bound", f"in the {self.phase} phase")
        self._verdict = verdict

    @property
    def added_metrics(self) -> dict[str, Any]:
        """What a hook measured, beside the evaluator's own metrics."""
        return dict(self._added_metrics)

    def add_metrics(self, added: Mapping[str, Any]) -> None:
        """Keep what a hook measured, beside the evaluator's own metrics."""
        self._added_metrics = dict(added)

    # -- shared state ----------------------------------------------------------------------------

    def note_limit(self, name: str) -> None:
        """A ceiling was reached; the first one is the attempt's `limit`."""
        if self.limit is None:
            self.limit = name
            self.fact("limit_reached", {"limit": name})

    def flag(self, name: str) -> None:
        """Raise a flag that a reader of the result should see; it does not change the verdict."""
        if name not in self.flags:
            self.flags.append(name)

    def secret(self, name: str) -> str | None:
        """A credential's value; it is known to the redactor from now on."""
        value = self.options.secret(name)
        if value:
            self.redactor.add(name, value)
        return value

    def _price(self, usage: Usage, role: str, model: str | None) -> dict[str, Any]:
        """A role's usage with its cost."""
        binding = self.locked.bindings.get(role)
        return self.meter.row(usage, model, binding.base_url if binding is not None else None)

    def _mask_agents_variables(self) -> None:
        """What a profile gives an agent in ``options.env`` may be a secret, whether it says so or not."""
        for binding in self.locked.bindings.values():
            env = binding.options.get("env")
            rows = list(env.items()) if isinstance(env, Mapping) else []
            for server in binding.equipment.mcp_servers:
                rows += [*server.env.items(), *server.headers.items()]
            for name, value in rows:
                if "${" not in str(value):
                    self.redactor.add(str(name), str(value))

    def _resolve_secrets(self) -> dict[str, str | None]:
        names: Iterable[str] = {
            binding.api_key for binding in self.locked.bindings.values() if binding.api_key
        }
        return {name: self.secret(name) for name in sorted(names)}

    @property
    def outcome(self) -> Outcome:
        """The result as far as it is known."""
        from pytest_ageval.attempt.settle import outcome

        return outcome(self)


class _NotStarted:
    """Stands for the box until there is one."""

    kind = ""
    capabilities: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> Any:
        raise BoxError("environment_not_started", "the box has not been made yet")


def as_ageval_error(error: BaseException, phase: str) -> AgevalError:
    """`error` with a phase and a title, for the evidence and the report."""
    if isinstance(error, AgevalError):
        if "phase" not in vars(error):  # the class's own is only a guess
            error.phase = phase
        return error
    kinds: Mapping[str, type[AgevalError]] = {
        "environment": BoxError,
        "run": ExecutorError,
        "evaluate": EvaluatorError,
    }
    title = "interrupted" if _is_interrupt(error) else type(error).__name__
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        title = "environment_disk_full"
    return kinds.get(phase, AgevalError)(title, str(error), phase=phase)


def _is_interrupt(error: BaseException) -> bool:
    import asyncio

    return isinstance(error, KeyboardInterrupt | SystemExit | asyncio.CancelledError | GeneratorExit)
