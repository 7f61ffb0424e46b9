"""Agents from PyPI: Mistral Vibe, fast-agent and OpenHands."""

from __future__ import annotations

import json
import re

from ageval_executors.acp.entries.base import (
    PROVIDER,
    PYTHON,
    Entry,
    Python,
    Setup,
    Target,
    need_model,
    toml,
)
from ageval_executors.acp.usage import UsageRule
from pytest_ageval.errors import ExecutorError


def _vibe(target: Target) -> Setup:
    lines = ["enable_telemetry = false", "enable_update_checks = false", "enable_auto_update = false"]
    if target.base_url:
        model = need_model(target, "vibe")
        lines += [
            f"active_model = {toml(model)}",
            "[[providers]]",
            f'name = "{PROVIDER}"',
            f"api_base = {toml(target.base_url)}",
            'api_key_env_var = "MISTRAL_API_KEY"',
            'api_style = "openai"',
            'backend = "generic"',
            "[[models]]",
            f"name = {toml(model)}",
            f'provider = "{PROVIDER}"',
            f"alias = {toml(model)}",
        ]
    elif target.model:
        lines.append(f"active_model = {toml(target.model)}")
    return Setup(
        env={"VIBE_HOME": f"{target.home}/.vibe"},
        files={".vibe/config.toml": "\n".join([*lines, ""])},
    )


def _fast_agent(target: Target) -> Setup:
    env = {"LOGGER__TYPE": "none", "FAST_AGENT_HOME": f"{target.home}/.fast-agent"}
    model = target.model
    if target.base_url:
        model = f"generic.{need_model(target, 'fast-agent')}"
        env |= {"GENERIC_BASE_URL": target.base_url, "GENERIC_API_KEY": target.api_key or ""}
    elif target.api_key and target.key_name:
        env[target.key_name] = target.api_key
    args = ["--shell", "--name", "agent", *(("--model", model) if model else ())]
    return Setup(args=tuple(args), env=env)


# OpenHands reads its model from a file of its own shape only, which the agent's own code has to write.
_OPENHANDS = """
import json, os, sys
from pathlib import Path
from pydantic import SecretStr
from openhands.sdk import LLM
from openhands_cli.utils import get_default_cli_agent
llm = LLM(api_key=SecretStr(os.environ["LLM_API_KEY"]), usage_id="agent", **json.loads(sys.argv[1]))
path = Path.home() / ".openhands" / "agent_settings.json"
path.parent.mkdir(exist_ok=True)
path.write_text(get_default_cli_agent(llm).model_dump_json(context={"expose_secrets": True}))
sys.argv = ["openhands", "acp"]
from openhands_cli.entrypoint import main
main()
"""


def _openhands(target: Target) -> Setup:
    if not target.model:
        raise ExecutorError("acp_model_missing", "openhands needs a model: set model.id, or --model")
    llm = {"model": target.model, "num_retries": 2, "retry_min_wait": 1, "retry_max_wait": 4}
    if target.base_url:
        # litellm's word for any server of Chat Completions.
        llm |= {"model": f"openai/{target.model}", "base_url": target.base_url}
    if target.effort:
        llm["reasoning_effort"] = target.effort
    return Setup(
        args=("-c", _OPENHANDS, json.dumps(llm)),
        env={
            "OPENHANDS_SUPPRESS_BANNER": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "DO_NOT_TRACK": "1",
        },
    )


VIBE = Entry(
    name="vibe",
    packages={"mistral-vibe": "3.0.2"},
    python=Python((3, 12)),
    argv=(*PYTHON, "{runtime}/bin/vibe-acp"),
    key_env="MISTRAL_API_KEY",
    default_url="https://api.mistral.ai/v1",
    moves_with_model=True,
    configure=_vibe,
    usage=UsageRule("session", input_has_cache=True, output_has_thought=True),
    quiet_mode="auto-approve",
    skills=(".vibe/skills",),
    instructions=".vibe/AGENTS.md",
    writes=(".vibe/config.toml",),
)

FAST_AGENT = Entry(
    name="fast-agent",
    packages={"fast-agent-mcp": "0.10.48"},
    python=Python((3, 12)),
    argv=(*PYTHON, "{runtime}/bin/fast-agent-acp"),
    configure=_fast_agent,
    # It reports a line of text for people.
    usage=UsageRule("gauge"),
    asks_permission=False,
    # It ends a turn whose provider failed with `refusal`, as one that the model refused.
    failure_text=re.compile(r"I hit an internal error while calling the model: "),
)

OPENHANDS = Entry(
    name="openhands",
    packages={"openhands": "1.16.0"},
    # Its metadata asks for 3.12 exactly.
    python=Python((3, 12), (3, 13)),
    argv=PYTHON,
    key_env="LLM_API_KEY",
    configure=_openhands,
    usage=UsageRule("session", input_has_cache=True, output_has_thought=True),
    quiet_mode="always-approve",
    effort_at_start=True,
    writes=(".openhands/agent_settings.json",),
)
