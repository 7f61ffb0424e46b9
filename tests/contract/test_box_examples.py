"""The boxes of the worked examples hold the box contract."""

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("pytest_ageval.testing.box_contract")

from pytest_ageval.testing.box_contract import BoxContract  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
sys.path += [str(EXAMPLES / "plugin-directory" / "src"), str(EXAMPLES / "plugin-package" / "src")]

from ageval_lab.limited import LimitedBox  # noqa: E402
from lab.box import LowPriorityBox  # noqa: E402


class TestLowPriority(BoxContract):
    box_class = LowPriorityBox


class TestLimited(BoxContract):
    box_class = LimitedBox
