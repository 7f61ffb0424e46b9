"""The box in which the work is judged: for commands (``scoring.exec``) and for the sessions of judges.

That is the agent's own box, or, with ``evaluate_host.isolated``, a box of its own, made from another
recipe when it is first used: with the workspace, the artifacts and gold, and nothing else that the
agent left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.attempt.mirror import mirror_of
from pytest_ageval.box import ARTIFACTS, EVALUATION, WORKSPACE, Box
from pytest_ageval.errors import AgevalError, BoxError

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt

#: The scoring box of a task that names none.
MAIN = "main"
#: Options that a scoring box takes over from the agent's box; ``evaluate_host`` may set others.
INHERITED = ("platform", "user", "python_version")
#: Refusals that say something about the command or the work, not about the box.
OF_THE_COMMAND = frozenset(
    {
        "environment_capability_missing",
        "environment_exec_invalid",
        "environment_oom_killed",
        "environment_path_invalid",
    }
)
RECIPE = "environment/evaluate.Dockerfile"


async def scoring_exec(attempt: Attempt, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Run `argv`; `env` maps names to the *names* of variables whose values the parent looks up."""
    name = str(payload.get("name") or MAIN)
    if attempt.locked.evaluation.environments and name not in attempt.locked.evaluation.environments:
        known = ", ".join(sorted(attempt.locked.evaluation.environments))
        return _refused("unknown_evaluate_environment", f"{name!r}; known: {known}")
    env = {}
    for variable, locator in dict(payload.get("env") or {}).items():
        value = attempt.secret(str(locator))
        if value is None:
            return _refused("unset_locator", f"the environment variable {locator} is not set")
        env[variable] = value
    try:
        box = await scoring_box(attempt, name)
        mirror = mirror_of(attempt) if box is attempt.raw_box else None
        left, asked = attempt.clock.remaining(), payload.get("timeout_sec")
        timeout = min((t for t in (left, asked) if t is not None), default=None)
        if mirror is not None:
            await mirror.push()
        done = await box.exec(list(payload["argv"]), env=env, timeout=timeout)
        if mirror is not None:
            await mirror.pull()
    except BoxError as error:
        if error.title not in OF_THE_COMMAND:
            attempt.scoring_failure = error
        return _refused(error.title, error.message)
    attempt.scoring_failure = None
    attempt.fact("evaluate_exec", {"name": name, "exit_code": done.exit_code})
    return {
        "ok": True,
        "exit_code": done.exit_code,
        "stdout": done.stdout,
        "stderr": done.stderr,
        "truncated": done.truncated,
        "timed_out": done.timed_out,
    }


def _refused(error: str, message: str) -> dict[str, Any]:
    return {"ok": False, "error": error, "detail": message}


def isolated(attempt: Attempt) -> bool:
    """The work is judged in boxes of its own."""
    return attempt.locked.evaluate_host.get("isolated") is True


async def judge_box(attempt: Attempt, name: str | None, *, needs_box: bool) -> Box | None:
    """The box for a judge's session; None: the judge needs none, or works in the agent's box.

    `name` is what the evaluator asked for (``session(environment=)``). Raises AgevalError
    ``unknown_evaluate_environment``, since a name that does not exist must not become a score.
    """
    known = sorted(attempt.locked.evaluation.environments)
    if not isolated(attempt):
        if name not in (None, MAIN):
            raise unknown_environment(f"{name!r}; there are scoring boxes with evaluate_host.isolated only")
        return None
    if known and name not in (None, *known):
        raise unknown_environment(f"{name!r}; known: {', '.join(known)}")
    if not needs_box:
        return None
    if known and name is None:
        raise unknown_environment(
            "this judge works in a box and must be told in which: session(..., environment=NAME); "
            f"known: {', '.join(known)}"
        )
    return await scoring_box(attempt, name or MAIN)


def unknown_environment(words: str) -> AgevalError:
    """A session asks for a box that is none of its phase."""
    return AgevalError("unknown_evaluate_environment", words)


async def scoring_box(attempt: Attempt, name: str) -> Box:
    """The box `name`, started; opened when it is first asked for, once."""
    if not isolated(attempt):
        return attempt.raw_box
    if not attempt.locked.evaluation.environments:
        name = MAIN  # there is one, whatever it is called
    opening = attempt.scoring_boxes.get(name)
    if opening is None:
        number = len(attempt.scoring_boxes)
        opening = asyncio.ensure_future(_open(attempt, name, number))
        attempt.scoring_boxes[name] = opening
    return await asyncio.shield(opening)


def scoring_options(attempt: Attempt, name: str) -> dict[str, Any]:
    """The options of the box `name`: its recipe or image, what is inherited, what the profile says."""
    evaluation = attempt.locked.evaluation
    found = {k: v for k, v in attempt.locked.box.options.items() if k in INHERITED}
    found |= attempt.locked.evaluate_host.get("environment_options") or {}
    row = evaluation.environments.get(name)
    image = row.docker_image if row is not None else evaluation.docker_image
    if image is not None:
        return {**found, "image": image, "services": False}
    found |= {"dockerfile": RECIPE if row is None else row.dockerfile, "services": False}
    if row is not None and row.context:
        found["build_context"] = row.context
    return found


async def _open(attempt: Attempt, name: str, number: int) -> Box:
    origin = attempt.raw_box
    work = origin.spec.work_dir.with_name(f"{origin.spec.work_dir.name}-score{number}")
    layers = origin.spec.layers if judges_in_boxes(attempt) else ()
    spec = replace(origin.spec, work_dir=work, options=scoring_options(attempt, name), layers=layers)
    box = attempt.registry.box(spec.kind)(spec)
    try:
        await box.start()
        await _fill(attempt, box, work)
    except BaseException:
        await box.stop()
        raise
    attempt.fact("scoring_environment_started", {"name": name, "kind": box.kind})
    return box


def judges_in_boxes(attempt: Attempt) -> bool:
    """A role that played no part in the run works in a box: its agent must be in the image."""
    ran = {session.role for session in attempt.service.sessions.values()} if attempt.service else set()
    rest = (row for role, row in attempt.locked.bindings.items() if role not in ran)
    return any(attempt.registry.executor(row.executor).requires_box for row in rest)


async def _fill(attempt: Attempt, box: Box, work: Path) -> None:
    workspace = attempt.raw_box.host_path(WORKSPACE)
    if workspace is None:
        workspace = work / "from-the-agent"
        await attempt.raw_box.download(WORKSPACE, workspace)
    await box.upload(workspace, WORKSPACE)
    if any(attempt.evidence.artifacts.iterdir()):
        await box.upload(attempt.evidence.artifacts, ARTIFACTS)
    gold = attempt.locked.directory("evaluation")
    if gold is not None:
        await box.upload(gold, EVALUATION)


async def stop_scoring_boxes(attempt: Attempt) -> None:
    """Close all that were opened. Raises the first error, after all have been tried."""
    openings = list(attempt.scoring_boxes.values())
    attempt.scoring_boxes.clear()
    for opening in openings:
        opening.cancel()
    boxes = await asyncio.gather(*openings, return_exceptions=True)
    ended = await asyncio.gather(*(b.stop() for b in boxes if isinstance(b, Box)), return_exceptions=True)
    for error in ended:
        if isinstance(error, BaseException):
            raise error
