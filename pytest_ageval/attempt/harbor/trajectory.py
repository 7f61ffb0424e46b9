"""``/logs/agent/trajectory.json``: what the agent of a step did, in ATIF, where graders look for it.

It is ours for every agent that calls a model: one that the agent has written there itself is kept beside it,
since a grader is not to believe the agent. The oracle and other scripts leave their own.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_ageval.box import system_script
from pytest_ageval.config.harbor.document import AGENT_LOGS
from pytest_ageval.config.harbor.task import ROLE
from pytest_ageval.errors import BoxError
from pytest_ageval.export.source import Invocation, Recorded

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.config.harbor.document import HarborStep

NAME = "trajectory.json"
#: What the agent wrote under that name.
OF_AGENT = "trajectory-of-agent.json"
SECONDS = 60.0

#: Nothing that the agent made of the directory leads the file elsewhere.
_WRITE = """
d=$1; f=$d/$2
[ ! -L "${d%/*}" ] || { echo "${d%/*} is a link" >&2; exit 3; }
if [ -L "$d" ] || [ ! -d "$d" ]; then rm -rf "$d"; mkdir -p "$d"; fi
chmod 755 "$d"
if [ -f "$f" ] && [ ! -L "$f" ]; then mv -f -T "$f" "$d/$3" && echo moved; fi
rm -rf "$f"
cat > "$f" && chmod 644 "$f"
"""


def session_id(step: str, number: int) -> str:
    """Of the one session in which the agent of the step is asked."""
    return f"sess_{ROLE}_{step}_main_{number}"


async def leave(attempt: Attempt, step: HarborStep) -> None:
    """Write it into the box. What hinders that is a fact: a grader that needs it will say so."""
    executors = {attempt.registry.executor(b.executor) for b in attempt.locked.bindings.values()}
    if not any(executor.calls_model for executor in executors):
        return
    document = _document(attempt, step)
    if document is None:
        return
    script = system_script(_WRITE, AGENT_LOGS, NAME, OF_AGENT)
    data = json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
    try:
        done = await attempt.raw_box.exec(script, user="root", timeout=SECONDS, stdin=data)
        told = None if done.ok else done.stderr.strip()[:300]
    except BoxError as error:
        told = f"{error.title}: {error.message}"
    fact: dict[str, Any] = {"step": step.name, "steps": len(document["steps"])}
    if told is not None:
        fact["not_written"] = attempt.redactor.text(told)
    elif "moved" in done.stdout:
        fact["of_agent"] = OF_AGENT
    attempt.fact("atif_trajectory", fact)


def _document(attempt: Attempt, step: HarborStep) -> dict[str, Any] | None:
    """The session of `step`; None when nothing was asked in it."""
    from pytest_ageval.export import atif

    recorded = _Unsealed(attempt.evidence.root, attempt)
    task = attempt.locked.harbor
    assert task is not None
    session = session_id(step.name, task.steps.index(step))
    return next((each for name, each in atif.documents(recorded) if name == session), None)


class _Unsealed(Recorded):
    """An attempt that still runs: its trajectory is not a file yet."""

    def __init__(self, root: Any, attempt: Attempt) -> None:
        super().__init__(root)
        object.__setattr__(self, "_attempt", attempt)

    @cached_property
    def invocations(self) -> list[Invocation]:
        evidence = self._attempt.evidence  # type: ignore[attr-defined]
        running = [each for each in evidence.invocations if each.info.surface == "run"]
        return self.of_rows(row for each in running for row in each.rows(each.payload()))
