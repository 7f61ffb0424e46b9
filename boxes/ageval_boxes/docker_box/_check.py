"""Whether docker boxes can be opened here, told without opening one."""

from __future__ import annotations

import importlib.util

from ageval_boxes.docker_box import _engine
from pytest_ageval.errors import BoxError

#: Seconds that an engine may take to answer.
SECONDS = 3


def why_not() -> str | None:
    """The reason and, in a second line, what mends it. Blocks for a few seconds at most."""
    if importlib.util.find_spec("docker") is None:
        return "the Docker SDK is not installed\npip install 'pytest-ageval[docker]'"
    try:
        _engine.ping(SECONDS)
    except BoxError as error:
        return (
            f"{error.message}\n"
            "systemctl start docker, be in the group docker (usermod -aG docker $USER), or set DOCKER_HOST"
        )
    return None
