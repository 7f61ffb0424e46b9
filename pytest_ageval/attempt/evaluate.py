"""Phase 3, evaluate: gold goes up, the evaluator looks at the work, its verdict is bound once."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.attempt import again, regrade, slots
from pytest_ageval.attempt.clock import within
from pytest_ageval.attempt.collect import collect
from pytest_ageval.attempt.harvest import destination
from pytest_ageval.attempt.mirror import mirror_of
from pytest_ageval.attempt.run import refuse_failed
from pytest_ageval.attempt.scoring import isolated
from pytest_ageval.attempt.scripts import host_workspace
from pytest_ageval.attempt.verdict import Verdict, added_metrics, bind
from pytest_ageval.box import ARTIFACTS, EVALUATION, WORKSPACE
from pytest_ageval.errors import AgevalError, BoxError, EvaluatorError, ExecutorError, ScriptFault

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt


#: Seconds beyond its limit that the phase gets to end the evaluator and say so.
GRACE = 10.0


async def evaluate(attempt: Attempt) -> None:
    """Find and bind the verdict, within the limit. Raises EvaluatorError, BoxError or ScriptFault."""
    if attempt.past is not None and again.verdict_known(attempt):
        return
    if not attempt.writers_stopped:
        raise EvaluatorError("seal_invariant", "the run phase has not been sealed")
    budget = attempt.clock.budget or 0
    too_long = EvaluatorError(
        "evaluate_timeout", f"the evaluation was not done after {budget:g} s (limits.evaluate_seconds)"
    )
    await within(attempt, find_verdict(attempt), too_long, GRACE)


async def find_verdict(attempt: Attempt) -> None:
    """Gold goes up, the evaluator runs, the verdict is bound."""
    await slots.call(attempt, "before_evaluate")
    inputs = {} if attempt.locked.harbor is not None else await bring_up(attempt)
    try:
        raw = await slots.call(attempt, "evaluation_runtime", inputs)
        verdict = bind(raw)
    except AgevalError as error:
        refuse_failed(attempt)
        name_causes(attempt, error)
        lost = attempt.scoring_failure
        if isinstance(error, ScriptFault) and lost is not None:
            # The evaluator ended on it; it is not the evaluator that is wrong.
            message = f"{lost.message}; {error.message}"
            raise BoxError(lost.title, message, phase="evaluate", detail=error.detail) from error
        raise
    attempt.bind(verdict)
    attempt.evidence.write_private("verdict.json", verdict.raw)
    if verdict.checks:
        attempt.evidence.write_checks(verdict.checks)
    after = await slots.call(attempt, "after_evaluate", verdict.raw)
    attempt.add_metrics(added_metrics(verdict, after))
    attempt.evidence.write_private("added.json", attempt.added_metrics)
    refuse_failed(attempt)
    refuse_unfounded_fail(attempt, verdict)


async def bring_up(attempt: Attempt) -> dict[str, Any]:
    """Collect, bring artifacts and gold into the box; the evaluator's inputs."""
    if attempt.source is None:  # otherwise it is in the harvest
        await collect(attempt)
    await materialise(attempt)
    if (mirror := mirror_of(attempt)) is not None:
        await mirror.pull()
    return await asyncio.to_thread(evaluator_inputs, attempt)


def refuse_unfounded_fail(attempt: Attempt, verdict: Verdict) -> None:
    """A FAIL after an agent's machinery, or the box of the judge, failed for good is an ERROR: work that
    could not be done, or not be looked at, is not work done badly. A PASS stands: it has positive evidence.
    """
    if verdict.status == "PASS":
        return
    if attempt.scoring_failure is not None:
        raise attempt.scoring_failure
    if attempt.source is not None:
        regrade.refuse_unfounded_fail(attempt.source)
    failures = {
        "run": attempt.service.failure if attempt.service is not None else None,
        "evaluate": attempt.judge_failure,
    }
    for phase, failure in failures.items():
        if failure is not None:
            title, _, message = (failure.error or "agent_failed").partition(": ")
            detail = failure.metadata.get("detail") or failure.metadata.get("stderr")
            raise ExecutorError(
                title,
                str(failure.metadata.get("message") or message),
                phase=phase,
                detail=None if detail is None else attempt.redactor.text(str(detail)),
            )


