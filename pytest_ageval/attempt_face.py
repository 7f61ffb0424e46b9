"""The attempt as fixtures and test bodies use it: synchronous, and tied to its test item."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ageval import across, portal, recorded, sequencer
from pytest_ageval.box import Box
from pytest_ageval.errors import AgevalError, BoxError, TaskFailed
from pytest_ageval.faces import BoxFace
from pytest_ageval.job import Job, running_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pytest_ageval.attempt import Attempt, Outcome
    from pytest_ageval.box import BoxSpec
    from pytest_ageval.collection import TaskItem
    from pytest_ageval.config import LockedTask
    from pytest_ageval.executor import Executor, Session
    from pytest_ageval.inflight.started import Started

#: The attempt of an item. Fixture values are gone when the report of the teardown is made.
FACE = pytest.StashKey["AttemptFace"]()

#: The exceptions of an item. Who keeps them (pytest-rerunfailures does) would keep the attempt with them.
RAISED = pytest.StashKey[list[BaseException]]()

#: What was last reported of an item, so that the teardown's report does not forget the call's.
KNOWN = pytest.StashKey[dict[str, Any]]()

#: Why an attempt was not begun: the run's budget, in words.
NOT_RUN = pytest.StashKey[str]()

#: What ``--attempts auto`` had concluded when an attempt's turn came.
DECIDED = pytest.StashKey[dict[str, Any]]()

#: Failed checks that the message of a FAIL names.
NAMED_CHECKS = 5

#: Lines of what a check found, and characters of each, in that message.
CHECK_LINES = 4
CHECK_WIDTH = 200


class AttemptFace:
    """One attempt. `raw` is the engine's object, `locked` the configuration, `box` the box."""

    def __init__(self, item: TaskItem, raw: Attempt) -> None:
        self.item = item
        self.raw = raw
        self._note: Path | None = None
        self._environment: BaseException | bool = False
        #: The attempt was started before the item's turn.
        self.started: Started | None = None

    @classmethod
    def open(cls, item: TaskItem) -> AttemptFace:
        """The attempt of an item whose turn it is: made now, unless it was started ahead."""
        _forget(item)
        pool = sys.modules.get("pytest_ageval.inflight.pool")
        running = None if pool is None else item.config.stash.get(pool.POOL, None)
        face = (None if running is None else running.take(item)) or cls._make(item)
        item.stash[FACE] = face
        return face

    @classmethod
    def lock_ahead(cls, item: TaskItem) -> LockedTask:
        """The configuration of an item whose turn is still to come. Raises what `open` would.

        An item whose result is known waits for its turn: LookupError.
        """
        if recorded.look_up(item) is not None:
            raise LookupError("the result is known")
        try:
            return cls._lock(item)
        finally:
            _forget(item)

    @classmethod
    def ahead(cls, item: TaskItem, locked: LockedTask) -> AttemptFace:
        """The attempt of an item whose turn is still to come. Raises what `open` would."""
        from pytest_ageval.inflight.started import Started

        try:
            _refuse_decided(item)
            face = cls._begin(item, locked)
        finally:
            _forget(item)
        face.started = Started(face.raw)
        item.stash[recorded.AHEAD] = True
        return face

    @classmethod
    def _make(cls, item: TaskItem) -> AttemptFace:
        """Lock the item's task and create its attempt directory."""
        return cls._begin(item, cls._lock(item))

    @classmethod
    def _lock(cls, item: TaskItem) -> LockedTask:
        """Lock the item's task, if there is anything to run."""
        job = Job.of(item.config)
        roles = job.unbound_roles(item)
        if roles and not item.variant.role_agents:
            pytest.skip(
                f"nobody plays {', '.join(roles)}: choose an agent with --agent NAME, or bind it "
                "in profiles.yaml"
            )
        _refuse_decided(item)
        return job.lock(item)

    @classmethod
    def _begin(cls, item: TaskItem, locked: LockedTask) -> AttemptFace:
        """Create the attempt directory, while the run's budget lasts."""
        job = Job.of(item.config)
        used_up = job.budget_used_up()
        if used_up is not None:
            item.stash[NOT_RUN] = used_up
            pytest.skip(f"not run, the budget is used up: {used_up}")
        decision = item.stash.get(recorded.DECISION, None)
        face = cls(item, job.attempt(item, locked, None if decision is None else decision.resume))
        try:
            job.suites.begun(face.raw, identify(item, locked))
            face._write_note()
        except BaseException as error:
            face.fail(error)
            face.close()
            raise
        return face

    @property
    def locked(self) -> LockedTask:
        """The locked configuration."""
        return self.raw.locked

    @property
    def directory(self) -> Path:
        """The attempt directory (evidence)."""
        return Path(self.raw.evidence.root)

    @property
    def box(self) -> BoxFace:
        """The running box. Raises BoxError before there is one."""
        return self.raw.box

    @property
    def outcome(self) -> Outcome:
        """What the attempt came to, as far as it is known."""
        return self.raw.outcome

    def box_spec(self) -> BoxSpec:
        """What a box of this attempt has to be told; for a fixture that makes its own."""
        from pytest_ageval.attempt.environment import box_spec

        return box_spec(self.raw)

    def make_executor(self, session: Session) -> Executor:
        """The executor that the session's role binds."""
        from pytest_ageval.attempt.defaults import make_executor

        return make_executor(self.raw, session)

    def environment(self, box: Box | BoxFace | None = None) -> None:
        """Bring the environment up, in `box` if it is given. Once; later calls do nothing."""
        if self._environment is not False:
            return
        made = box.raw if isinstance(box, BoxFace) else box
        if made is not None and not isinstance(made, Box):
            raise BoxError(
                "environment_invalid",
                f"the fixture 'box' must give a Box or what the fixture 'box' of a parent gave, "
                f"found {type(made).__name__}",
            )
        self._environment = True
        if self.started is not None:
            if self.started.environment_error is not None:
                raise self.started.environment_error
            return
        with self._interruptible():
            portal.run(self.raw.environment(made))

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """pytest makes no report of an interrupt; the engine must know of it all the same."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit) as error:
            self.fail(error)
            raise

    def use_executor(self, factory: Any) -> None:
        """Make executors with `factory`, if it is not `make_executor`."""
        if factory != self.make_executor:
            self.raw.executor_factory = factory

    def settle(self) -> None:
        """Run, evaluate and record; raise `TaskFailed` when the verdict is FAIL."""
        if self.started is None:
            with self._interruptible():
                try:
                    portal.run(self.raw.run())
                    portal.run(self.raw.evaluate())
                finally:
                    portal.run(self.raw.record())
        elif self.started.verdict_error is not None:
            raise self.started.verdict_error
        outcome = self.outcome
        if outcome.status == "FAIL":
            raise TaskFailed(
                fail_message(outcome),
                score=outcome.score,
                failed_checks=outcome.failed_checks,
                evidence=str(self.directory),
            )
        if outcome.status != "PASS":
            raise self.raw.error or AgevalError("no_verdict", "the attempt has no verdict")

    def fail(self, error: BaseException) -> None:
        """Tell the engine of an exception from around its phases (a fixture, a time limit)."""
        from pytest_ageval.attempt.context import as_ageval_error

        # pytest-timeout reaches the engine as a cancellation, which is what a Ctrl-C does too; the
        # engine lets the better known reason take its place.
        if not self.raw.settled and not isinstance(error, TaskFailed):
            self.raw.fail(as_ageval_error(error, self.raw.phase))

    def discard(self) -> None:
        """A fixture gave the item up (a skip): there is nothing to settle."""
        self.raw.discarded = True

    def close(self) -> None:
        """Record what is not recorded, stop everything, write result.json."""
        if self.raw.verdict is None and self.raw.error is None and not self.raw.discarded:
            # Neither an end nor a reason: the interrupt came between two phases.
            self.fail(KeyboardInterrupt())
        try:
            portal.run(self.raw.record())
        finally:
            try:
                portal.run(self.raw.cleanup())
            finally:
                self._ship()
                self._remove_note()
        if self.started is not None and self.started.cleanup_error is not None:
            raise self.started.cleanup_error

    def _remove_note(self) -> None:
        """By its note the controller knows where to look again; an interrupt makes no report."""
        error = self.raw.error
        kept = self.raw.cleanup_warning or (error is not None and error.title == "interrupted")
        if self._note is not None and not kept:
            self._note.unlink(missing_ok=True)
            if (link := across.current()) is not None:
                link.noted(self._note.name, None)

    # -- ahead of its turn -----------------------------------------------------------------------

    def start(self, done: Callable[[], object]) -> None:
        """Begin; `done` is called in another thread when all is over."""
        assert self.started is not None
        self.started.start(done)

    def cancel(self) -> None:
        """Interrupt it."""
        assert self.started is not None
        self.started.cancel()

    def abandon(self, seconds: float) -> None:
        """Its item's turn never comes: see that it is over, for so many seconds."""
        assert self.started is not None
        if self.started.wait(seconds):
            self._ship()
            self._remove_note()

    def _ship(self) -> None:
        """On another machine than the controller's: the evidence goes there, before the report does."""
        if (link := across.current()) is not None:
            link.ship(*self._evidence())

    def _evidence(self) -> Iterator[Path]:
        yield self.directory
        if self.raw.options.export is not None and self.raw.evidence.layout.result.is_file():
            from pytest_ageval.export.harbor import job_name, jobs_directory, trial_name
            from pytest_ageval.export.source import Recorded

            attempt = Recorded(self.directory)
            yield jobs_directory(self.directory) / job_name(attempt) / trial_name(attempt)

    def _write_note(self) -> None:
        """Leave word of what this process is at, for whoever finds it dead."""
        directory = running_dir(self.item.config)
        directory.mkdir(mode=0o700, exist_ok=True)
        # Several attempts of a process can be in flight: each has its own.
        self._note = directory / f"{self.raw.identity.worker}.{self.raw.identity.attempt_id}.json"
        note = {
            "nodeid": self.item.nodeid,
            "attempt_dir": str(self.directory),
            "attempt_id": self.raw.identity.attempt_id,
            "pid": os.getpid(),
            **describe(self),
        }
        if (link := across.current()) is not None:
            link.noted(self._note.name, note)
        text = json.dumps(note)
        temporary = self._note.with_suffix(".tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self._note)


def _refuse_decided(item: TaskItem) -> None:
    """Skip an attempt that no conclusion of ``--attempts auto`` needs."""
    decided = sequencer.decided(item)
    if decided is not None:
        item.stash[DECIDED] = decided.as_dict()
        pytest.skip(decided.words())


_OF_A_RUN: tuple[pytest.StashKey[Any], ...] = (FACE, KNOWN, NOT_RUN, DECIDED)


def _forget(item: pytest.Item, keys: Iterable[pytest.StashKey[Any]] = _OF_A_RUN) -> None:
    """A test that is run again starts from nothing."""
    for key in keys:
        if key in item.stash:
            del item.stash[key]


def forget(item: pytest.Item) -> None:
    """Let go of the attempt of an item whose last report is made: pytest keeps items until the very end."""
    for error in item.stash.get(RAISED, ()):
        _clear(error)
    _forget(item, (*_OF_A_RUN, RAISED, recorded.SHOWN, recorded.DECISION))


def _clear(error: BaseException | None) -> None:
    """Drop the variables of the frames that an exception, or what led to it, has passed."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        entry = error.__traceback__
        while entry is not None:
            with suppress(RuntimeError):  # it still runs
                entry.tb_frame.clear()
            # Before Python 3.13 a copy of them that somebody asked for would stay; asking again empties it.
            _ = entry.tb_frame.f_locals
            entry = entry.tb_next
        error = error.__cause__ or error.__context__


def describe(face: AttemptFace) -> dict[str, Any]:
    """`identify`, and where in which suite run the attempt belongs."""
    identity = face.raw.identity
    decision = face.item.stash.get(recorded.DECISION, None)
    continued = decision is not None and decision.resume is not None
    source = face.raw.source
    return {
        **identify(face.item, face.locked),
        "suite_run_id": identity.suite_run_id,
        "slot": identity.slot,
        **({"source": "resumed", "of": identity.attempt_id} if continued else {}),
        **({"source": "regraded", "of": source.attempt_id} if source is not None else {}),
    }


def identify(item: TaskItem, locked: LockedTask) -> dict[str, Any]:
    """Who tries what, where: the part of a report that is known from the start.

    `variant` is the item's without the number of the attempt; `parameters` are those that the task does
    not set itself.
    """
    from pytest_ageval.config.variants import setting_name
    from pytest_ageval.config.where import split_pointer

    variant = item.variant
    package = locked.harbor.package if locked.harbor is not None else None
    bindings = locked.bindings.values()
    # Who worked is not in the lock of an attempt that only judges.
    judges = Job.of(item.config).regrading is not None
    asked = [row for row in locked.resolution if row.pointer.startswith("/parameters/")]
    return {
        **({"task_name": package} if package is not None else {}),
        "dataset": locked.dataset_id,
        "task": locked.task_id,
        "agent": variant.agent or _joined(binding.agent or binding.executor for binding in bindings),
        "model": variant.model if judges else _joined(b.model.id for b in bindings) or variant.model,
        "effort": variant.effort if judges else _joined(b.model.reasoning_effort for b in bindings),
        "box": locked.box.kind,
        "variant": variant.name,
        "parameters": {
            **{setting_name(split_pointer(row.pointer)): row.value for row in asked},
            **variant.settings,
        },
        "attempt": variant.attempt,
        "digest": locked.digest,
    }


def _joined(names: Iterable[str | None]) -> str | None:
    return "+".join(sorted({name for name in names if name})) or None


def fail_message(outcome: Outcome) -> str:
    """``score 0.40; failed checks: tests, lint (evidence: path)``, and below it what the checks say."""
    parts = []
    if outcome.score is not None:
        parts.append(f"score {outcome.score:.2f}")
    if outcome.limit:
        parts.append(f"limit reached: {outcome.limit}")
    checks = list(outcome.failed_checks)
    if checks:
        more = f" and {len(checks) - NAMED_CHECKS} more" if len(checks) > NAMED_CHECKS else ""
        parts.append(f"failed checks: {', '.join(checks[:NAMED_CHECKS])}{more}")
    if outcome.not_produced:
        parts.append(f"not produced: {', '.join(outcome.not_produced)}")
    terminal = outcome.terminal or {}
    if terminal.get("kind") == "failed":
        parts.append(f"run.py: {_line(terminal.get('reason') or 'failed')}")
    text = "; ".join(parts) or "the evaluator's verdict is FAIL"
    details = [line for row in _failed(outcome)[:NAMED_CHECKS] for line in _check_lines(row)]
    return "\n".join([f"{text} (evidence: {outcome.evidence_path})", *details])


def _failed(outcome: Outcome) -> list[Mapping[str, Any]]:
    names = set(outcome.failed_checks)
    return [row for row in outcome.checks if str(row.get("id") or row.get("title")) in names]


def _check_lines(row: Mapping[str, Any]) -> list[str]:
    """What a check demands, and what it found instead: a few lines."""
    name = str(row.get("id") or row.get("title"))
    title = row.get("title") if row.get("id") else None
    found = str(row.get("stderr") or row.get("message") or row.get("reason") or row.get("stdout") or "")
    lines = [line for line in found.strip().splitlines() if line.strip()][-CHECK_LINES:]
    return [f"  {name}: {_line(title)}" if title else f"  {name}", *(f"    {_line(text)}" for text in lines)]


def _line(text: Any) -> str:
    """`text` as one line of bounded length."""
    flat = " ".join(str(text).split())
    return flat if len(flat) <= CHECK_WIDTH else f"{flat[:CHECK_WIDTH]}..."
