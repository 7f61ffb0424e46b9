"""The daytona box holds the box contract, with Daytona's own library against a server on loopback."""

from collections.abc import Iterator
from typing import ClassVar

import pytest

pytest.importorskip("daytona", reason="the extra daytona is not installed")
pytest.register_assert_rewrite("pytest_ageval.testing.box_contract")

import jail  # noqa: E402
from daytona_server import DaytonaServer  # noqa: E402

from ageval_boxes.daytona import DaytonaBox  # noqa: E402
from pytest_ageval.testing.box_contract import BoxContract  # noqa: E402

pytestmark = pytest.mark.skipif(jail.unusable() is not None, reason=str(jail.unusable()))


@pytest.fixture(scope="module")
def cloud() -> Iterator[DaytonaServer]:
    with DaytonaServer() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server
        assert server.sandboxes == {}, "every box was stopped, so no sandbox is left"


@pytest.mark.usefixtures("cloud")
class TestDaytona(BoxContract):
    box_class = DaytonaBox
    options: ClassVar = {"snapshot": "base"}
    broken_options: ClassVar = {"snapshot": "no-such-snapshot"}
