"""The lock: what wins, what is refused, what the digest covers."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from config_helpers import DataSet, YardBox

from pytest_ageval.config import (
    JobOptions,
    Variant,
    known_agents,
    load_agent,
    load_dataset,
    load_task,
    unbound_roles,
)
from pytest_ageval.config.hashing import canonical_json, digest_of
from pytest_ageval.errors import ConfigError

Bind = Callable[..., None]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch, ds: DataSet) -> None:
    monkeypatch.setenv("MY_KEY", "sk-value-of-my-key")
    monkeypatch.setenv("PARROT_KEY", "sk-value-of-parrot-key")


def refusal(ds: DataSet, **options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        ds.lock(**options)
    return caught.value


# -- who plays, in what ---------------------------------------------------------------------------


def test_a_task_without_roles_needs_no_agent(ds: DataSet) -> None:
    ds.task()
    locked = ds.lock(boxes=("room",))
    assert (locked.bindings, locked.box.kind) == ({}, "room")
    assert locked.document["extension_bindings"][""]["services"]["environment"] == "room"


def test_the_profile_of_the_role_then_the_wildcard(ds: DataSet) -> None:
    ds.task("agent_profiles: [{id: solver}, {id: judge}]\n")
    ds.profiles("""\
        environment: room
        environment_options: {image: a}
        agent_profiles:
          "*": {executor: parrot, model: {id: any}}
          judge:
            executor: parrot
            model: {id: strict, api: chat, reasoning: {effort: max}, timeout: 5, extra: {seed: 1}}
            api_key: ${MY_KEY}
            base_url: https://api.example.org/v1
            options: {volume: 5, upstream_stall_seconds: 0}
            label: The Judge
        """)
    locked = ds.lock()
    solver, judge = locked.bindings["solver"], locked.bindings["judge"]
    assert (solver.model.id, solver.api_key, solver.base_url) == ("any", "PARROT_KEY", None)
    assert (judge.model.id, judge.model.reasoning_effort, judge.model.extra) == (
        "strict", "max", {"seed": 1},
    )  # fmt: skip
    assert (judge.api_key, judge.base_url) == ("MY_KEY", "https://api.example.org/v1")
    assert judge.options == {"volume": 5, "upstream_stall_seconds": 0}
    assert (locked.box.kind, locked.box.options) == ("room", {"image": "a"})


def test_an_agent_replaces_the_whole_profile_but_not_the_box(ds: DataSet, bound: Bind) -> None:
    bound("model: {id: mine}\noptions: {volume: 9}")
    ds.write("profiles.yaml", (ds.root / "profiles.yaml").read_text() + "environment_options: {image: a}\n")
    locked = ds.lock(agents=("parrot",), models=("m",))
    assert (locked.box.kind, locked.box.options) == ("room", {"image": "a"})
    assert (locked.bindings["solver"].options, locked.bindings["solver"].agent) == ({}, "parrot")
    assert locked.bindings["solver"].api_key == "PARROT_KEY"


def test_a_box_replaces_the_kind_but_not_the_agent(ds: DataSet, bound: Bind) -> None:
    bound("model: {id: mine}")
    ds.write("profiles.yaml", (ds.root / "profiles.yaml").read_text() + "environment_options: {image: a}\n")
    assert ds.lock(boxes=("room",)).box.options == {"image": "a"}
    other = ds.lock(boxes=("yard",), box_options=("room:image=b",))
    assert (other.box.kind, other.box.options) == ("yard", {})
    assert other.bindings["solver"].model.id == "mine"
    assert "left out" in next(row.note for row in other.resolution if row.pointer == "/environment")
    changed = ds.lock(box_options=("image=b", "windows=3"))
    assert changed.box.options == {"image": "b", "windows": 3}


def test_one_agent_for_one_role(ds: DataSet) -> None:
    ds.task("agent_profiles: [{id: solver}, {id: judge}]\n")
    ds.profiles("environment: yard\nagent_profiles: {}\n")
    locked = ds.lock(agents=("judge=tenant", "parrot"), models=("m",))
    assert [b.executor for b in locked.bindings.values()] == ["parrot", "tenant"]


def test_the_command_line_in_order_of_precision(ds: DataSet, bound: Bind) -> None:
    bound("model: {id: mine}")
    locked = ds.lock(
        models=("flag",),
        efforts=("low",),
        base_url="http://127.0.0.1:1/v1",
        sets=(
            '/agent_profiles/solver/model/id="set"',
            '/agent_profiles/*/model/id="star"',
            "/agent_profiles/solver/options/volume=7",
            "/agent_profiles/solver/model/extra/temperature=0.5",
        ),
    )
    binding = locked.bindings["solver"]
    assert (binding.model.id, binding.model.reasoning_effort) == ("set", "low")
    assert (binding.options, binding.model.extra) == ({"volume": 7}, {"temperature": 0.5})
    rows = {row.pointer: (row.source, row.note, row.value) for row in locked.resolution}
    assert rows["/agent_profiles/solver/model/id"] == ("cli", "--set", "set")
    assert rows["/agent_profiles/solver/base_url"] == ("cli", "--base-url", "http://127.0.0.1:1/v1")
    assert rows["/agent_profiles/solver/executor"] == ("profiles.yaml", "", "parrot")
    assert rows["/limits/wall_time_seconds"] == ("default", "", 300)


def test_an_error_names_the_option_that_set_the_value(ds: DataSet, bound: Bind) -> None:
    bound("model: {id: m}")
    error = refusal(ds, sets=("/agent_profiles/solver/model/watchdog=3",))
    assert (error.code, error.file, error.line) == ("model_config", "--set", None)
    error = refusal(ds, base_url="${MY_URL}")
    assert (error.code, error.file) == ("unset_variable", "--base-url")


def test_effort_without_a_model_id(ds: DataSet) -> None:
    """The package may leave the model to the agent itself and still take an effort."""
    ds.task("agent_profiles: [{id: solver}]\n")
    ds.write("pack/agent.yaml", PACKAGE.replace("id: own", "reasoning: {effort: low}"))
    ds.write("pack/overlays/config.toml", "")
    error = refusal(ds, agents=("./pack",), boxes=("room",))
    assert (error.code, error.pointer) == ("model_config", "/binding")  # this executor needs one
    locked = ds.lock(agents=("./pack",), boxes=("room",), models=("m",), efforts=("high",))
    assert locked.bindings["solver"].model.reasoning_effort == "high"


def test_parameters_and_limits_from_the_command_line(ds: DataSet) -> None:
    ds.task("parameters: {seed: 1}\nlimits: {wall_time_seconds: 0, evaluate_seconds: 50}\n")
    locked = ds.lock(
        boxes=("room",),
        sets=(
            "/parameters/seed=2",
            '/parameters/new/deep="x"',
            "/limits/wall_time_seconds=9",
            "/limits/evaluate_seconds=50",
            "/limits/agent_invocations=0",
        ),
    )
    assert locked.parameters == {"seed": 2, "new": {"deep": "x"}}
    assert locked.limits.wall_time_seconds == 9
    assert locked.limits.agent_invocations == 0
    assert load_task(ds.root / "tasks/t").parameters == {"seed": 1}  # the cached document is untouched


@pytest.mark.parametrize(
    "override",
    [
        "/limits/wall_time_seconds=301",
        "/limits/wall_time_seconds=0",  # no limit is the highest one
        "/limits/agent_invocations=2",
        "/limits/agent_concurrency=0",
        "/limits/wall_time_seconds=true",
        "/limits/wall_time_seconds=1.5",
        "/limits/wall_time_seconds=-1",
    ],
)
def test_a_limit_can_only_be_lowered(override: str, ds: DataSet) -> None:
    ds.task()
    error = refusal(ds, boxes=("room",), sets=(override,))
    assert (error.code, error.pointer) == ("invalid_override", override.split("=")[0])
    assert "can only be lowered" in error.message


def test_options_may_stand_in_the_executors_extension_row(ds: DataSet, bound: Bind) -> None:
    bound("model: {id: m}\nextensions: [{plugin: parrot, options: {volume: 4}}, {plugin: docker}]")
    assert ds.lock().bindings["solver"].options == {"volume": 4}


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "code", "pointer", "words"),
    [
        ("model: gpt-4", "model_config", "/model", "model: {id: NAME}"),
        ("model: {api: chat}", "model_config", "/model", "model.id is missing"),
        ("model: {id: m, api: completions}", "model_config", "/model/api", "chat, responses"),
        ("model: {id: m, api: responses}", "model_config", "/model/api", "it has: chat"),
        ("model: {id: m, watchdog: 3}", "model_config", "/model/watchdog", "has no watchdog"),
        ("model: {id: m, timeout: 0}", "model_config", "/model/timeout", "> 0"),
        ("model: {id: m, extra: {temperatur: 1}}", "model_config", "/model/extra/temperatur",
         "did you mean 'temperature'"),
        ("model: {id: m, temperature: 1}", "model_config", "/model/temperature", "known here"),
        ("options: {volume: 1}", "model_config", "", "needs a model"),
        ("model: {id: m}\noptions: {volum: 1}", "invalid_schema", "/options/volum",
         "did you mean 'volume'"),
        ("model: {id: m}\noptions: {volume: loud}", "invalid_schema", "/options/volume",
         "found the text 'loud'"),
        ("model: {id: m}\noptions: {reasoning_effort: high}", "model_config",
         "/options/reasoning_effort", "model.reasoning.effort"),
        ("model: {id: m}\noptions: {upstream_stall_seconds: -1}", "invalid_schema",
         "/options/upstream_stall_seconds", ">= 0"),
        ("model: {id: m}\nextensions: [{plugin: parrot, options: {volum: 1}}]", "invalid_schema",
         "/extensions/0/options/volum", "did you mean"),
        ("model: {id: m}\nextensions: [{plugin: parot}]", "unknown_plugin",
         "/extensions/0/plugin", "did you mean 'parrot'"),
        ("model: {id: m}\nextensions: [{plugin: room, options: {image: x}}]", "invalid_schema",
         "/extensions/0/options", "environment_options"),
        ("base_url: https://user:hunter2@host/v1", "invalid_schema", "/base_url", "user name"),
        ("base_url: host/v1", "invalid_schema", "/base_url", "http(s) URL"),
        ("base_url: https://host:port/", "invalid_schema", "/base_url", "not a URL"),
        ("model: {id: m}\nbase_url: ${MY_URL}", "unset_variable", "/base_url",
         "MY_URL is not set"),
        ("overlays: [../x]", "path_outside_package", "/overlays/0", "inside"),
        ("overlays: [data/x]", "path_outside_package", "/overlays/0", "under overlays/"),
        ("temperature: 0", "invalid_schema", "/temperature", "known here"),
    ],
)  # fmt: skip
def test_a_profile_is_refused(
    profile: str, code: str, pointer: str, words: str, ds: DataSet, bound: Bind
) -> None:
    bound(profile)
    error = refusal(ds)
    assert words in str(error)
    assert (error.code, error.pointer) == (code, "/agent_profiles/solver" + pointer)
    assert error.file == "profiles.yaml"
    assert error.line is not None
    assert error.line >= 4
    assert "hunter2" not in str(error)


@pytest.mark.parametrize("written", ["MY_KEY", "sk-0123456789abcdef", "${MY_KEY}x", "$MY_KEY"])
def test_a_key_is_only_ever_named(written: str, ds: DataSet) -> None:
    ds.task("agent_profiles: [{id: solver}]\n")
    ds.profiles(f"agent_profiles: {{solver: {{executor: parrot, api_key: '{written}'}}}}\n")
    error = refusal(ds)
    assert (error.code, error.pointer) == ("invalid_schema", "/agent_profiles/solver/api_key")
    assert "sk-0123456789abcdef" not in str(error)


@pytest.mark.parametrize(
    ("text", "code", "pointer", "words"),
    [
        ("agent_profiles: {}\n", "invalid_format", "/format", "format is missing"),
        ("format: ageval.profiles/2\nagent_profiles: {}\n", "invalid_format", "/format", "found"),
        ("format: ageval.profiles/1\n", "invalid_schema", "/", "agent_profiles is missing"),
        ("format: ageval.profiles/1\nagent_profiles: {}\nenvironment: room\nenvironment: yard\n",
         "invalid_yaml", None, "lines 3 and 4"),
        ("format: ageval.profiles/1\nagent_profiles: {}\nenviroment: room\n", "invalid_schema",
         "/enviroment", "did you mean 'environment'"),
        ("format: ageval.profiles/1\nagent_profiles: {a b: {}}\n", "invalid_schema",
         "/agent_profiles/a b", "'a b' must be text matching"),
        ("format: ageval.profiles/1\nagent_profiles: {}\nenvironment: rom\n", "unknown_box",
         "/environment", "did you mean 'room'"),
        ("format: ageval.profiles/1\nagent_profiles: {}\nenvironment: yard\n"
         "environment_options: {image: x}\n", "invalid_schema", "/environment_options/image",
         "unknown key 'image'"),
        ("format: ageval.profiles/1\nagent_profiles: {}\nenvironment: room\n"
         "evaluate_host: {isolated: true}\n", "unsupported_capability", "/evaluate_host",
         "needs the box docker"),
        ("format: ageval.profiles/1\nagent_profiles: {}\nenvironment: room\n"
         "evaluate_host: {isolated: yes}\n", "invalid_schema", "/evaluate_host/isolated",
         "write true or false"),
        ("format: ageval.profiles/1\nagent_profiles: {}\n"
         "evaluate_host: {environment_options: {image: x}}\n", "invalid_schema",
         "/evaluate_host/environment_options/image", "scoring box"),
    ],
)  # fmt: skip
def test_profiles_are_refused(text: str, code: str, pointer: str | None, words: str, ds: DataSet) -> None:
    ds.task()
    ds.write("profiles.yaml", text)
    error = refusal(ds)
    assert words in str(error)
    assert (error.code, error.pointer, error.file) == (code, pointer, "profiles.yaml")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"agents": ("parot",)}, "unknown_agent", "did you mean 'parrot'"),
        ({"agents": ("./nowhere",)}, "unknown_agent", "no agent package at ./nowhere"),
        ({"agents": ("oracle@9",)}, "unknown_agent", "version 0.1.0, not 9"),
        ({"boxes": ("rom",)}, "unknown_box", "did you mean 'room'"),
        ({"box_options": ("imag=x",)}, "invalid_schema", "did you mean 'image'"),
        ({"box_options": ("windows=many",)}, "invalid_schema", "found the text 'many'"),
        ({"profiles": "other.yaml"}, "invalid_option", "no file other.yaml"),
        ({"sets": ('/agent_profiles/solver/executor="parot"',)}, "unknown_executor", "'parrot'"),
        ({"sets": ("/agent_profiles/solver/model=5",)}, "model_config", "must be a mapping"),
        ({"sets": ('/agent_profiles/solver/api_key="x"',)}, "invalid_schema", "${NAME}"),
        ({"sets": ('/parameters/active_profile="x"',)}, "unknown_profile", "declared roles"),
        ({"sets": ("/parameters/a/b=1",)}, "invalid_override", "'a' is not a mapping"),
        ({"agents": ("tenant",)}, "unsupported_capability", "requires attach_stdio"),
    ],
)
def test_options_are_refused(
    options: dict[str, Any], code: str, words: str, ds: DataSet, bound: Bind
) -> None:
    bound("model: {id: m}")
    ds.task("agent_profiles: [{id: solver}]\nparameters: {a: 1}\n")
    error = refusal(ds, **options)
    assert error.code == code
    assert words in str(error)


def test_a_box_must_offer_what_the_task_requires(ds: DataSet) -> None:
    path = ds.task("requires: {environment: [exec, compose]}\n")
    error = refusal(ds, boxes=("room",))
    assert (error.code, error.file) == ("unsupported_capability", "tasks/t/task.yaml")
    assert error.pointer == "/requires/environment"
    assert "compose" in error.message
    assert "exec" not in error.message
    assert ds.lock(boxes=("yard",)).requires == {"exec", "compose"}
    assert path.is_file()


@pytest.mark.parametrize(
    ("more", "host", "refused"),
    [
        ("", "isolated: true", ("missing_reference", "/evaluation")),
        ("evaluation: {docker_image: x}", "isolated: true", None),
        ("evaluation: {environments: {a: {docker_image: x}}}", "isolated: true", None),
        (
            "evaluation: {environments: {a: {docker_image: x}}}",
            "isolated: false",
            ("unsupported_capability", "/evaluation/environments"),
        ),
        ("", "environment_options: {network: none}", None),
    ],
)
def test_a_scoring_box_needs_a_recipe(
    more: str,
    host: str,
    refused: tuple[str, str] | None,
    ds: DataSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ds.registry, "box", lambda kind: YardBox)  # the kind need not be installed
    ds.task(f"{more}\n")
    ds.profiles(f"environment: docker\nagent_profiles: {{}}\nevaluate_host: {{{host}}}\n")
    if refused is not None:
        error = refusal(ds)
        assert (error.code, error.pointer) == refused
    else:
        locked = ds.lock()
        assert locked.evaluate_host
        assert locked.document["locked"]["evaluate_host"] == locked.evaluate_host
    ds.write("tasks/t/environment/evaluate.Dockerfile", "FROM x")
    if not more:
        assert ds.lock().box.kind == "docker"


def test_classes_of_others_are_part_of_the_digest(ds: DataSet, bound: Bind) -> None:
    bound("model: {id: m}")
    plugins = ds.lock().document["locked"]["plugins"]
    assert set(plugins) == {"conftest:RoomBox", "conftest:ParrotExecutor"}
    assert plugins["conftest:RoomBox"].startswith("sha256:")  # of the file: it has no version


def test_nobody_plays(ds: DataSet) -> None:
    ds.task("agent_profiles: [{id: solver}, {id: judge}]\n")
    ds.profiles("environment: room\nagent_profiles: {judge: {executor: parrot, model: {id: m}}}\n")
    error = refusal(ds)
    assert (error.code, error.pointer) == ("missing_binding", "/agent_profiles/0/id")
    assert "--agent" in str(error)

    def unbound(variant: Variant, **options: Any) -> tuple[str, ...]:
        task, dataset = load_task(ds.root / "tasks/t"), load_dataset(ds.root)
        return unbound_roles(task, dataset, variant, JobOptions(**options))

    assert unbound(Variant()) == ("solver",)
    assert unbound(Variant(agent="parrot")) == ()
    assert unbound(Variant(role_agents=(("solver", "parrot"),))) == ()
    assert unbound(Variant(), sets=('/agent_profiles/*/executor="parrot"',)) == ()


# -- credentials ----------------------------------------------------------------------------------


def test_a_key_that_is_not_set_is_named(ds: DataSet, bound: Bind, monkeypatch: pytest.MonkeyPatch) -> None:
    bound("model: {id: m}")
    monkeypatch.delenv("MY_KEY")
    error = refusal(ds)
    assert error.code == "unset_variable"
    assert "MY_KEY is not set" in error.message
    # A server on this machine may need none, and .env counts.
    assert ds.lock(base_url="http://localhost:8000/v1").bindings["solver"].api_key == "MY_KEY"
    ds.write(".env", "MY_KEY=sk-from-env-file\n")
    assert "sk-from-env-file" not in json.dumps(ds.lock().document)


def test_no_value_of_a_secret_is_in_the_lock(
    ds: DataSet, bound: Bind, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound("model: {id: m}\nbase_url: ${MY_URL}")
    monkeypatch.setenv("MY_URL", "https://host.example/secret-path")
    locked = ds.lock()
    text = json.dumps(locked.document) + repr(locked)
    assert "sk-value-of-my-key" not in text
    assert "secret-path" not in text
    assert locked.bindings["solver"].base_url == "${MY_URL}"
    assert locked.document["locked"]["agent_profiles"]["solver"]["base_url_host"] == "host.example"
    monkeypatch.setenv("MY_URL", "https://u:hunter2@host.example/")
    error = refusal(ds)
    assert "password" in error.message
    assert "hunter2" not in str(error)


def test_the_executors_own_variable_gives_the_address(
    ds: DataSet, bound: Bind, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound("model: {id: m}")
    assert ds.lock().bindings["solver"].base_url is None
    monkeypatch.setenv("PARROT_URL", "http://127.0.0.1:9/")
    assert ds.lock().bindings["solver"].base_url == "${PARROT_URL}"


# -- agent packages -------------------------------------------------------------------------------

PACKAGE = """\
format: ageval.agent/1
agent_id: me/mine
version: "2"
binding:
  executor: parrot
  model: {id: own}
  overlays: [overlays/config.toml]
