"""The agents that are known by name: what is installed, how it is started, how it is pointed at a model.

Versions are pinned exactly. Without a pin npm silently takes the newest version whose ``engines``
fits the Node at hand, so that two machines would run two agents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ageval_executors.acp.entries.base import PROVIDER, Entry, Python, Setup, Target
from ageval_executors.acp.entries.claude import CLAUDE, CLAUDE_NODE22
from ageval_executors.acp.entries.codex import CODEX, CODEX_APP_SERVER
from ageval_executors.acp.entries.gemini import GEMINI, QWEN
from ageval_executors.acp.entries.grok import GROK
from ageval_executors.acp.entries.opencode import OPENCODE
from ageval_executors.acp.entries.pi import PI
from ageval_executors.acp.entries.python_agents import FAST_AGENT, OPENHANDS, VIBE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ageval_executors.acp.usage import UsageRule

__all__ = ["ENTRIES", "PROVIDER", "Entry", "Python", "Setup", "Target", "custom_entry"]

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        CODEX,
        CODEX_APP_SERVER,
        CLAUDE,
        CLAUDE_NODE22,
        OPENCODE,
        PI,
        GEMINI,
        QWEN,
        GROK,
        VIBE,
        FAST_AGENT,
        OPENHANDS,
    )
}


def custom_entry(command: tuple[str, ...], packages: Mapping[str, str], usage: UsageRule) -> Entry:
    """Any other ACP agent. ``{model}`` and ``{base_url}`` in its command are filled in."""

    def configure(target: Target) -> Setup:
        url = target.base_url
        return Setup(env={"OPENAI_BASE_URL": url, "ANTHROPIC_BASE_URL": url} if url else {})

    return Entry(
        name="custom",
        argv=command,
        packages=packages,
        configure=configure,
        usage=usage,
        model_at_start=any("{model}" in part for part in command),
    )
