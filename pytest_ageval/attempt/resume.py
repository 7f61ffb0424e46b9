"""Going on with an attempt whose process was killed or interrupted.

`unsettled` looks at an attempt directory, `resume` makes the `Attempt` that goes on in it. Its phases are
called as ever: what was completed is not done again, and what was spent stays spent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence import Layout, read_activity
from pytest_ageval.evidence.checkpoints import read_numbers
from pytest_ageval.evidence.files import read_document
from pytest_ageval.evidence.history import History, read_history
from pytest_ageval.evidence.writer import live_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pytest_ageval.attempt.context import Attempt, AttemptOptions
    from pytest_ageval.attempt.identity import Identity
    from pytest_ageval.config.locked import LockedTask
    from pytest_ageval.executor import Executor, Session
    from pytest_ageval.registry import Registry

#: Values that differ which the refusal of a resume names.
NAMED = 10


class ResumeError(AgevalError):
    """An attempt cannot be continued; its directory is as it was."""

    phase = "environment"


@dataclass(frozen=True, slots=True)
class Unsettled:
    """An attempt without a result that can be continued.

    `index` counts the attempts of its task and binding, `digest` is that of its locked configuration,
    `resumed` says how often it was continued already, `steps` how many of its agents' turns are complete.
    """

    directory: Path
    attempt_id: str
    run_id: str
    suite_run_id: str | None
    task_id: str
    index: int
    digest: str
    lock: Mapping[str, Any]
    resumed: int
    steps: int


def unsettled(directory: Path) -> Unsettled | None:
    """What can be continued in an attempt directory; None: nothing, it is settled or was just begun.

    Raises `ResumeError` ``resume_busy`` while another process writes there.
    """
    layout = Layout(directory)
    if layout.result.exists():
        return None
    writer = live_writer(layout.writer)
    if writer is not None:
        raise ResumeError("resume_busy", f"{directory} is being written by {writer}; wait for it, or end it")
    try:
        lock = read_document(layout.lock)
        history = read_history(read_activity(layout.activity))
    except AgevalError:  # there is nothing that could be trusted
        return None
    header = history.header
    if lock is None or not header.get("attempt_id") or not resumable(history, layout):
        return None
    return Unsettled(
        directory=directory,
        attempt_id=str(header["attempt_id"]),
        run_id=str(header.get("run_id") or ""),
        suite_run_id=header.get("suite_run_id"),
        task_id=str(header.get("task_id") or ""),
        index=int(header.get("attempt_index") or 1),
        digest=str(header.get("locked_config_digest") or ""),
        lock=lock,
        resumed=history.resumed,
        steps=sum(invoke.completed is not None for invoke in history.invokes()),
    )


def resumable(history: History, layout: Layout) -> bool:
    """Whether the state in which the agents worked can be had again."""
    if not history.invokes() and not history.phase("run").payload:
        return True  # nothing was done that a new start would not do
    if history.header.get("whole_box"):
        return True  # with its box, if that is there, or from the beginning
    if history.phase("environment").checkpoint is None or history.checkpoint is None:
        return _finished(history, layout)
    return history.checkpoint in read_numbers(layout.checkpoints) or _finished(history, layout)


def _finished(history: History, layout: Layout) -> bool:
    """The verdict is known, so that no files are needed any more."""
    return history.phase("evaluate").ok and (layout.private / "verdict.json").exists()


def resume(
    directory: Path,
    locked: LockedTask,
    *,
    hooks: Any,
    registry: Registry,
    identity: Identity,
    options: AttemptOptions | None = None,
    executor_factory: Callable[[Session], Executor] | None = None,
) -> Attempt:
    """The attempt of `directory`, to go on with. Its own id stays; the others are those of `identity`.

    Raises `ResumeError`: ``resume_nothing``, ``resume_busy``, ``resume_digest_changed``, ``resume_masked``.
    """
    from pytest_ageval.attempt.context import Attempt

    found = unsettled(directory)
    if found is None:
        raise ResumeError("resume_nothing", f"there is nothing in {directory} that could be continued")
    refuse_changes(found, locked)
    same = replace(
        identity,
        attempt_id=found.attempt_id,
        index=found.index,
        suite_run_id=identity.suite_run_id or found.suite_run_id,
    )
    return Attempt(
        locked,
        hooks=hooks,
        registry=registry,
        identity=same,
        runs_dir=directory.parent,
        options=options,
        executor_factory=executor_factory,
        again=True,
    )


def refuse_changes(found: Unsettled, locked: LockedTask) -> None:
    """Raise ResumeError when the configuration is not the one that the attempt was begun with."""
    if found.digest == locked.digest:
        return
    before, now = found.lock.get("locked") or {}, locked.document.get("locked") or {}
    rows = list(differences(before, now))
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    shown = "; ".join(rows[:NAMED]) or f"digest {found.digest} -> {locked.digest}"
    raise ResumeError(
        "resume_digest_changed",
        f"{found.attempt_id} was begun with another configuration of {found.task_id}: {shown}{more}; "
        "undo the change, or run the task anew",
    )


def differences(before: Any, now: Any, pointer: str = "") -> Iterator[str]:
    """``/limits/agent_invocations: 3 -> 4`` for every value that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            below = f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"
            if key not in before:
                yield f"{below}: absent -> {_shown(now[key])}"
            elif key not in now:
                yield f"{below}: {_shown(before[key])} -> absent"
            else:
                yield from differences(before[key], now[key], below)
    elif before != now:
        yield f"{pointer or '/'}: {_shown(before)} -> {_shown(now)}"


