"""Grok Build."""

from __future__ import annotations

from ageval_executors.acp.entries.base import Entry, Setup, Target, need_model, toml
from ageval_executors.acp.usage import UsageRule

# The package holds the program compressed; its install script would unpack it into ~/.grok.
_UNPACK = """
const fs = require("fs"), zlib = require("zlib");
const from = `node_modules/@xai-official/grok-${process.platform}-${process.arch}/bin/grok.br`;
fs.mkdirSync("bin", {recursive: true});
fs.writeFileSync("bin/grok", zlib.brotliDecompressSync(fs.readFileSync(from)), {mode: 0o755});
fs.unlinkSync(from);
"""


def _grok(target: Target) -> Setup:
    lines = [
        "[cli]",
        "auto_update = false",
        "use_leader = false",
        "[features]",
        "telemetry = false",
        "[telemetry]",
        "trace_upload = false",
    ]
    args: list[str] = ["agent", "--no-leader", "--always-approve"]
    if target.base_url:
        model = need_model(target, "grok-build")
        lines += [
            "[models]",
            f"default = {toml(model)}",
            f"[model.{toml(model)}]",
            f"model = {toml(model)}",
            f"name = {toml(model)}",
            f"base_url = {toml(target.base_url)}",
            'env_key = "XAI_API_KEY"',
            "context_window = 128000",
        ]
    if target.model:
        args += ["--model", target.model]
    if target.effort:
        args += ["--reasoning-effort", target.effort]
    return Setup(
        args=(*args, "stdio"),
        env={
            "GROK_HOME": f"{target.home}/.grok",
            "GROK_DISABLE_AUTOUPDATER": "1",
            "GROK_TELEMETRY_ENABLED": "false",
            "GROK_ERROR_REPORTING": "false",
        },
        files={".grok/config.toml": "\n".join([*lines, ""])},
    )


GROK = Entry(
    name="grok-build",
    packages={"@xai-official/grok": "1.0.41"},
    argv=("{runtime}/bin/grok",),
    finish=_UNPACK,
    key_env="XAI_API_KEY",
    default_url="https://api.x.ai/v1",
    moves_with_model=True,
    configure=_grok,
    usage=UsageRule("turn", input_has_cache=True, output_has_thought=True),
    effort_at_start=True,
    # With and without permission_mode = "ask" it ran a shell command and sent no request for permission.
    asks_permission=False,
    skills=(".grok/skills",),
    instructions=".grok/AGENTS.md",
    writes=(".grok/config.toml",),
    logins=(".grok/auth.json",),
)