async def materialise(attempt: Attempt) -> None:
    """Bring the artifacts and gold into the box; until now gold was not there."""
    box, locked = attempt.raw_box, attempt.locked
    if any(attempt.evidence.artifacts.iterdir()):
        await box.upload(attempt.evidence.artifacts, ARTIFACTS)
        attempt.fact("artifacts_materialized", {"at": "evaluate"})
    trees = {artifact.id: artifact for artifact in locked.artifacts if artifact.kind == "tree"}
    for row in locked.evaluation.inputs:
        if row.target == "workspace" and row.artifact in trees:
            source = destination(trees[row.artifact], attempt.evidence.artifacts)
            if source.is_dir():
                await box.upload(source, WORKSPACE)
                attempt.fact("workspace_materialized", {"artifact": row.artifact})
    gold = locked.directory("evaluation")
    if gold is not None and not isolated(attempt):
        await box.upload(gold, EVALUATION)
        attempt.fact("gold_materialized", {"at": "evaluate"})


def evaluator_inputs(attempt: Attempt) -> dict[str, Any]:
    """The dict that ``evaluate(inputs)`` gets (the child adds ``agent`` and ``scoring``)."""
    return {
        "artifacts": artifact_paths(attempt.evidence.artifacts),
        "artifacts_dir": str(attempt.evidence.artifacts),
        "workspace_dir": str(host_workspace(attempt)),
        "evaluation_dir": str(gold_copy(attempt)),
        "inputs": [
            {
                key: value
                for key in ("artifact", "package_path", "target")
                if (value := getattr(row, key)) is not None
            }
            for row in attempt.locked.evaluation.inputs
        ],
        "parameters": dict(attempt.locked.parameters),
        "missing": missing_artifacts(attempt),
        "roles": sorted(attempt.locked.bindings),
    }


def artifact_paths(directory: Path) -> dict[str, str]:
    """Name (a file's stem, a directory's name) to absolute path, of all that the run left."""
    return {entry.name if entry.is_dir() else entry.stem: str(entry) for entry in sorted(directory.iterdir())}


def gold_directory(attempt: Attempt) -> Path:
    """Where the evaluator's copy of gold lies."""
    return attempt.raw_box.spec.work_dir / "gold"


def gold_copy(attempt: Attempt) -> Path:
    """A copy of ``evaluation/`` for the evaluator, so that it cannot change the data set."""
    source = attempt.locked.directory("evaluation")
    copy = gold_directory(attempt)
    if source is None:
        copy.mkdir(parents=True, exist_ok=True)
        return copy
    shutil.copytree(source, copy, symlinks=True, dirs_exist_ok=True)
    for path in copy.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)
    return copy


def missing_artifacts(attempt: Attempt) -> list[str]:
    """Declared artifacts that the run did not produce."""
    return [
        artifact.id
        for artifact in attempt.locked.artifacts
        if not destination(artifact, attempt.evidence.artifacts).exists()
    ]


def name_causes(attempt: Attempt, error: AgevalError) -> None:
    """Say what an evaluator may have crashed on: absent artifacts, an agent that failed before."""
    missing = missing_artifacts(attempt)
    if missing:
        error.message += f" (the run did not produce: {', '.join(missing)})"
    failure = attempt.service.failure if attempt.service is not None else None
    if failure is not None:
        told = attempt.redactor.text(f"{failure.error} {failure.metadata.get('message') or ''}".strip())
        error.message += f" (the agent had failed: {told})"
    error.args = (error.title, error.message)
