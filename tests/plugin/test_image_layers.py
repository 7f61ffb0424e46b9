"""What executors and plugins put into the image of a box, as a kind that makes images is told."""

from __future__ import annotations

import pytest

from .attempt_kit import facts, only

CONFTEST = """
import json
from pathlib import Path
from ageval_boxes.local import LocalBox
from ageval_executors.nop import NopExecutor
from pytest_ageval.box import ImageLayer

class Oven(LocalBox):
    kind = "oven"
    makes_images = True

    async def start(self):
        await super().start()
        self.warnings.append(", ".join(layer.name for layer in self.spec.layers))

class Baked(NopExecutor):
    kind = "baked"

    @classmethod
    async def image_layers(cls, options):
        return [ImageLayer("agent", "RUN agent")]

def pytest_ageval_box_kinds():
    return {"oven": Oven}

def pytest_ageval_executors():
    return {"baked": Baked}

def pytest_ageval_image_layers(attempt):
    return %s
"""


def oven(demo, answer: str = '[ImageLayer("top", "RUN top")]') -> None:
    demo.pytester.makeconftest(CONFTEST % answer)
    demo.task("t", roles=("solver", "critic"))


def test_those_of_the_agents_come_first_and_once(demo):
    oven(demo)
    (demo.root / "conftest.py").write_text(
        "from pytest_ageval.box import ImageLayer\n"
        "def pytest_ageval_image_layers(attempt):\n    return [ImageLayer('inner', 'RUN inner')]\n"
    )
    demo.pytest("datasets", "--box", "oven", "--agent", "baked").assert_outcomes(passed=1)
    assert facts(demo)["environment_warning"] == [{"message": "agent, top, inner"}]


def test_a_kind_that_makes_no_images_asks_nobody(demo):
    oven(demo, "1 / 0")
    demo.pytest("datasets", "--agent", "baked").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('ImageLayer("top", "RUN top")', "must return a list, not ImageLayer"),
        ('["RUN top"]', "must return a list of ImageLayer; found 'RUN top'"),
    ],
)
def test_what_is_no_layer_is_told(demo, answer, words):
    oven(demo, answer)
    demo.pytest("datasets", "--box", "oven", "--agent", "baked").assert_outcomes(errors=1)
    error = only(demo)["error"]
    assert (error["phase"], error["title"]) == ("environment", "plugin_contract")
    assert words in error["message"]
