"""The executors that call a model over HTTP hold the executor contract, with a stream and without."""

from typing import ClassVar

import pytest

pytest.register_assert_rewrite("pytest_ageval.testing.executor_contract")

from ageval_executors.anthropic_http import AnthropicExecutor  # noqa: E402
from ageval_executors.openai_http import OpenAIExecutor  # noqa: E402
from pytest_ageval.executor import ModelSpec  # noqa: E402
from pytest_ageval.testing.executor_contract import ExecutorContract  # noqa: E402

OPENAI = frozenset({"prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"})


class TestChat(ExecutorContract):
    executor_class = OpenAIExecutor
    wire = "chat"
    takes_tools = True
    reports = OPENAI


class TestChatWithoutStream(TestChat):
    options: ClassVar = {"stream": False}
    streams = False


class TestResponses(TestChat):
    wire = "responses"
    model = ModelSpec(id="scripted-model", api="responses")


class TestResponsesWithoutStream(TestResponses):
    options: ClassVar = {"stream": False}
    streams = False


class TestAnthropic(ExecutorContract):
    executor_class = AnthropicExecutor
    wire = "anthropic"
    takes_tools = True
    reports = OPENAI - {"reasoning_tokens"}


class TestAnthropicWithoutStream(TestAnthropic):
    options: ClassVar = {"stream": False}
    streams = False
    cannot: ClassVar = {
        "test_arguments_that_cannot_be_parsed": "a document of this API holds arguments as an object",
    }
