"""pi."""

from __future__ import annotations

import json
from typing import Any

from ageval_executors.acp.entries.base import MODULES, NO_MCP, PROVIDER, Entry, Setup, Target, need_model
from ageval_executors.acp.usage import UsageRule
from pytest_ageval.errors import ExecutorError


def _pi(target: Target) -> Setup:
    settings: dict[str, Any] = {"quietStartup": True, "enableInstallTelemetry": False}
    files = {}
    if target.base_url:
        model = need_model(target, "pi")
        provider = {
            "baseUrl": target.base_url,
            "api": "openai-completions",
            "apiKey": "$AGEVAL_AGENT_KEY",
            "models": [
                {
                    "id": model,
                    "name": model,
                    "reasoning": bool(target.effort),
                    "input": ["text"],
                    "contextWindow": 128_000,
                    "maxTokens": 16_000,
                    "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
                }
            ],
        }
        files[".pi/agent/models.json"] = json.dumps({"providers": {PROVIDER: provider}}, indent=1)
        settings |= {"defaultProvider": PROVIDER, "defaultModel": model}
    elif target.model:
        provider_id, slash, name = target.model.partition("/")
        settings |= {"defaultProvider": provider_id, "defaultModel": name} if slash else {}
        if not slash:
            raise ExecutorError(
                "acp_model_unavailable",
                f"pi without a base_url takes a model as provider/model, not {target.model!r}",
            )
    files[".pi/agent/settings.json"] = json.dumps(settings, indent=1)
    env = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"}
    if target.base_url and target.api_key:
        env["AGEVAL_AGENT_KEY"] = target.api_key
    return Setup(env=env, files=files)


PI = Entry(
    name="pi",
    packages={"@earendil-works/pi-coding-agent": "1.6.0", "pi-acp": "0.0.34"},
    argv=("{node}", MODULES + "/pi-acp/dist/index.js"),
    node=(22, 19),
    path=(MODULES + "/.bin", "{node_dir}"),
    configure=_pi,
    usage=UsageRule("gauge"),
    asks_permission=False,
    journal=".pi/agent/sessions",
    mcp=NO_MCP,
    skills=(".pi/agent/skills",),
    instructions=".pi/agent/AGENTS.md",
    logins=(".pi/agent/auth.json",),
)
