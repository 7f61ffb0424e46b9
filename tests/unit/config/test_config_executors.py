"""What each executor of ours declares, and what the lock therefore refuses."""

from __future__ import annotations

from typing import Any

import pytest
from config_helpers import DataSet

from pytest_ageval.config import known_agents, load_agent
from pytest_ageval.errors import ConfigError
from pytest_ageval.registry import Registry

#: (supported apis, model fields, sessions at once, resumable)
DECLARED: dict[str, tuple[set[str], set[str], bool, bool]] = {
    "openai-http": ({"chat", "responses"}, {"reasoning_effort", "timeout", "watchdog", "extra"}, True, True),
    "anthropic-http": ({"chat"}, {"reasoning_effort", "timeout", "watchdog", "extra"}, True, True),
    "acp": ({"chat"}, {"reasoning_effort", "timeout", "watchdog"}, True, True),
    "acp-oneshot": ({"chat"}, {"reasoning_effort", "timeout", "watchdog"}, True, False),
    "oracle": ({"chat"}, set(), True, False),
    "nop": ({"chat"}, set(), True, False),
}

OPTIONS = {"acp": "{command: [agent]}", "acp-oneshot": "{command: [agent]}"}


@pytest.fixture
def real(ds: DataSet, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-value")
    ds.registry = Registry()
    return ds


def lock(ds: DataSet, executor: str, model: str) -> Any:
    ds.task("agent_profiles: [{id: solver}]\n")
    ds.profiles(f"""\
        environment: local
        agent_profiles:
          solver: {{executor: {executor}, model: {model}, options: {OPTIONS.get(executor, "{}")}}}
    """)
    return ds.lock().bindings["solver"].model


@pytest.mark.parametrize("executor", DECLARED)
def test_what_is_declared(executor: str) -> None:
    cls = Registry().executor(executor)
    found = (set(cls.supported_apis), set(cls.supported_model_fields), cls.concurrent_sessions, cls.resumable)
    assert found == DECLARED[executor]


SETTINGS = {
    "reasoning_effort": "reasoning: {effort: high}",
    "timeout": "timeout: 5",
    "watchdog": "watchdog: 5",
    "extra": "extra: {temperature: 1}",
    "chat": "api: chat",
    "responses": "api: responses",
}

CASES = [
    (executor, name, name in apis | fields)
    for executor, (apis, fields, _, _) in DECLARED.items()
    for name in SETTINGS
    if executor not in ("oracle", "nop")
]


@pytest.mark.parametrize(("executor", "name", "supported"), CASES)
def test_a_setting_without_effect_is_refused(
    real: DataSet, executor: str, name: str, supported: bool
) -> None:
    text = f"{{id: m, {SETTINGS[name]}}}"
    if supported:
        assert lock(real, executor, text).id == "m"
        return
    with pytest.raises(ConfigError) as caught:
        lock(real, executor, text)
    assert caught.value.code == "model_config"
    assert (caught.value.pointer or "").startswith("/agent_profiles/solver/model/")


@pytest.mark.parametrize("executor", ["openai-http", "anthropic-http"])
def test_a_parameter_that_is_not_passed_on_is_refused(real: DataSet, executor: str) -> None:
    with pytest.raises(ConfigError) as caught:
        lock(real, executor, "{id: m, extra: {logit_bias: 1}}")
    assert (caught.value.code, "it passes: max" in str(caught.value)) == ("model_config", True)


def test_options_that_contradict_each_other_are_told_in_one_sentence(real: DataSet) -> None:
    real.task("agent_profiles: [{id: solver}]\n")
    real.profiles("environment: local\nagent_profiles: {solver: {executor: acp}}\n")
    with pytest.raises(ConfigError) as caught:
        real.lock()
    assert caught.value.code == "invalid_schema"
    assert caught.value.message == "options of acp: exactly one of entry and command is needed"


@pytest.mark.parametrize("executor", ["oracle", "nop"])
def test_an_executor_that_calls_no_model_takes_none(real: DataSet, executor: str) -> None:
    with pytest.raises(ConfigError) as caught:
        lock(real, executor, "{id: m}")
    assert caught.value.code == "model_config"


def test_an_executor_that_needs_options_is_no_agent_of_its_own() -> None:
    registry = Registry()
    assert "acp-oneshot" not in known_agents(registry)
    with pytest.raises(ConfigError, match="the executor acp-oneshot needs options"):
        load_agent("acp-oneshot", registry)
