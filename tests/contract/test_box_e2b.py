"""The e2b box holds the box contract, with E2B's own library against a server on loopback."""

from collections.abc import Iterator
from typing import ClassVar

import pytest

pytest.importorskip("e2b", reason="the extra e2b is not installed")
pytest.register_assert_rewrite("pytest_ageval.testing.box_contract")

import jail  # noqa: E402
from e2b_server import E2BServer  # noqa: E402

from ageval_boxes.e2b import E2BBox  # noqa: E402
from pytest_ageval.testing.box_contract import BoxContract  # noqa: E402

pytestmark = pytest.mark.skipif(jail.unusable() is not None, reason=str(jail.unusable()))


@pytest.fixture(scope="module")
def cloud() -> Iterator[E2BServer]:
    with E2BServer() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server
        assert server.sandboxes == {}, "every box was stopped, so no sandbox is left"


@pytest.mark.usefixtures("cloud")
class TestE2B(BoxContract):
    box_class = E2BBox
    options: ClassVar = {"template_id": "base"}
    broken_options: ClassVar = {"template_id": "no-such-template"}
