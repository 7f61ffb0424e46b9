"""The executors of the worked examples and of the conftest template hold the executor contract."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.register_assert_rewrite("pytest_ageval.testing.executor_contract")

from ageval_boxes.local import LocalBox  # noqa: E402
from pytest_ageval.testing.executor_contract import ExecutorContract, Stage  # noqa: E402

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
sys.path += [str(EXAMPLES / "plugin-directory" / "src"), str(EXAMPLES / "plugin-package" / "src")]
sys.path += [str(EXAMPLES / "executor")]

import asking  # noqa: E402
from ageval_lab.recorded import RecordedExecutor  # noqa: E402
from lab.command import CommandExecutor  # noqa: E402

_spec = importlib.util.spec_from_file_location(
    "custom_executor_template", ROOT / "conftest_templates" / "custom_executor" / "conftest.py"
)
assert _spec is not None
assert _spec.loader is not None
template = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(template)


class TestCommand(ExecutorContract):
    executor_class = CommandExecutor
    options: ClassVar = {"command": ["cat"]}
    box_class = LocalBox


class TestRecorded(ExecutorContract):
    executor_class = RecordedExecutor

    def session_fields(self, stage: Stage) -> dict[str, Any]:
        lines = [json.dumps(text) for text in ("one", "two")]
        (stage.directory / "task" / "recorded.jsonl").write_text("\n".join(lines))
        return {}


class TestFunction(ExecutorContract):
    executor_class = template.FunctionExecutor


class TestAsking(ExecutorContract):
    executor_class = asking.AskingExecutor
    wire = "chat"
    streams = False
    reports = frozenset({"prompt_tokens", "completion_tokens"})
