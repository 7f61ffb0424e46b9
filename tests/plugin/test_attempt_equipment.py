"""What an agent finds in its box, and what becomes of a login file: a whole run with a fake agent."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from .attempt_kit import facts, only

AGENTS = Path(__file__).parents[1] / "support" / "acp_agents"
MACHINE = {"x86_64": "x64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
TOKEN = "login-token-abcdef123456"

RUN = """
async def run(ctx):
    for role in {roles}:
        reply = await ctx.agent.session(role).invoke("go")
        ctx.publish_json(role, {{"text": reply["text"], "error": reply["error"]}})
"""
EVALUATOR = """
import json, pathlib
def evaluate(inputs):
    return {"status": "PASS", "score": 1.0}
"""
MORE = """
artifacts: {publishable: [{id: solver, path: solver.json}, {id: critic, path: critic.json}]}
limits: {agent_invocations: 2}
"""

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="an install of codex asks for node")


@pytest.fixture
def install(tmp_path: Path) -> Path:
    """An install of codex and of opencode whose programs are a fake agent."""
    programs = (
        f"@zed-industries/codex-acp-linux-{MACHINE}/bin/codex-acp",
        f"opencode-linux-{MACHINE}/bin/opencode",
    )
    for name in programs:
        program = tmp_path / "install" / "node_modules" / name
        program.parent.mkdir(parents=True)
        script = tmp_path / "install" / "equipped_agent.py"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -u {script} "$@"\n')
        program.chmod(0o755)
    for name in ("agentkit.py", "equipped_agent.py"):
        shutil.copy(AGENTS / name, tmp_path / "install" / name)
    return tmp_path / "install"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's home, with a login of codex."""
    path = tmp_path / "operator"
    (path / ".codex").mkdir(parents=True)
    (path / ".codex" / "auth.json").write_text(json.dumps({"tokens": {"access_token": TOKEN}}))
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


def row(install: Path, entry: str = "codex", more: str = "") -> str:
    lines = f"executor: acp\noptions: {{entry: {entry}, runtime: {json.dumps(str(install))}}}\n{more}"
    return "".join(f"    {line}\n" for line in lines.splitlines())


def profiles(demo, **rows: str) -> None:
    roles = "".join(f"  {role}:\n{text}" for role, text in rows.items())
    demo.profiles(f"format: ageval.profiles/1\nenvironment: local\nagent_profiles:\n{roles}")


def told(demo, role: str = "solver") -> dict:
    (attempt,) = demo.attempts()
    reply = json.loads((attempt / "task-artifacts" / f"{role}.json").read_text())
    assert reply["error"] is None, reply
    return json.loads(reply["text"])


def task(demo, *roles: str, more: str = "") -> Path:
    run = RUN.format(roles=list(roles))
    return demo.task("t", run=run, evaluator=EVALUATOR, roles=roles, more=MORE + more)


def everything(root: Path) -> str:
    return "\n".join(
        path.read_bytes().decode("utf-8", "replace") for path in root.rglob("*") if path.is_file()
    )


def test_servers_files_skills_and_instructions_reach_the_agent(demo, install, monkeypatch):
    monkeypatch.setenv("PROBE_TOKEN", "probe-token-998877")
    monkeypatch.setenv("AGENT_KEY", "agent-key-112233")
    root = task(demo, "solver", more="skills: [skills/count]\ninstructions: RULES.md\n")
    (root / "skills" / "count").mkdir(parents=True)
    (root / "skills" / "count" / "SKILL.md").write_text("count twice\n")
    (root / "RULES.md").write_text("rule of the task\n")
    (demo.root / "RULES.md").write_text("rule of the profile\n")
    (demo.root / "tool.py").write_text("TOKEN = '${PROBE_TOKEN}'\n")
    more = """
api_key: ${AGENT_KEY}
mcp_servers:
  - {name: probe, command: python3, args: ["{home}/tool.py"], env: {PROBE_TOKEN: "${PROBE_TOKEN}"}}
  - {name: web, url: "http://127.0.0.1:9/mcp", headers: {Authorization: "Bearer ${PROBE_TOKEN}"}}
extensions:
  - plugin: home-files
    options: {files: [{src: tool.py, dest: tool.py}, {src: tool.py, dest: in/it.py, dest_root: workspace}]}
  - {plugin: agent-skills, options: {instructions: RULES.md}}
"""
    profiles(demo, solver=row(install, more=more))
    demo.pytest("datasets").assert_outcomes(passed=1)
    found = told(demo)
    stdio, web = found["servers"]
    home = found["env"]["HOME"]
    # What the agent said went through the redactor on its way into the evidence, not to the agent.
    assert stdio == {
        "name": "probe",
        "command": "python3",
        "args": [f"{home}/tool.py"],
        "env": [{"name": "PROBE_TOKEN", "value": "[REDACTED:PROBE_TOKEN]"}],
    }
    assert web["type"] == "http"
    assert web["headers"] == [{"name": "Authorization", "value": "Bearer [REDACTED:PROBE_TOKEN]"}]
    assert found["home"]["tool.py"] == "TOKEN = '[REDACTED:PROBE_TOKEN]'\n"
    assert "in/it.py" in found["workspace"]
    assert found["home"][".codex/skills/count/SKILL.md"] == "count twice\n"
    assert found["home"][".codex/AGENTS.md"] == "rule of the task\n\nrule of the profile\n"
    (attempt,) = demo.attempts()
    assert "probe-token-998877" not in everything(attempt)


