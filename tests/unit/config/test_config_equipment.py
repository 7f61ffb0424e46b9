"""MCP servers, skills, instructions, home files and logins: what is refused, and what the lock says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from config_helpers import DataSet

from pytest_ageval.config.locked import Binding
from pytest_ageval.errors import ConfigError
from pytest_ageval.registry import Registry

ROLE = "agent_profiles: [{id: solver}]\n"


def profile(ds: DataSet, more: str = "", entry: str = "codex") -> None:
    row = f"  solver:\n    executor: acp\n    options: {{entry: {entry}}}\n"
    lines = "".join(f"    {line}\n" for line in more.splitlines())
    ds.profiles(f"environment: yard\nagent_profiles:\n{row}{lines}")


def bound(ds: DataSet, **options: Any) -> Binding:
    return ds.lock(**options).bindings["solver"]


def refusal(ds: DataSet, **options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        ds.lock(**options)
    return caught.value


# -- MCP servers -----------------------------------------------------------------------------------


def test_servers_of_the_task_and_of_the_profile(ds: DataSet) -> None:
    ds.task(ROLE + "mcp_servers: [{name: docs, url: 'http://127.0.0.1:9/mcp'}]\n")
    profile(
        ds,
        "mcp_servers:\n"
        "  - {name: tickets, command: python3, args: ['{home}/t.py'], env: {T: '${T}', U: plain-text}}\n"
        "  - {name: old, url: 'http://h/sse', transport: sse, headers: {Authorization: 'Bearer ${T}'}}\n"
        "  - {name: harbor, url: 'http://h/', transport: streamable-http}\n",
    )

    servers = bound(ds).equipment.mcp_servers
    assert [(server.name, server.transport) for server in servers] == [
        ("docs", "http"),
        ("tickets", "stdio"),
        ("old", "sse"),
        ("harbor", "http"),
    ]
    document = json.dumps(ds.lock().document)
    assert '"T": "${T}"' in document
    assert "plain-text" not in document


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("{name: a}", "either command or url"),
        ("{name: a, command: x, url: 'http://h'}", "either command or url"),
        ("{name: a, command: x, headers: {A: b}}", "headers does not go with"),
        ("{name: a, url: 'http://h', args: [x]}", "args does not go with"),
        ("{name: a, command: x, transport: sse}", "transport sse does not fit"),
        ("{name: a, url: 'http://h', transport: stdio}", "transport stdio does not fit"),
        ("{name: a, url: 'ftp://h'}", "url"),
        ("{name: a, command: x, comand: y}", "did you mean 'command'"),
    ],
)
def test_rows_that_make_no_sense(ds: DataSet, row: str, told: str) -> None:
    ds.task(ROLE)
    profile(ds, f"mcp_servers: [{row}]")
    error = refusal(ds)
    assert error.code == "invalid_schema"
    assert told in str(error)


def test_a_name_twice(ds: DataSet) -> None:
    ds.task(ROLE + "mcp_servers: [{name: a, command: x}]\n")
    profile(ds, "mcp_servers: [{name: a, command: y}]")
    assert "given twice" in str(refusal(ds))


def test_an_agent_that_takes_no_server(ds: DataSet) -> None:
    ds.task(ROLE + "mcp_servers: [{name: a, command: x}]\n")
    profile(ds, entry="pi")
    error = refusal(ds)
    assert (error.code, error.pointer) == ("unsupported_equipment", "/mcp_servers/0")
    assert "task.yaml" in str(error.file)


def test_a_model_on_its_own_takes_no_server(ds: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROT_KEY", "k")
    ds.task(ROLE + "mcp_servers: [{name: a, command: x}]\n")
    ds.profiles("environment: yard\nagent_profiles: {solver: {executor: parrot, model: {id: m}}}\n")
    assert refusal(ds).code == "unsupported_equipment"


@pytest.mark.parametrize("agent", ["oracle", "nop"])
def test_what_needs_no_agent_is_given_nothing(ds: DataSet, agent: str) -> None:
    ds.task(ROLE + "mcp_servers: [{name: a, command: x}]\n")
    assert bound(ds, agents=(agent,), boxes=("yard",)).equipment.mcp_servers == ()


# -- files -----------------------------------------------------------------------------------------

FILES = "extensions:\n  - plugin: home-files\n    options: {files: [{src: %s, dest: %s}]}\n"


def test_files_of_a_profile_start_at_the_data_set(ds: DataSet) -> None:
    ds.task(ROLE)
    source = ds.write("tools/t.py", "print()")
    profile(ds, FILES % ("tools/t.py", "t.py"))
    (placed,) = bound(ds).equipment.files
    assert (placed.source, placed.dest, placed.root) == (source.resolve(), "t.py", "home")


def test_files_of_an_agent_package_start_at_the_package(ds: DataSet) -> None:
    ds.task(ROLE)
    ds.profiles("environment: yard\nagent_profiles: {}\n")
    source = ds.write("agents/mine/tools/t.py", "print()")
    binding = "binding:\n  executor: acp\n  options: {entry: codex}\n  "
    head = 'format: ageval.agent/1\nagent_id: mine\nversion: "1"\n'
    ds.write(
        "agents/mine/agent.yaml", head + binding + (FILES % ("tools/t.py", "t.py")).replace("\n", "\n  ")
    )
    found = bound(ds, agents=(str(ds.root / "agents" / "mine"),)).equipment.files
    assert [placed.source for placed in found] == [source.resolve()]


def test_the_digest_covers_what_the_files_hold(ds: DataSet) -> None:
    ds.task(ROLE)
    ds.write("t.py", "one")
    profile(ds, FILES % ("t.py", "t.py"))
    before = ds.lock().digest
    ds.write("t.py", "two!")
    assert ds.lock().digest != before


@pytest.mark.parametrize(
    ("source", "dest", "code"),
    [
        ("../t.py", "t.py", "path_outside_package"),
        ("/etc/passwd", "t.py", "path_outside_package"),
        ("link", "t.py", "path_outside_package"),
        ("missing.py", "t.py", "missing_reference"),
        ("t.py", "../t.py", "path_outside_package"),
        ("t.py", ".", "invalid_schema"),
    ],
)
def test_paths_that_lead_out_or_nowhere(ds: DataSet, source: str, dest: str, code: str) -> None:
    ds.task(ROLE)
    ds.write("t.py", "")
    (ds.root / "link").symlink_to("/etc/hostname")
    profile(ds, FILES % (source, dest))
    error = refusal(ds)
    assert error.code == code
    assert "/agent_profiles/solver/extensions/0/options/files/0" in str(error.pointer)


def test_a_file_that_the_agent_writes_itself(ds: DataSet) -> None:
    ds.task(ROLE)
    ds.write("c.toml", "")
    profile(ds, FILES % ("c.toml", ".vibe/config.toml"), entry="vibe")
    assert refusal(ds).code == "unsupported_equipment"


# -- skills and instructions -----------------------------------------------------------------------


def test_skills_go_where_each_agent_looks(ds: DataSet) -> None:
    ds.task(ROLE + "skills: [skills/count]\n")
    ds.write("tasks/t/skills/count/SKILL.md", "---\nname: count\n---\n")
    ds.write("more/SKILL.md", "---\nname: more\n---\n")
    ds.write("RULES.md", "be brief\n")
    options = "options: {skills: [{src: more}], instructions: RULES.md}"
    skills = f"extensions:\n  - plugin: agent-skills\n    {options}\n"
    for entry, root, rules in (
        ("codex", ".codex", ".codex/AGENTS.md"),
        ("claude-code", ".claude", ".claude/CLAUDE.md"),
        ("gemini", ".gemini", ".gemini/GEMINI.md"),
    ):
        profile(ds, skills, entry=entry)
        equipment = bound(ds).equipment
        assert [row.dest for row in equipment.skills] == [f"{root}/skills/count", f"{root}/skills/more"]
        assert [row.dest for row in equipment.instructions] == [rules]
    locked = ds.lock().document["locked"]["agent_profiles"]["solver"]["equipment"]
    where = [row["dest"] for row in locked["skills"]]
    assert where == ["home/.gemini/skills/count", "home/.gemini/skills/more"]
    profile(ds, skills.replace("RULES.md}", "RULES.md, dest_roots: [.agents/skills]}"))
    assert [row.dest for row in bound(ds).equipment.skills][-1] == ".agents/skills/more"


def test_an_agent_without_skills_or_instructions(ds: DataSet) -> None:
    ds.write("tasks/t/s/SKILL.md", "")
    ds.write("tasks/t/R.md", "")
    profile(ds, entry="fast-agent")
    for key in ("skills: [s]", "instructions: R.md"):
        ds.task(ROLE + key + "\n")
        assert refusal(ds).code == "unsupported_equipment"


def test_a_directory_that_is_no_skill(ds: DataSet) -> None:
    ds.task(ROLE + "skills: [s]\n")
    ds.write("tasks/t/s/README.md", "")
    profile(ds)
    assert "no SKILL.md" in str(refusal(ds))


def test_two_roles_that_want_different_files_at_one_place(ds: DataSet) -> None:
    ds.task("agent_profiles: [{id: solver}, {id: critic}]\n")
    ds.write("a", "a")
    ds.write("b", "b")
    rows = "".join(
        f"  {role}:\n    executor: acp\n    options: {{entry: {entry}}}\n"
        + "".join(f"    {line}\n" for line in (FILES % (source, "f")).splitlines())
        for role, entry, source in (("solver", "codex", "a"), ("critic", "gemini", "b"))
    )
    ds.profiles(f"environment: yard\nagent_profiles:\n{rows}")
    assert "share a box" in str(refusal(ds))


# -- signing in ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "option", "auth"),
    [
        ("", None, "env"),
        ("", "keyless", "keyless"),
        ("auth: keyless", None, "keyless"),
        ("auth: keyless", "env", "env"),
        ("auth: keyless-remote", "keyless", "keyless-remote"),
    ],
)
def test_the_option_and_the_profiles_word(ds: DataSet, word: str, option: str | None, auth: str) -> None:
    ds.task(ROLE)
    profile(ds, "api_key: ${MY_KEY}\n" + word)
    found = bound(ds, auth=option)
    assert found.auth == auth
    assert (found.api_key, found.logins) == (
        ("MY_KEY", ()) if auth == "env" else (None, (".codex/auth.json",))
    )
    locked = ds.lock(auth=option).document["locked"]["agent_profiles"]["solver"]
    assert locked.get("auth", "env") == auth


def test_a_login_is_not_for_another_address(ds: DataSet) -> None:
    ds.task(ROLE)
    profile(ds, "auth: keyless\nbase_url: http://127.0.0.1:9/v1")
    assert refusal(ds).code == "agent_auth"
    profile(ds)
    assert refusal(ds, auth="keyless", base_url="http://127.0.0.1:9/v1").code == "agent_auth"


def test_an_agent_without_a_login_file(ds: DataSet) -> None:
    ds.task(ROLE)
    profile(ds, entry="vibe")
    assert refusal(ds, auth="keyless").code == "agent_auth"


@pytest.mark.parametrize("box", ["ssh", "e2b", "daytona"])
def test_a_login_does_not_leave_this_machine_unasked(ds: DataSet, box: str) -> None:
    ds.task(ROLE)
    options = ("ssh:host=h",)
    profile(ds)
    assert refusal(ds, auth="keyless", boxes=(box,), box_options=options).code == "agent_auth"
    profile(ds, "auth: keyless")
    assert refusal(ds, boxes=(box,), box_options=options).code == "agent_auth"
    profile(ds, "auth: keyless-remote")
    assert bound(ds, boxes=(box,), box_options=options).auth == "keyless-remote"


def test_a_model_called_from_the_host_keeps_its_key(ds: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROT_KEY", "k")
    ds.task(ROLE)
    ds.profiles("environment: yard\nagent_profiles: {solver: {executor: parrot, model: {id: m}}}\n")
    assert bound(ds, auth="keyless").auth == "env"


@pytest.mark.parametrize("executor", ["oracle", "nop"])
def test_an_executor_that_calls_no_model_has_nowhere_to_sign_in(ds: DataSet, executor: str) -> None:
    ds.registry = Registry()
    ds.task(ROLE)
    ds.profiles("environment: local\nagent_profiles: {}\n")
    assert bound(ds, agents=(executor,), auth="keyless").auth == "env"


# -- permission ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "policy"), [(None, "allow"), ("deny", "deny"), ("ask", "ask"), ("hook", "ask")]
)
def test_the_policy_is_in_the_lock(ds: DataSet, word: str | None, policy: str) -> None:
    ds.task(ROLE)
    profile(ds)
    assert ds.lock(permission=word).document["locked"]["permission"] == policy
