"""Gemini CLI, and Qwen Code, which is a fork of it."""

from __future__ import annotations

import json
from typing import Any

from ageval_executors.acp.entries.base import MODULES, Entry, Setup, Target
from ageval_executors.acp.usage import UsageRule


def _settings(auth: str, model: str | None) -> str:
    settings: dict[str, Any] = {
        # The box is the sandbox, and the workspace is ours: nobody has to trust it first.
        "security": {"auth": {"selectedType": auth}, "folderTrust": {"enabled": False}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
    }
    if model:
        settings["model"] = {"name": model}
    return json.dumps(settings, indent=1)


def _gemini(target: Target) -> Setup:
    env = {
        "GEMINI_CLI_HOME": target.home,
        # It would start itself again with a larger heap: one more process, and seconds.
        "GEMINI_CLI_NO_RELAUNCH": "true",
    }
    if target.base_url:
        # The agent appends /v1beta/models/... itself.
        root = target.base_url.rstrip("/")
        env["GOOGLE_GEMINI_BASE_URL"] = root.removesuffix("/v1").removesuffix("/v1beta")
    auth = "oauth-personal" if target.login else "gemini-api-key"
    return Setup(env=env, files={".gemini/settings.json": _settings(auth, target.model)})


def _qwen(target: Target) -> Setup:
    env = {"QWEN_CODE_NO_RELAUNCH": "true"}
    if target.base_url:
        env["OPENAI_BASE_URL"] = target.base_url
    if target.model:
        env["OPENAI_MODEL"] = target.model
    auth = "qwen-oauth" if target.login else "openai"
    return Setup(
        args=("--auth-type", auth), env=env, files={".qwen/settings.json": _settings(auth, target.model)}
    )


GEMINI = Entry(
    name="gemini",
    packages={"@google/gemini-cli": "0.61.0"},
    argv=("{node}", MODULES + "/@google/gemini-cli/bundle/gemini.js", "--acp"),
    node=(20, 0),
    key_env="GEMINI_API_KEY",
    default_url="https://generativelanguage.googleapis.com",
    configure=_gemini,
    usage=UsageRule("turn", input_has_cache=True),
    quiet_mode="yolo",
    resume="clean",
    skills=(".gemini/skills",),
    instructions=".gemini/GEMINI.md",
    logins=(".gemini/oauth_creds.json",),
)

QWEN = Entry(
    # The newest version that runs on Node 20.
    name="qwen-code",
    packages={"@qwen-code/qwen-code": "0.15.10"},
    argv=("{node}", MODULES + "/@qwen-code/qwen-code/cli.js", "--acp"),
    node=(20, 0),
    key_env="OPENAI_API_KEY",
    default_url="https://api.openai.com/v1",
    configure=_qwen,
    usage=UsageRule("calls", input_has_cache=True, output_has_thought=True),
    quiet_mode="yolo",
    skills=(".qwen/skills",),
    instructions=".qwen/QWEN.md",
    logins=(".qwen/oauth_creds.json",),
)
