"""The public fixtures: thin synchronous faces on the engine.

Every one can be overridden in a conftest.py, as usual in pytest::

    @pytest.fixture
    def box(attempt):                       # a box that is made in another way
        return MyBox(attempt.box_spec())

    @pytest.fixture
    def executor(executor):                 # every agent of this directory, recorded
        return lambda session: Recording(executor(session))
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_ageval.attempt_face import AttemptFace
    from pytest_ageval.config import Variant
    from pytest_ageval.executor import Executor, Session
    from pytest_ageval.faces import BoxFace
    from pytest_ageval.testing.scripted_model.fixture import ModelFactory


@pytest.fixture
def ageval_variant(request: pytest.FixtureRequest) -> Variant:
    """Which agent, model, box and attempt this item is. Only for items of a task."""
    if not hasattr(request, "param"):
        raise pytest.UsageError("the fixture 'ageval_variant' exists for tasks only")
    found: Variant = request.param
    return found


@pytest.fixture
def attempt(request: pytest.FixtureRequest, ageval_variant: Variant) -> Iterator[AttemptFace]:
    """The attempt of this item: locked when the item is set up, cleaned up when it is torn down.

    Raises ConfigError when the task cannot be locked. A task whose roles nobody plays is skipped.
    """
    from pytest_ageval.attempt_face import AttemptFace

    face = AttemptFace.open(request.node)
    try:
        yield face
    finally:
        face.close()


@pytest.fixture
def executor(attempt: AttemptFace) -> Callable[[Session], Executor]:
    """Makes the executor of a session; by default the one that the role binds."""
    return attempt.make_executor


@pytest.fixture
def box(request: pytest.FixtureRequest) -> Iterator[BoxFace]:
    """The box. In a task: started, seeded and set up. In any other test: started and empty.

    An ordinary test gets a box of the first ``--box`` kind, or a local one; it is removed after
    the test. An override may return a box that is not started: the attempt starts it then.
    """
    from pytest_ageval.collection import TaskItem

    if isinstance(request.node, TaskItem):
        face = request.getfixturevalue("attempt")
        face.environment()
        yield face.box
        return
    from pytest_ageval.job import Job

    with tempfile.TemporaryDirectory(prefix="ageval-") as directory:
        made = Job.of(request.config).loose_box(request.node.name, Path(directory) / "box")
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture
def scripted_model() -> Iterator[ModelFactory]:
    """Starts model servers that answer from a script, and stops them after the test.

    ``model = scripted_model([Shell("make"), Text("done")])``; see `pytest_ageval.testing`.
    """
    from pytest_ageval.testing.scripted_model.fixture import serve_models

    yield from serve_models()
