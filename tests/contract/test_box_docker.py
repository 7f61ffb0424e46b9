"""The docker box holds the box contract, with shared files and with copied ones."""

from typing import ClassVar

import pytest

pytest.register_assert_rewrite("pytest_ageval.testing.box_contract")

from support.docker_engine import needs_docker  # noqa: E402

from ageval_boxes.docker_box import DockerBox  # noqa: E402
from pytest_ageval.testing.box_contract import BoxContract  # noqa: E402

pytestmark = [pytest.mark.docker, needs_docker]


class CopyingBox(DockerBox):
    """As on an engine that does not see this machine's files."""

    def _choose_user(self, engine) -> None:
        super()._choose_user(engine)
        self._shared = False


class TestSharedFiles(BoxContract):
    box_class = DockerBox


class TestCopiedFiles(BoxContract):
    box_class = CopyingBox


class TestRootInTheBox(BoxContract):
    box_class = DockerBox
    options: ClassVar = {"user": "root"}
