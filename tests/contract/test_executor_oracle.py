"""The two ends of the scale hold of the executor contract what applies to an executor without a model."""

from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("pytest_ageval.testing.executor_contract")

from ageval_boxes.local import LocalBox  # noqa: E402
from ageval_executors.nop import NopExecutor  # noqa: E402
from ageval_executors.oracle import OracleExecutor  # noqa: E402
from pytest_ageval.testing.executor_contract import ExecutorContract, Stage  # noqa: E402

TURNS = "solver: [{text: one}, {run: 'echo made > made.txt'}, {text: three}]\n"


class TestOracle(ExecutorContract):
    executor_class = OracleExecutor
    box_class = LocalBox

    def session_fields(self, stage: Stage) -> dict[str, Any]:
        script = stage.directory / "task" / "solution" / "turns.yaml"
        script.parent.mkdir(exist_ok=True)
        script.write_text(TURNS)
        return {}

    def test_turns_of_the_script(self, play: Any, tmp_path: Path) -> None:
        async def body(stage: Stage) -> None:
            results = [await stage.invoke() for _ in range(4)]
            assert [result.text for result in results] == ["one", "", "three", ""]
            assert stage.told.text() == "onethree"

        play(body)


class TestNop(ExecutorContract):
    executor_class = NopExecutor
