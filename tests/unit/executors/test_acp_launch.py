"""The options, the known entries, and how each is pointed at a model."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from acp_kit import Log, make_session

import pytest_ageval
from ageval_boxes.local import LocalBox
from ageval_executors.acp import AcpExecutor
from ageval_executors.acp.entries import ENTRIES, Target
from ageval_executors.acp.install import Runtime
from ageval_executors.acp.launch import DUMMY_KEY, Launch, build_launch, is_loopback
from ageval_executors.acp.options import AcpOptions
from pytest_ageval.box import BoxSpec
from pytest_ageval.errors import ExecutorError
from pytest_ageval.executor import ModelSpec

LOOPBACK = "http://127.0.0.1:9/v1"
SECRET = "sk-secret-value"


def launch(entry: str, *, permission: str = "allow", **more: Any) -> Launch:
    box = LocalBox(BoxSpec("local", "a", "t", Path("/w"), options={"isolation": "none"}))
    fields = {"api_key": SECRET, "api_key_name": "MY_KEY", **more}
    session = make_session(box, Log(), {"entry": entry}, **fields)
    runtime = Runtime("/run", "/node/bin/node", "linux-x64")
    return build_launch(session, ENTRIES[entry], runtime, box, permission=permission, extra_env={})  # type: ignore[arg-type]


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "exactly one of entry and command"),
        ({"entry": "codex", "command": ["x"]}, "exactly one of entry and command"),
        ({"entry": "codx"}, "unknown entry 'codx'; known: claude-code, claude-code-node22, codex"),
        ({"command": []}, "command is empty"),
        ({"command": ["x"], "packages": {"a": "^1.0.0"}}, "not an exact version"),
        ({"command": ["x"], "packages": {"a b": "1.0.0"}}, "not an exact version"),
        ({"command": ["x"], "start_timeout_seconds": 0}, "must be more than 0"),
        ({"entry": "codex", "usage": "turn"}, "usage is for a command"),
        ({"entry": "codex", "colour": 1}, "colour"),
        ({"entry": "codex", "permission": "maybe"}, "maybe"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r".") as caught:
        msgspec.convert(options, AcpOptions)

    assert told in str(caught.value)


def test_packages_of_the_options_replace_pins() -> None:
    options = AcpOptions(entry="pi", packages={"pi-acp": "9.9.9"})

    assert dict(options.resolve().packages) == {
        "@earendil-works/pi-coding-agent": "1.6.0",
        "pi-acp": "9.9.9",
    }


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_each_entry_has_an_agent_package(name: str) -> None:
    path = Path(pytest_ageval.__file__).parent / "agents" / name / "agent.yaml"
    document = yaml.safe_load(path.read_text())

    assert document["agent_id"] == name
    assert document["binding"]["executor"] == "acp"
    assert msgspec.convert(document["binding"]["options"], AcpOptions).entry == name
    key = ENTRIES[name].key_env
    assert key is None or document["binding"]["api_key"] == f"${{{key}}}"


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "here"),
    [
        (LOOPBACK, True),
        ("http://localhost:1", True),
        ("http://[::1]:1/v1", True),
        ("http://127.9.9.9", True),
        ("http://127.0.0.1.example.org", False),
        ("https://api.openai.com/v1", False),
        (None, False),
    ],
)
def test_loopback(url: str | None, here: bool) -> None:
    assert is_loopback(url) is here


def test_a_model_on_this_machine_needs_no_key() -> None:
    found = launch("codex", api_key=None, base_url=LOOPBACK)

    assert found.env["OPENAI_API_KEY"] == DUMMY_KEY


@pytest.mark.parametrize(
    ("entry", "key_name", "told"),
    [("codex", "MY_KEY", "MY_KEY"), ("claude-code", None, "ANTHROPIC_API_KEY"), ("pi", None, "NAME")],
)
def test_a_missing_key_is_named(entry: str, key_name: str | None, told: str) -> None:
    with pytest.raises(ExecutorError) as caught:
        launch(entry, api_key=None, api_key_name=key_name)

    assert caught.value.title == "acp_credentials_missing"
    assert told in caught.value.message


@pytest.mark.parametrize("entry", sorted(ENTRIES))
def test_a_key_is_in_the_environment_only(entry: str) -> None:
    found = launch(entry, base_url="https://models.example.org/v1", model=ModelSpec(id="m"))

    assert SECRET in found.env.values()
    configuration = {name: text for name, text in found.env.items() if text != SECRET}
    assert SECRET not in repr((found.argv, found.files, configuration))


# -- entries ---------------------------------------------------------------------------------------


def test_codex_is_configured_by_arguments() -> None:
    found = launch("codex", base_url=LOOPBACK, model=ModelSpec(id='gpt-"x"', reasoning_effort="high"))

    assert found.argv[0] == "/run/node_modules/@zed-industries/codex-acp-linux-x64/bin/codex-acp"
    settings = found.argv[2::2]
    assert r'model="gpt-\"x\""' in settings
    assert 'model_reasoning_effort="high"' in settings
    assert 'approval_policy="never"' in settings
    assert any(f'base_url="{LOOPBACK}"' in setting for setting in settings)
    assert found.env["OPENAI_API_KEY"] == SECRET
    assert found.directories == (f"{found.env['HOME']}/.codex",)


def test_codex_asks_when_someone_wants_to_be_asked() -> None:
    assert 'approval_policy="untrusted"' in launch("codex", permission="deny").argv


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_claude_gets_the_address_without_version(url: str) -> None:
    found = launch("claude-code", base_url=url, model=ModelSpec(id="claude-x"))

    assert found.env["ANTHROPIC_BASE_URL"] == "http://h:1"
    assert found.env["ANTHROPIC_MODEL"] == "claude-x"
    assert found.env["ANTHROPIC_API_KEY"] == SECRET
    assert found.argv[0] == "/node/bin/node"


def test_opencode_gets_a_provider_of_its_own() -> None:
    found = launch("opencode", base_url=LOOPBACK, model=ModelSpec(id="qwen"), permission="ask")

    config = json.loads(found.env["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == "ageval/qwen"
    assert config["provider"]["ageval"]["options"]["baseURL"] == LOOPBACK
    assert config["permission"]["bash"] == "ask"


def test_opencode_without_address_takes_the_providers_own_key() -> None:
    found = launch("opencode", model=ModelSpec(id="openai/gpt-x"))

    assert json.loads(found.env["OPENCODE_CONFIG_CONTENT"])["model"] == "openai/gpt-x"
    assert found.env["MY_KEY"] == SECRET


def test_pi_is_configured_by_files() -> None:
    found = launch("pi", base_url=LOOPBACK, model=ModelSpec(id="qwen"))

    models = json.loads(found.files["/attempt/home/.pi/agent/models.json"])
    assert models["providers"]["ageval"]["models"][0]["id"] == "qwen"
    settings = json.loads(found.files["/attempt/home/.pi/agent/settings.json"])
    assert settings["defaultModel"] == "qwen"
    assert found.env["PATH"].startswith("/run/node_modules/.bin:/node/bin:")


@pytest.mark.parametrize("entry", ["opencode", "pi", "grok-build", "vibe", "fast-agent", "openhands"])
def test_a_bare_address_needs_a_model(entry: str) -> None:
    with pytest.raises(ExecutorError, match="acp_model_missing"):
        launch(entry, base_url=LOOPBACK)


def test_codex_behind_its_app_server_is_configured_by_the_environment() -> None:
    found = launch("codex-app-server", base_url=LOOPBACK, model=ModelSpec(id="gpt-x", reasoning_effort="low"))

    config = json.loads(found.env["CODEX_CONFIG"])
    assert (config["model"], config["model_reasoning_effort"]) == ("gpt-x", "low")
    assert config["model_providers"][found.env["MODEL_PROVIDER"]]["base_url"] == LOOPBACK
    assert found.env["INITIAL_AGENT_MODE"] == "agent-full-access"
    asking = launch("codex-app-server", base_url=LOOPBACK, permission="deny")
    assert asking.env["INITIAL_AGENT_MODE"] == "read-only"


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1beta"])
def test_gemini_gets_the_address_without_version(url: str) -> None:
    found = launch("gemini", base_url=url, model=ModelSpec(id="gemini-x"))

    assert found.env["GOOGLE_GEMINI_BASE_URL"] == "http://h:1"
    settings = json.loads(found.files["/attempt/home/.gemini/settings.json"])
    assert settings["model"]["name"] == "gemini-x"
    assert settings["security"]["auth"]["selectedType"] == "gemini-api-key"
    assert settings["security"]["folderTrust"]["enabled"] is False


def test_qwen_code_is_configured_by_variables() -> None:
    found = launch("qwen-code", base_url=LOOPBACK, model=ModelSpec(id="q"))

    assert found.argv[-3:] == ("--acp", "--auth-type", "openai")
    assert (found.env["OPENAI_BASE_URL"], found.env["OPENAI_MODEL"]) == (LOOPBACK, "q")


@pytest.mark.parametrize(
    ("entry", "path", "base_url"),
    [
        ("vibe", ".vibe/config.toml", ("providers", 0, "api_base")),
        ("grok-build", ".grok/config.toml", ("model", 'q "x"', "base_url")),
    ],
)
def test_settings_in_toml_hold_any_name(entry: str, path: str, base_url: tuple[Any, ...]) -> None:
    found = launch(entry, base_url=LOOPBACK, model=ModelSpec(id='q "x"'))

    value: Any = tomllib.loads(found.files[f"/attempt/home/{path}"])
    for key in base_url:
        value = value[key]
    assert value == LOOPBACK


def test_agents_of_pypi_run_on_the_python_of_their_install() -> None:
    for entry in ("vibe", "fast-agent", "openhands"):
        found = launch(entry, base_url=LOOPBACK, model=ModelSpec(id="q"))
        assert found.argv[:2] == ("/run/bin/python3", "-sP")


# -- logins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", sorted(name for name, entry in ENTRIES.items() if entry.logins))
def test_with_a_login_there_is_no_key_and_no_provider_of_ours(entry: str) -> None:
    model = {"opencode": "openai/gpt-x", "pi": "openai/gpt-x"}.get(entry)
    found = launch(entry, login=True, api_key=None, api_key_name=None, model=ModelSpec(id=model))

    key = ENTRIES[entry].key_env
    assert key is None or key not in found.env
    assert "ageval" not in repr((found.argv, found.files)) + found.env.get("CODEX_CONFIG", "")


def test_gemini_signs_in_with_the_login() -> None:
    found = launch("gemini", login=True, api_key=None, api_key_name=None)

    settings = json.loads(found.files["/attempt/home/.gemini/settings.json"])
    assert settings["security"]["auth"]["selectedType"] == "oauth-personal"


@pytest.mark.parametrize("entry", sorted(ENTRIES))
@pytest.mark.parametrize("model", [None, "m-1"])
def test_an_agent_is_moved_from_its_own_address_only_where_it_still_starts(
    entry: str, model: str | None
) -> None:
    url = AcpExecutor.provider_url({"entry": entry}, model)
    if url is not None:
        # What the model gateway does.
        assert ENTRIES[entry].configure(
            Target(
                model=model,
                effort=None,
                base_url="http://127.0.0.1:9/s/t/v1",
                api_key="k",
                key_name="K",
                permission="allow",
                home="/h",
            )
        )
    elif model is not None:
        assert ENTRIES[entry].default_url is None