def test_a_variable_of_a_home_file_that_is_not_set(demo, install, monkeypatch):
    monkeypatch.setenv("AGENT_KEY", "agent-key-112233")
    task(demo, "solver")
    (demo.root / "f").write_text("${NOT_SET_ANYWHERE}")
    files = "extensions: [{plugin: home-files, options: {files: [{src: f, dest: f}]}}]"
    profiles(demo, solver=row(install, more="api_key: ${AGENT_KEY}\n" + files))
    demo.pytest("datasets").assert_outcomes(errors=1)
    error = only(demo)["error"]
    assert (error["title"], "NOT_SET_ANYWHERE" in error["message"]) == ("unset_variable", True)


def test_every_role_gets_its_own_agent_prepared(demo, install, monkeypatch):
    monkeypatch.setenv("AGENT_KEY", "agent-key-112233")
    task(demo, "solver", "critic")
    (demo.root / "a").write_text("a")
    files = "extensions: [{plugin: home-files, options: {files: [{src: a, dest: a}]}}]"
    rows = {
        "solver": row(install, more=f"api_key: ${{AGENT_KEY}}\n{files}"),
        "critic": row(install, "opencode", "api_key: ${AGENT_KEY}"),
    }
    profiles(demo, **rows)
    demo.pytest("datasets").assert_outcomes(passed=1)
    prepared = [fact["raw"]["entry"] for fact in facts(demo)["agent_prepared"]]
    assert prepared == ["codex", "opencode"]
    assert told(demo, "critic")["argv"] == ["acp"]
    assert "model_provider" in " ".join(told(demo)["argv"])


# -- logins ----------------------------------------------------------------------------------------


def test_without_the_option_no_login_file_is_copied(demo, install, home, monkeypatch):
    monkeypatch.setenv("AGENT_KEY", "agent-key-112233")
    task(demo, "solver")
    profiles(demo, solver=row(install, more="api_key: ${AGENT_KEY}"))
    # The key itself; through the gateway it would be another one.
    demo.pytest("datasets", "--gateway=off").assert_outcomes(passed=1)
    found = told(demo)
    assert ".codex/auth.json" not in found["home"]
    assert found["env"]["OPENAI_API_KEY"] == "[REDACTED:AGENT_KEY]"


def test_a_login_file_reaches_the_agent_and_nothing_else(demo, install, home):
    (program,) = (install / "node_modules").rglob("codex-acp")
    program.write_text(program.read_text().replace('"$@"', '"$@" renew'))
    task(demo, "solver")
    profiles(demo, solver=row(install, more="api_key: ${NOT_SET_ANYWHERE}"))
    done = demo.pytest("datasets", "--agent-auth=keyless", "--keep-workspace", "--keep-raw")
    done.assert_outcomes(passed=1)
    found = told(demo)
    assert "[REDACTED:auth.json]" in found["home"][".codex/auth.json"]
    assert "OPENAI_API_KEY" not in found["env"]
    assert not any("model_provider" in argument for argument in found["argv"])
    (attempt,) = demo.attempts()
    kept = Path(facts(demo)["workspace_kept"][0]["path"]).parent
    assert not list(kept.rglob("auth.json")), "the file is taken out of a workspace that is kept"
    evidence = everything(attempt) + str(done.stdout)
    assert TOKEN not in evidence
    assert "renewed-token-7654321" not in evidence
    locked = json.loads((attempt / "lock.json").read_text())["locked"]
    assert locked["agent_profiles"]["solver"]["auth"] == "keyless"
    copied = {"role": "solver", "auth": "keyless", "files": [".codex/auth.json"]}
    assert facts(demo)["login_copied"] == [copied]
    shutil.rmtree(kept, ignore_errors=True)


@pytest.mark.parametrize("what", ["missing", "link"])
def test_a_login_file_that_cannot_be_used(demo, install, home, what):
    login = home / ".codex" / "auth.json"
    login.rename(home / "elsewhere.json")
    if what == "link":
        login.symlink_to(home / "elsewhere.json")
    task(demo, "solver")
    profiles(demo, solver=row(install, more="auth: keyless"))
    demo.pytest("datasets").assert_outcomes(errors=1)
    titles = {"missing": "acp_credentials_missing", "link": "acp_auth_path_symlink"}
    assert only(demo)["error"]["title"] == titles[what]


def test_a_box_that_shares_no_files_gets_no_login(demo, install, home):
    demo.pytester.makeconftest(
        """
        from ageval_boxes.local import LocalBox

        class FarBox(LocalBox):
            kind = "far"

            def host_path(self, path):
                return None

        def pytest_ageval_box_kinds():
            return {"far": FarBox}
        """
    )
    task(demo, "solver")
    profiles(demo, solver=row(install, more="auth: keyless"))
    demo.pytest("datasets", "--box=far").assert_outcomes(errors=1)
    assert only(demo)["error"]["title"] == "agent_auth"
