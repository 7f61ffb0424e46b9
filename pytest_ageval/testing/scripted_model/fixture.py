"""The `scripted_model` fixture: starts scripted models for a test and stops them after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_ageval.testing.scripted_model.model import ScriptedModel

#: Takes what `ScriptedModel` takes and returns it started.
ModelFactory = Callable[..., ScriptedModel]


def serve_models() -> Iterator[ModelFactory]:
    """The body of the fixture: yields a factory, then stops what it made and checks the scripts."""
    made: list[ScriptedModel] = []

    def start(*args: Any, **kwargs: Any) -> ScriptedModel:
        model = ScriptedModel(*args, **kwargs).start()
        made.append(model)
        return model

    try:
        yield start
    finally:
        for model in made:
            model.stop()
    for model in made:
        model.check()


@pytest.fixture
def scripted_model() -> Iterator[ModelFactory]:
    """Start a scripted model: ``model = scripted_model([Shell("make"), Text("done")])``."""
    yield from serve_models()
