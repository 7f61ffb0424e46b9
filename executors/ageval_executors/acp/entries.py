"""The agents that are known by name: what is installed, how it is started, how it is pointed at a model.

Versions are pinned exactly. Without a pin npm silently takes the newest version whose ``engines``
fits the Node at hand, so that two machines would run two agents.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ageval_executors.acp.usage import UsageRule
from pytest_ageval.errors import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_ageval.executor import PermissionPolicy

#: The id of the provider that we define in an agent's own configuration.
PROVIDER = "ageval"


@dataclass(frozen=True, slots=True)
class Target:
    """What an agent is to be pointed at. `home` is HOME as the agent spells it."""

    model: str | None
    effort: str | None
    base_url: str | None
    api_key: str | None
    key_name: str | None
    permission: PermissionPolicy
    home: str


@dataclass(frozen=True, slots=True)
class Setup:
    """What one entry adds to its start: arguments, variables, and texts of files by their path below HOME."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    directories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One agent. In `argv` and `path`, ``{runtime}`` is the install, ``{platform}`` is ``linux-x64`` or
    ``linux-arm64``, ``{node}`` the Node binary."""

    name: str
    argv: tuple[str, ...]
    packages: Mapping[str, str] = field(default_factory=dict)
    #: Lowest Node (major, minor) that runs it; None: it needs Node only to be installed, or not at all.
    node: tuple[int, int] | None = None
    #: The variable under which the agent looks for its key.
    key_env: str | None = None
    #: Where the agent goes without ``base_url``.
    default_url: str | None = None
    configure: Callable[[Target], Setup] = lambda target: Setup()
    #: Directories to put in front of PATH.
    path: tuple[str, ...] = ()
    usage: UsageRule = field(default_factory=UsageRule)
    #: The session mode in which it asks no permission; set when the policy is ``allow``.
    quiet_mode: str | None = None
    asks_permission: bool = True
    #: The model is fixed by `configure`; else it is chosen by a config option of the session.
    model_at_start: bool = True
    effort_at_start: bool = False
    #: What the adapter, not the model, says in an agent message: kept out of the answer.
    notice: re.Pattern[str] | None = None
    #: Where the agent keeps its own journal, below HOME, when it tells failures nowhere else.
    journal: str | None = None


def _toml(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)  # a JSON string is a TOML basic string


def _codex(target: Target) -> Setup:
    url = target.base_url or "https://api.openai.com/v1"
    policy = "never" if target.permission == "allow" else "untrusted"
    # A provider of our own needs no login and no `authenticate`; the built-in one would.
    provider = (
        f'{{name="{PROVIDER}",base_url={_toml(url)},wire_api="responses",env_key="OPENAI_API_KEY",'
        "request_max_retries=2,stream_max_retries=2}"
    )
    settings = [
        f'model_provider="{PROVIDER}"',
        f"model_providers.{PROVIDER}={provider}",
        f'approval_policy="{policy}"',
        # The box is the sandbox. Codex's own cannot be nested in every kind of box.
        'sandbox_mode="danger-full-access"',
        "check_for_update_on_startup=false",
        "analytics.enabled=false",
        "feedback.enabled=false",
    ]
    if target.model:
        settings.append(f"model={_toml(target.model)}")
    if target.effort:
        settings.append(f"model_reasoning_effort={_toml(target.effort)}")
    return Setup(
        args=tuple(part for setting in settings for part in ("-c", setting)),
        env={"CODEX_HOME": f"{target.home}/.codex"},
        directories=(".codex",),
    )


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


def _need_model(target: Target, entry: str) -> str:
    if not target.model:
        raise ExecutorError(
            "acp_model_missing",
            f"{entry} with a base_url needs a model: set model.id, or --model",
        )
    return target.model


def _opencode(target: Target) -> Setup:
    ask = "allow" if target.permission == "allow" else "ask"
    config: dict[str, Any] = {
        "share": "disabled",
        "autoupdate": False,
        "permission": {"bash": ask, "edit": ask, "webfetch": ask},
    }
    model = target.model
    if target.base_url:
        name = _need_model(target, "opencode")
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


def _pi(target: Target) -> Setup:
    settings: dict[str, Any] = {"quietStartup": True, "enableInstallTelemetry": False}
    files = {}
    if target.base_url:
        model = _need_model(target, "pi")
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


_MODULES = "{runtime}/node_modules"

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            # Of the two adapters this one is taken because it can be trusted: a provider's failure
            # is a JSON-RPC error with a type, where @agentclientprotocol/codex-acp ends the turn with
            # end_turn and puts the error into the answer. It is one native binary (no Node at run
            # time), ready in 0.3 s. The price: it reports no token counts, only a context size.
            name="codex",
            packages={"@zed-industries/codex-acp": "0.16.0"},
            argv=(_MODULES + "/@zed-industries/codex-acp-{platform}/bin/codex-acp",),
            key_env="OPENAI_API_KEY",
            default_url="https://api.openai.com/v1",
            configure=_codex,
            usage=UsageRule("gauge"),
            effort_at_start=True,
            notice=re.compile(r"\s*Model metadata for `[^`]*` not found\.[^\n]*\s*"),
        ),
        Entry(
            # The newest adapter that runs on Node 20; 0.101.0 needs Node 22 (option `packages`).
            name="claude-code",
            packages={"@agentclientprotocol/claude-agent-acp": "0.49.0"},
            argv=("{node}", _MODULES + "/@agentclientprotocol/claude-agent-acp/dist/index.js"),
            node=(20, 0),
            key_env="ANTHROPIC_API_KEY",
            default_url="https://api.anthropic.com",
            configure=_claude,
            usage=UsageRule("turn", input_has_cache=False, output_has_thought=True),
            quiet_mode="bypassPermissions",
        ),
        Entry(
            name="opencode",
            packages={"opencode-ai": "1.18.33"},
            # The platform's binary itself, so that no install script has to run.
            argv=(_MODULES + "/opencode-{platform}/bin/opencode", "acp"),
            key_env=None,
            configure=_opencode,
            usage=UsageRule("last_call", input_has_cache=False, output_has_thought=False),
        ),
        Entry(
            name="pi",
            packages={"@earendil-works/pi-coding-agent": "1.6.0", "pi-acp": "0.0.34"},
            argv=("{node}", _MODULES + "/pi-acp/dist/index.js"),
            node=(22, 19),
            path=(_MODULES + "/.bin", "{node_dir}"),
            configure=_pi,
            usage=UsageRule("gauge"),
            asks_permission=False,
            journal=".pi/agent/sessions",
        ),
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
