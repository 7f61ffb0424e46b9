"""OpenCode."""

from __future__ import annotations

import json
from typing import Any

from ageval_executors.acp.entries.base import MODULES, PROVIDER, Entry, Setup, Target, need_model
from ageval_executors.acp.usage import UsageRule


def _opencode(target: Target) -> Setup:
    ask = "allow" if target.permission == "allow" else "ask"
    config: dict[str, Any] = {
        "share": "disabled",
        "autoupdate": False,
        "permission": {"bash": ask, "edit": ask, "webfetch": ask},
    }
    model = target.model
    if target.base_url:
        name = need_model(target, "opencode")
        config["enabled_providers"] = [PROVIDER]
        config["provider"] = {
            PROVIDER: {
                "npm": "@ai-sdk/openai-compatible",
                "name": PROVIDER,
                "options": {"baseURL": target.base_url, "apiKey": "{env:AGEVAL_AGENT_KEY}"},
                "models": {name: {"name": name}},
            }
        }
        model = f"{PROVIDER}/{name}"
    if model:
        config |= {"model": model, "small_model": model}
    env = {
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
    }
    if target.base_url and target.api_key:
        env["AGEVAL_AGENT_KEY"] = target.api_key
    return Setup(env=env)


OPENCODE = Entry(
    name="opencode",
    packages={"opencode-ai": "1.18.33"},
    # The platform's binary itself, so that no install script has to run.
    argv=(MODULES + "/opencode-{platform}/bin/opencode", "acp"),
    key_env=None,
    configure=_opencode,
    usage=UsageRule("last_call", input_has_cache=False, output_has_thought=False),
    skills=(".config/opencode/skills",),
    instructions=".config/opencode/AGENTS.md",
    logins=(".local/share/opencode/auth.json",),
)
