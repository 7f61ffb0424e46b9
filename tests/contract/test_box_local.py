"""The local box holds the box contract, behind bubblewrap and without."""

from typing import ClassVar

import pytest

pytest.register_assert_rewrite("pytest_ageval.testing.box_contract")

from ageval_boxes import _bubblewrap  # noqa: E402
from ageval_boxes.local import LocalBox  # noqa: E402
from pytest_ageval.testing.box_contract import BoxContract  # noqa: E402


@pytest.mark.skipif(_bubblewrap.unusable() is not None, reason=str(_bubblewrap.unusable()))
class TestBehindBubblewrap(BoxContract):
    box_class = LocalBox
    options: ClassVar = {"isolation": "bwrap"}


class TestWithoutIsolation(BoxContract):
    box_class = LocalBox
    options: ClassVar = {"isolation": "none"}
    isolated = False
