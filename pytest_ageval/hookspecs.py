"""Every extension point, in the order in which an attempt reaches it.

A hook is an ordinary pytest hook: define it in a ``conftest.py`` (it then acts on the tasks below
that directory) or in a plugin. All of them take ``(attempt, value)``; a function may leave out what
it does not need.

*Chain* hooks pass a value through: write them with ``@pytest.hookimpl(wrapper=True)``, where
``yield`` gives the value of the inner ones and what you return travels on. Where the value is None,
a plain function is enough: every one is called, and what it returns means nothing. *Exclusive* hooks
are answered by the first one that does not return None.

A hook that raises fails its phase (the attempt is an ERROR), except where it says *fails open*: there
the exception becomes a warning in the evidence. Hooks run in a worker thread, so they may block.
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_ageval.attempt import Attempt
    from pytest_ageval.box import Box, BoxSpec, ImageLayer
    from pytest_ageval.executor import AgentResult, Executor, Session

# -- registration: read when the first task is collected -----------------------------------------


@pytest.hookspec
def pytest_ageval_box_kinds() -> Mapping[str, type[Box]]:
    """Further kinds of box, by the name that ``--box`` takes."""


@pytest.hookspec
def pytest_ageval_executors() -> Mapping[str, type[Executor]]:
    """Further executors, by the name that a profile's ``executor`` takes.

    An executor that needs no options is also an agent of that name for ``--agent``.
    """


# -- environment phase ---------------------------------------------------------------------------


@pytest.hookspec
def pytest_ageval_before_environment(attempt: Attempt, value: None) -> None:
    """Chain, None. Before the box starts."""


@pytest.hookspec
def pytest_ageval_image_layers(attempt: Attempt, value: None) -> Sequence[ImageLayer]:
    """What goes into the image of the box. Every one is called, and all that they return is stacked.

    Lowest are the layers of the roles' executors (the install of an agent). Called only for a kind of box
    that makes images; others are set up in ``environment_setup``.
    """


@pytest.hookspec(firstresult=True)
def pytest_ageval_environment(attempt: Attempt, value: BoxSpec) -> Box | None:
    """Exclusive. Make the (not yet started) box; the default takes the kind named in `value`."""


@pytest.hookspec
def pytest_ageval_after_environment_ready(attempt: Attempt, value: None) -> None:
    """Chain, None. The box runs and holds the task's ``data/``; agents' runtimes are being prepared."""


@pytest.hookspec
def pytest_ageval_environment_setup(attempt: Attempt, value: None) -> None:
    """Chain, None. Innermost is the task's own ``environment/setup.sh``."""


@pytest.hookspec
def pytest_ageval_after_environment(attempt: Attempt, value: None) -> None:
    """Chain, None. The environment phase is about to end."""


# -- run phase -----------------------------------------------------------------------------------


@pytest.hookspec
def pytest_ageval_before_run(attempt: Attempt, value: None) -> None:
    """Chain, None; fails open. Before run.py starts."""


@pytest.hookspec(firstresult=True)
def pytest_ageval_before_agent_open(attempt: Attempt, value: Mapping[str, Any]) -> Any:
    """Chain, dict of session_id, profile_id, executor, actor_id. Raising refuses the session."""


@pytest.hookspec(firstresult=True)
def pytest_ageval_executor(attempt: Attempt, value: Session) -> Executor | None:
    """Exclusive, for each session. Make the executor; the default takes the one that the role binds."""


@pytest.hookspec(firstresult=True)
def pytest_ageval_after_agent_open(attempt: Attempt, value: Mapping[str, Any]) -> Any:
    """Chain, as before_agent_open. The session is open."""


@pytest.hookspec(firstresult=True)
def pytest_ageval_before_agent_invoke(attempt: Attempt, value: str) -> str:
    """Chain, the prompt. What comes out is sent."""


@pytest.hookspec(firstresult=True)
def pytest_ageval_permission(attempt: Attempt, value: Mapping[str, Any]) -> str | None:
    """Exclusive. An agent asks for permission and the policy is ``ask``.

    `value` is the protocol's request (``toolCall``, ``options``). Return the ``optionId`` of one of
    its options; None cancels the request.
    """


@pytest.hookspec(firstresult=True)
def pytest_ageval_after_agent_invoke(attempt: Attempt, value: AgentResult) -> AgentResult:
    """Chain, the executor's result."""


@pytest.hookspec(firstresult=True)
def pytest_ageval_normalize_agent_result(attempt: Attempt, value: AgentResult) -> AgentResult:
    """Chain, the result as the task's code will see it."""


@pytest.hookspec(firstresult=True)
def pytest_ageval_before_agent_close(attempt: Attempt, value: Mapping[str, Any]) -> Any:
    """Chain, dict of session_id, profile_id, executor."""


@pytest.hookspec(firstresult=True)
def pytest_ageval_after_agent_close(attempt: Attempt, value: Mapping[str, Any]) -> Any:
    """Chain, dict of session_id, profile_id, executor."""


@pytest.hookspec
def pytest_ageval_after_run(attempt: Attempt, value: None) -> None:
    """Chain, None; fails open. Writers are stopped and the artifacts are harvested."""


# -- evaluate phase ------------------------------------------------------------------------------


@pytest.hookspec
def pytest_ageval_before_evaluate(attempt: Attempt, value: None) -> None:
    """Chain, None. Before gold goes up."""


@pytest.hookspec(firstresult=True)
def pytest_ageval_evaluation_runtime(attempt: Attempt, value: Mapping[str, Any]) -> Any:
    """Exclusive. Get the raw verdict (a dict with ``status``); the default runs evaluator.py in a child.

    `value` are the evaluator's inputs.
    """


@pytest.hookspec(firstresult=True)
def pytest_ageval_after_evaluate(attempt: Attempt, value: dict[str, Any]) -> dict[str, Any]:
    """Chain, a copy of the bound verdict. New keys under ``metrics`` are kept; nothing else can change."""


# -- record phase --------------------------------------------------------------------------------


@pytest.hookspec(firstresult=True)
def pytest_ageval_trajectory_collect(attempt: Attempt, value: dict[str, Any]) -> dict[str, Any]:
    """Chain; fails open. One invocation: prompt, events, final_text, usage, ok, error, metadata, extra."""


@pytest.hookspec(firstresult=True)
def pytest_ageval_trajectory_enrich(attempt: Attempt, value: dict[str, Any]) -> dict[str, Any]:
    """Chain; fails open. As trajectory_collect, after it."""


@pytest.hookspec(firstresult=True)
def pytest_ageval_trajectory_seal(
    attempt: Attempt, value: Sequence[Sequence[Mapping[str, Any]]]
) -> Path | None:
    """Exclusive. Write the rows of all turns to trajectory.jsonl and return its path."""


@pytest.hookspec(firstresult=True)
def pytest_ageval_summary_enrich(attempt: Attempt, value: dict[str, Any]) -> dict[str, Any]:
    """Chain; fails open. A dict that becomes ``extra`` of summary.json when it is not empty."""


# -- cleanup phase -------------------------------------------------------------------------------


@pytest.hookspec(firstresult=True)
def pytest_ageval_cleanup_report(attempt: Attempt, value: list[dict[str, Any]]) -> Any:
    """Chain; fails open. The facts of the cleanup, before they are written."""
