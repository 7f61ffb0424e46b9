"""The executors with a loop on the host hold the executor contract.

What the contract's model says in plain words is put into each loop's own language first.
"""

import importlib.util
import json
import shutil
from typing import Any, ClassVar

import pytest

pytest.register_assert_rewrite("pytest_ageval.testing.executor_contract")

from ageval_boxes.local import LocalBox  # noqa: E402
from ageval_executors.miniswe import MinisweExecutor  # noqa: E402
from ageval_executors.terminus import TerminusExecutor  # noqa: E402
from pytest_ageval.executor import ModelSpec  # noqa: E402
from pytest_ageval.testing.executor_contract import ExecutorContract  # noqa: E402
from pytest_ageval.testing.scripted_model import (  # noqa: E402
    AFTER_END,
    Calls,
    Shell,
    Text,
    ToolCall,
)

OPENAI = frozenset({"prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"})
SUBMIT = ToolCall("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})


CUT_OFF = "an answer that was cut off is told to the model, which tries again"
ONE_API = "Anthropic's API has one form; the other is refused when the session is made"


class LoopContract(ExecutorContract):
    """The contract with a model that speaks the loop's language."""

    box_class = LocalBox
    wire = "chat"
    own_tools = True
    loops = True
    reports = OPENAI


@pytest.mark.skipif(importlib.util.find_spec("minisweagent") is None, reason="pip install -e '.[miniswe]'")
class TestMiniswe(LoopContract):
    executor_class = MinisweExecutor
    cannot: ClassVar = {
        "test_stop_reason[limit-limit]": CUT_OFF,
    }

    def put(self, turn: Any) -> Any:
        if not isinstance(turn, Text) or turn.stop != "end":
            return turn
        return Calls([SUBMIT], text=turn.text, thought=turn.thought, tokens=turn.tokens)


class TestMinisweResponses(TestMiniswe):
    model = ModelSpec(id="scripted-model", api="responses")
    wire = "responses"


class TestMinisweAnthropic(TestMiniswe):
    cannot: ClassVar = {**TestMiniswe.cannot, "test_each_api_is_used": ONE_API}
    options: ClassVar = {"wire": "anthropic"}
    wire = "anthropic"
    reports = OPENAI - {"reasoning_tokens"}


IN_JSON = "what the model says is the JSON with its keystrokes, and is told as it is"
ON_SCREEN = "the model sees the terminal in its user's words, not in the result of a tool"


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
class TestTerminus(LoopContract):
    executor_class = TerminusExecutor
    options: ClassVar = {"confirm_completion": False}
    cannot: ClassVar = {
        "test_one_turn": IN_JSON,
        "test_odd_characters": IN_JSON,
        "test_sessions_at_once": IN_JSON,
        "test_work_in_the_workspace": ON_SCREEN,
        "test_a_command_that_fails_is_not_the_end": ON_SCREEN,
        "test_stop_reason[limit-limit]": CUT_OFF,
    }

    def put(self, turn: Any) -> Any:
        if isinstance(turn, Shell):
            return self.say([{"keystrokes": f"{turn.command}\n", "duration": 0.5}], done=False)
        if not isinstance(turn, Text) or turn.stop != "end":
            return turn
        return self.say([], turn, done=True)

    def say(self, commands: list[Any], turn: Text = AFTER_END, *, done: bool) -> Text:
        answer = {"analysis": turn.text, "plan": "", "commands": commands, "task_complete": done}
        return Text(json.dumps(answer), thought=turn.thought, tokens=turn.tokens, pieces=turn.pieces)
