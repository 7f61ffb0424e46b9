"""Claude Code, in two versions of its adapter."""

from __future__ import annotations

from dataclasses import replace

from ageval_executors.acp.entries.base import MODULES, Entry, Setup, Target
from ageval_executors.acp.usage import UsageRule

_ADAPTER = "@agentclientprotocol/claude-agent-acp"


def _claude(target: Target) -> Setup:
    env = {
        "CLAUDE_CONFIG_DIR": f"{target.home}/.claude",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        # Without it bypassPermissions is refused for root.
        "IS_SANDBOX": "1",
        # The default is about ten tries with backoff: more than a minute for a key that is wrong.
        "CLAUDE_CODE_MAX_RETRIES": "2",
    }
    if target.base_url:
        # The agent appends /v1/messages itself.
        env["ANTHROPIC_BASE_URL"] = target.base_url.rstrip("/").removesuffix("/v1")
    if target.model:
        env["ANTHROPIC_MODEL"] = target.model
    return Setup(env=env, directories=(".claude",))


CLAUDE = Entry(
    # The newest adapter that runs on Node 20.
    name="claude-code",
    packages={_ADAPTER: "0.49.0"},
    argv=("{node}", f"{MODULES}/{_ADAPTER}/dist/index.js"),
    node=(20, 0),
    key_env="ANTHROPIC_API_KEY",
    default_url="https://api.anthropic.com",
    configure=_claude,
    usage=UsageRule("turn", input_has_cache=False, output_has_thought=True),
    quiet_mode="bypassPermissions",
    skills=(".claude/skills",),
    instructions=".claude/CLAUDE.md",
    logins=(".claude/.credentials.json",),
)

CLAUDE_NODE22 = replace(CLAUDE, name="claude-code-node22", packages={_ADAPTER: "0.101.0"}, node=(22, 0))
