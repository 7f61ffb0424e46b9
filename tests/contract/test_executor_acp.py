"""The ACP executor holds the executor contract, with a small agent and with the real Codex."""

import shutil
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.register_assert_rewrite("pytest_ageval.testing.executor_contract")

from ageval_boxes.local import LocalBox  # noqa: E402
from ageval_executors.acp import AcpExecutor  # noqa: E402
from pytest_ageval.executor import ModelSpec  # noqa: E402
from pytest_ageval.testing.executor_contract import ExecutorContract  # noqa: E402
from pytest_ageval.testing.executor_contract.resume import Resume  # noqa: E402

AGENTS = Path(__file__).parents[1] / "support" / "acp_agents"
COMMAND = [sys.executable, "-u", str(AGENTS / "model_agent.py"), "{model}"]


class TestAcp(ExecutorContract):
    executor_class = AcpExecutor
    wire = "chat"
    options: ClassVar = {"command": COMMAND, "usage": "turn", "usage_input_has_cache": True}
    box_class = LocalBox
    own_tools = True
    asks_permission = True
    reports = frozenset({"prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"})
    agent_process = "model_agent.py"
    patience = 120.0
    unknown_event = "totally_new_kind"

    async def furnish(self, box: LocalBox) -> None:
        box.expose(AGENTS)

    def gone(self, token: dict[str, Any]) -> dict[str, Any]:
        return {**token, "native_session_id": "no-such-session"}


class TestAgentThatLoadsAnything(Resume):
    """It says yes to any session id; that it has none is seen from the replay."""

    executor_class = AcpExecutor
    wire = "chat"
    options: ClassVar = {"command": [*COMMAND, "any-id"]}
    box_class = LocalBox
    furnish = TestAcp.furnish
    gone = TestAcp.gone


@pytest.mark.real_agent
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="codex is installed with npm")
class TestCodex(ExecutorContract):
    executor_class = AcpExecutor
    wire = "responses"
    model = ModelSpec(id="gpt-5.5")
    options: ClassVar = {"entry": "codex"}
    box_class = LocalBox
    own_tools = True
    asks_permission = True
    agent_process = "codex-acp"
    patience = 120.0
    cannot: ClassVar = {
        "test_stop_reason[limit-limit]": "Codex ends the turn with end_turn at the token limit",
        "test_stop_reason[refused-refused]": "Codex ends the turn with end_turn after a refusal",
        "test_retry_after_is_passed_on": "Codex does not pass on how long the provider asks to wait",
        "test_half_a_surrogate": "Codex takes half a surrogate pair in a stream for a broken connection",
    }
    unknown_event = "available_commands_update"
    gone = TestAcp.gone
