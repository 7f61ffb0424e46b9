"""``scoring.exec``: an evaluator runs a command in the box in which the agent worked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_ageval.attempt.mirror import mirror_of
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt


async def scoring_exec(attempt: Attempt, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Run `argv`; `env` maps names to the *names* of variables whose values the parent looks up."""
    name = str(payload.get("name") or "main")
    if attempt.locked.evaluation.environments and name not in attempt.locked.evaluation.environments:
        known = ", ".join(sorted(attempt.locked.evaluation.environments))
        return _refused("unknown_evaluate_environment", f"{name!r}; known: {known}")
    env = {}
    for variable, locator in dict(payload.get("env") or {}).items():
        value = attempt.secret(str(locator))
        if value is None:
            return _refused("unset_locator", f"the environment variable {locator} is not set")
        env[variable] = value
    left, asked = attempt.clock.remaining(), payload.get("timeout_sec")
    timeout = min((t for t in (left, asked) if t is not None), default=None)
    mirror = mirror_of(attempt)
    try:
        if mirror is not None:
            await mirror.push()
        done = await attempt.raw_box.exec(list(payload["argv"]), env=env, timeout=timeout)
        if mirror is not None:
            await mirror.pull()
    except BoxError as error:
        return _refused(error.title, error.message)
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
