"""The executor `acp-oneshot` holds the contract, as far as turns can that know nothing of each other.

What a single turn does is `acp`, which holds all of it; here stands what is different.
"""

import sys
from pathlib import Path
from typing import ClassVar

import pytest

pytest.register_assert_rewrite("pytest_ageval.testing.executor_contract")

from ageval_boxes.local import LocalBox  # noqa: E402
from ageval_executors.acp_oneshot import AcpOneshotExecutor  # noqa: E402
from pytest_ageval.testing.executor_contract.ending import Bounds, Cancel  # noqa: E402
from pytest_ageval.testing.executor_contract.lifecycle import Declaration, Lifecycle  # noqa: E402
from pytest_ageval.testing.executor_contract.resume import Resume  # noqa: E402
from pytest_ageval.testing.executor_contract.turns import Turns  # noqa: E402

AGENTS = Path(__file__).parents[1] / "support" / "acp_agents"
COMMAND = [sys.executable, "-u", str(AGENTS / "model_agent.py"), "{model}"]
FRESH = "each turn is a session of its own, which knows nothing of the earlier ones"


class TestAcpOneshot(Declaration, Lifecycle, Turns, Cancel, Bounds, Resume):
    executor_class = AcpOneshotExecutor
    wire = "chat"
    options: ClassVar = {"command": COMMAND, "usage": "turn", "usage_input_has_cache": True}
    box_class = LocalBox
    own_tools = True
    unknown_event = "totally_new_kind"
    cannot: ClassVar = dict.fromkeys(
        ("test_history_is_the_true_one", "test_every_prompt_goes_out", "test_unknown_things_are_not_fatal"),
        FRESH,
    )

    async def furnish(self, box: LocalBox) -> None:
        box.expose(AGENTS)
