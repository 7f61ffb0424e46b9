"""The pytest plugin: names for `--box` and `--agent`. The classes are imported when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ageval.box import Box
    from pytest_ageval.executor import Executor


def pytest_ageval_box_kinds() -> dict[str, type[Box]]:
    """``--box limited``."""
    from ageval_lab.limited import LimitedBox

    return {"limited": LimitedBox}


def pytest_ageval_executors() -> dict[str, type[Executor]]:
    """``--agent recorded``."""
    from ageval_lab.recorded import RecordedExecutor

    return {"recorded": RecordedExecutor}
