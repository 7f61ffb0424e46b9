"""The executor `openhands` holds the executor contract, with the real SDK in a local box."""

import os
from typing import ClassVar

import pytest

pytest.register_assert_rewrite("pytest_ageval.testing.executor_contract")

from ageval_boxes.local import LocalBox  # noqa: E402
from ageval_executors.openhands import OpenHandsExecutor  # noqa: E402
from pytest_ageval.testing.executor_contract import ExecutorContract  # noqa: E402


@pytest.mark.real_agent
@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("AGEVAL_TEST_OPENHANDS") != "1",
    reason="installs 520 MB from PyPI: run with AGEVAL_TEST_OPENHANDS=1",
)
class TestOpenHands(ExecutorContract):
    executor_class = OpenHandsExecutor
    box_class = LocalBox
    wire = "chat"
    options: ClassVar = {"retries": 1, "start_timeout_seconds": 300}
    own_tools = True
    reports = frozenset({"prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"})
    agent_process = "worker.py"
    patience = 400.0
    cannot: ClassVar = {
        "test_fault_of_the_provider[error-in-stream]": "litellm takes an error with status 200 for an answer",
        "test_empty_reply": "the SDK asks the model again after an empty answer",
        "test_stop_reason[limit-limit]": "the SDK does not tell why an answer ended",
        "test_stop_reason[refused-refused]": "the SDK does not tell why an answer ended",
        "test_half_a_surrogate": "the SDK cannot write half a surrogate pair and fails",
    }
