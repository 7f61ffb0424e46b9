"""Codex, behind either of its two adapters."""

from __future__ import annotations

import json
import re
from typing import Any

from ageval_executors.acp.entries.base import MODULES, PROVIDER, Entry, Setup, Target, toml
from ageval_executors.acp.usage import UsageRule

_URL = "https://api.openai.com/v1"


def _codex(target: Target) -> Setup:
    policy = "never" if target.permission == "allow" else "untrusted"
    settings = [
        f'approval_policy="{policy}"',
        # The box is the sandbox. Codex's own cannot be nested in every kind of box.
        'sandbox_mode="danger-full-access"',
        "check_for_update_on_startup=false",
        "analytics.enabled=false",
        "feedback.enabled=false",
    ]
    if not target.login:
        # A provider of our own needs no login and no `authenticate`; the built-in one would.
        provider = (
            f'{{name="{PROVIDER}",base_url={toml(target.base_url or _URL)},wire_api="responses",'
            'env_key="OPENAI_API_KEY",request_max_retries=2,stream_max_retries=2}'
        )
        settings += [f'model_provider="{PROVIDER}"', f"model_providers.{PROVIDER}={provider}"]
    if target.model:
        settings.append(f"model={toml(target.model)}")
    if target.effort:
        settings.append(f"model_reasoning_effort={toml(target.effort)}")
    return Setup(
        args=tuple(part for setting in settings for part in ("-c", setting)),
        env={"CODEX_HOME": f"{target.home}/.codex"},
        directories=(".codex",),
    )


def _app_server(target: Target) -> Setup:
    config: dict[str, Any] = {
        "check_for_update_on_startup": False,
        "analytics": {"enabled": False},
        "feedback": {"enabled": False},
    }
    env = {"CODEX_HOME": f"{target.home}/.codex"}
    if not target.login:
        env["MODEL_PROVIDER"] = PROVIDER
        config["model_providers"] = {
            PROVIDER: {
                "name": PROVIDER,
                "base_url": target.base_url or _URL,
                "wire_api": "responses",
                "env_key": "OPENAI_API_KEY",
                "request_max_retries": 2,
                "stream_max_retries": 2,
            }
        }
    if target.model:
        config["model"] = target.model
    if target.effort:
        config["model_reasoning_effort"] = target.effort
    # In read-only mode a patch is asked for; a command that has to write must ask to leave the sandbox.
    env["INITIAL_AGENT_MODE"] = "agent-full-access" if target.permission == "allow" else "read-only"
    env["CODEX_CONFIG"] = json.dumps(config)
    return Setup(env=env, directories=(".codex",))


CODEX = Entry(
    # Of the two adapters this one is taken because it can be trusted: a provider's failure
    # is a JSON-RPC error with a type, where @agentclientprotocol/codex-acp ends the turn with
    # end_turn and puts the error into the answer. It is one native binary (no Node at run
    # time), ready in 0.3 s. The price: it reports no token counts, only a context size.
    name="codex",
    packages={"@zed-industries/codex-acp": "0.16.0"},
    argv=(MODULES + "/@zed-industries/codex-acp-{platform}/bin/codex-acp",),
    key_env="OPENAI_API_KEY",
    default_url=_URL,
    configure=_codex,
    usage=UsageRule("gauge"),
    effort_at_start=True,
    notice=re.compile(r"\s*Model metadata for `[^`]*` not found\.[^\n]*\s*"),
    skills=(".codex/skills",),
    instructions=".codex/AGENTS.md",
    logins=(".codex/auth.json",),
)

CODEX_APP_SERVER = Entry(
    # The current adapter, with token counts. A failed turn ends with end_turn; `Turn` reads the
    # thread's status, which says systemError.
    name="codex-app-server",
    packages={"@agentclientprotocol/codex-acp": "2.6.0", "@openai/codex": "0.166.0"},
    argv=("{node}", MODULES + "/@agentclientprotocol/codex-acp/dist/index.js"),
    node=(20, 0),
    path=("{node_dir}",),
    key_env="OPENAI_API_KEY",
    default_url=_URL,
    configure=_app_server,
    usage=UsageRule("turn", input_has_cache=False, output_has_thought=True),
    effort_at_start=True,
    notice=re.compile(r"\s*Model metadata for `[^`]*` not found\.[^\n]*\s*"),
    skills=(".codex/skills",),
    instructions=".codex/AGENTS.md",
    logins=(".codex/auth.json",),
)