def _shown(value: Any) -> str:
    import json

    text = json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"


@dataclass(slots=True)
class Past:
    """What other processes did of this attempt.

    `run` and `judges` are the step logs of the two surfaces. `verdict` is the recorded answer of the
    evaluator, when the evaluate phase had bound one. `failed` is the failure that made it an ERROR, if any.
    """

    run: History
    judges: History
    facts: list[dict[str, Any]] = field(default_factory=list)
    verdict: dict[str, Any] | None = None
    failed: AgevalError | None = None
    #: The trajectory was written when nothing could be added any more.
    recorded: bool = False
    #: The box of the other process was taken over.
    attached: bool = False
    #: The steps of a Harbor task that have been graded.
    steps: list[dict[str, Any]] = field(default_factory=list)
    started_over: bool = False

    def done(self, phase: str) -> bool:
        """The phase had ended well."""
        return self.run.phase(phase).ok

    @property
    def over(self) -> bool:
        """It is known what the attempt comes to: no box is needed any more."""
        return self.failed is not None or (self.done("evaluate") and self.verdict is not None)

    def start_over(self) -> None:
        """Nothing of the agents' work is there any more."""
        self.started_over = True
        self.run.sessions.clear()
        self.judges.sessions.clear()
        self.steps = []
        for phase in self.run.phases.values():
            phase.ok, phase.clock_ms = False, 0.0

    def fact(self, name: str) -> dict[str, Any] | None:
        """The detail of the newest fact of that name."""
        for row in reversed(self.facts):
            if row.get("name") == name:
                return row.get("detail") or {}
        return None

    def refuse(self, phase: str) -> None:
        """Raise the failure again in the phase in which it happened."""
        if self.failed is not None and self.failed.phase == phase:
            raise self.failed


def take_up(attempt: Attempt) -> Past:
    """Read what there is, and put the attempt into the state in which it was.

    The attempt has its evidence, and nobody else writes there. Raises `ResumeError` and `AgevalError`.
    """
    layout, evidence = attempt.evidence.layout, attempt.evidence
    history = read_history(read_activity(layout.activity))
    judges = read_history(read_activity(layout.private_activity))
    if history.masked or judges.masked:
        raise ResumeError(
            "resume_masked",
            "a secret was masked in what an agent had said, so that it cannot be said again; run this "
            "attempt anew",
        )
    past = Past(history, judges, facts=list(evidence.facts))
    if history.phase("evaluate").payload or (layout.private / "verdict.json").exists():
        past.verdict = read_document(layout.private / "verdict.json")
    past.failed = _failure(past)
    past.steps = _steps(past.facts)
    past.recorded = past.over and layout.trajectory.exists()
    evidence.recall("run", history.invokes())
    evidence.recall("evaluate", judges.invokes())
    _restore(attempt, past)
    return past


def _steps(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The graded steps, of those in the container that there is now."""
    found: list[dict[str, Any]] = []
    for row in facts:
        detail = row.get("detail") or {}
        if row["name"] == "attempt_resumed" and not detail.get("box_taken_over"):
            found = []
        elif row["name"] == "step_finished" and detail:
            found.append(detail)
    return found


def _failure(past: Past) -> AgevalError | None:
    """The first failure that was not an interrupt, in a phase that decides."""
    for row in past.facts:
        detail = row.get("detail") or {}
        if row.get("name") != "phase_failed" or detail.get("title") == "interrupted":
            continue
        if row.get("phase") in ("environment", "run", "evaluate"):
            return AgevalError(
                str(detail.get("title")),
                str(detail.get("message") or ""),
                phase=str(row["phase"]),
                detail=detail.get("detail"),
            )
    return None


def _restore(attempt: Attempt, past: Past) -> None:
    from pytest_ageval.accounting.meter import spent_of
    from pytest_ageval.evidence.usage import has_figures

    history = past.run
    attempt.started_at = history.started_at or attempt.started_at
    attempt.resumed = history.resumed + 1
    for name, phase in history.phases.items():
        if name != "seal_run":
            attempt.timing[name] = round(phase.wall_ms, 1)
        for flag in phase.payload.get("flags") or ():
            attempt.flags.append(flag)
    attempt.flags = list(dict.fromkeys(attempt.flags))
    attempt.limit = (past.fact("limit_reached") or {}).get("limit")
    replayed = {invoke.invocation_id for invoke in history.invokes() if invoke.completed is None}
    for record in attempt.evidence.invocations:
        again = record.info.invocation_id in replayed and record.info.surface == "run"
        if record.info.surface == "run" and has_figures(record.usage) and not again:
            attempt.meter.tally.add(spent_of(record.usage_row))
    checkpoints = attempt.checkpoints
    if checkpoints is None or past.over:
        return
    if past.done("environment") and history.checkpoint is not None:
        checkpoints.load(history.checkpoint)
    else:
        checkpoints.drop()