"""


def test_a_package_by_path(ds: DataSet, bound: Bind) -> None:
    bound("model: {id: m}")
    ds.write("pack/agent.yaml", PACKAGE)
    error = refusal(ds, agents=("./pack",))
    assert error.code == "missing_reference"
    overlay = ds.write("pack/overlays/config.toml", "a = 1")
    first = ds.lock(agents=("./pack",))
    binding = first.bindings["solver"]
    assert (binding.model.id, binding.agent) == ("own", "me/mine")
    assert binding.agent_ref is not None
    assert binding.agent_ref.startswith("me/mine@2+sha256:")
    assert binding.overlay_root is not None
    assert (binding.overlay_root / binding.overlays[0]).read_text() == "a = 1"
    overlay.write_text("a = 2")
    assert ds.lock(agents=("pack/agent.yaml",)).digest != first.digest


@pytest.mark.parametrize(
    ("old", "new", "pointer"),
    [
        ("agent/1", "agent/2", "/format"),
        ("me/mine", "Me", "/agent_id"),
        ('"2"', "2", "/version"),
        ("  executor: parrot\n", "", "/binding"),
        ("executor: parrot", "executor: parrot\n  agent_ref: x", "/binding/agent_ref"),
        ("{id: own}", "own", "/binding/model"),
    ],
)
def test_a_package_is_refused(old: str, new: str, pointer: str, ds: DataSet) -> None:
    path = ds.write("pack/agent.yaml", PACKAGE.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_agent(str(path), ds.registry)
    assert (caught.value.pointer, caught.value.file) == (pointer, "pack/agent.yaml")


def test_known_agents(ds: DataSet) -> None:
    known = known_agents(ds.registry)
    assert {"openai-http", "anthropic-http", "oracle", "nop", "parrot", "tenant"} <= set(known)
    assert load_agent("oracle@0.1.0", ds.registry).binding["executor"] == "oracle"


# -- the digest -----------------------------------------------------------------------------------


def test_the_digest_is_over_the_locked_part_and_stable(ds: DataSet, bound: Bind) -> None:
    bound("model: {id: m}")
    first, second = ds.lock(), ds.lock()
    assert first.digest == second.digest == digest_of(first.document["locked"])
    assert json.loads(canonical_json(first.document)) == json.loads(json.dumps(first.document))
    assert first.document["locked"]["limits"]["wall_time_seconds"] == 300


@pytest.mark.parametrize(
    "change",
    [
        {"models": ("other",)},
        {"efforts": ("low",)},
        {"base_url": "http://127.0.0.1:1/"},
        {"sets": ("/parameters/x=1",)},
        {"sets": ("/limits/wall_time_seconds=1",)},
        {"sets": ("/agent_profiles/solver/options/volume=1",)},
        {"box_options": ("image=x",)},
        {"boxes": ("yard",)},
    ],
    ids=str,
)
def test_the_digest_covers(change: dict[str, Any], ds: DataSet, bound: Bind) -> None:
    bound("model: {id: m}")
    assert ds.lock(**change).digest != ds.lock().digest


@pytest.mark.parametrize("name", ["run.py", "evaluator.py", "evaluation/gold.txt", "notes.txt"])
def test_the_digest_covers_every_file(name: str, ds: DataSet, bound: Bind) -> None:
    bound("model: {id: m}")
    script = "def run(): 1\ndef evaluate(): {}\n"
    ds.write(f"tasks/t/{name}", script.format(1))
    before = ds.lock()
    ds.write(f"tasks/t/{name}", script.format(2))  # as long as before
    after = ds.lock()
    assert after.eval_digest != before.eval_digest
    assert after.digest != before.digest


def test_the_digest_does_not_cover(ds: DataSet, bound: Bind) -> None:
    bound("model: {id: m}\nlabel: A")
    ds.write("tasks/other/task.yaml", "broken: [")
    before = ds.lock(base_url="http://127.0.0.1:1/").digest
    ds.write("tasks/other/big.bin", "x")
    profiles = (ds.root / "profiles.yaml").read_text().replace("label: A", "label: B")
    ds.write("profiles.yaml", profiles)
    # Neither labels, other tasks, nor the port of a server.
    assert ds.lock(base_url="http://127.0.0.1:2/").digest == before


def test_attempts_share_their_lock(ds: DataSet, bound: Bind) -> None:
    bound("model: {id: m}")
    first, second = ds.locks(attempts=2)
    assert first.digest == second.digest


def test_locking_leaves_its_inputs_alone(ds: DataSet, bound: Bind) -> None:
    bound("model: {id: m, extra: {seed: 1}}\noptions: {volume: 1}")
    before = copy.deepcopy(ds.lock().document)
    ds.lock(sets=("/agent_profiles/solver/options/volume=5", "/agent_profiles/solver/model/extra/seed=2"))
    assert ds.lock().document == before
