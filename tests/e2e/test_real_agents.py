"""Real agents with MCP servers, skills and instructions; with AGEVAL_ALL_AGENTS=1 every one that is known.

codex and gemini stand for the two kinds that are installed from npm: a binary, and JavaScript.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ageval_executors.acp.entries import ENTRIES
from pytest_ageval.testing.scripted_model import HttpError, ScriptedModel, Shell, Text, ToolCall, Write
from pytest_ageval.testing.scripted_model.request import Request
from pytest_ageval.testing.scripted_model.turns import Answer

pytestmark = [
    pytest.mark.real_agent,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("npm") is None, reason="agents are installed with npm"),
]

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "datasets" / "quickstart"
PACKAGE = ROOT / "tests" / "support" / "agent_package"
SOLUTION = QUICKSTART / "tasks" / "fix-parser" / "solution" / "ini2json.py"
MODELS = {"codex": "gpt-5.5", "claude": "claude-sonnet-4-5", "gemini": "gemini-2.5-pro"}
BINDING = """
binding:
  executor: acp
  api_key: ${AGENT_KEY}
  options: {entry: %s}
  mcp_servers:
    - name: adder
      command: python3
      args: ["{home}/tools/adder.py"]
      env: {ADDER_WORD: "${ADDER_WORD}"}
  extensions:
    - plugin: home-files
      options: {files: [{src: adder.py, dest: tools/adder.py}]}
    - plugin: agent-skills
      options: {skills: [{src: skills/marmots}], instructions: RULES.md}
"""


def run(directory: Path, agent: str, entry: str, model: ScriptedModel, task: str) -> dict[str, Any]:
    """One attempt; its result."""
    url = model.gemini_base_url if entry == "gemini" else model.base_url
    name = next((name for start, name in MODELS.items() if entry.startswith(start)), "scripted-model")
    command = [sys.executable, "-m", "pytest", str(QUICKSTART), "-k", task, "-p", "no:cacheprovider"]
    command += ["--agent", agent, "--model", name, "--base-url", url, "--box", "local"]
    done = subprocess.run(
        [*command, "--ageval-dir", str(directory)],
        cwd=directory,
        env={**os.environ, "ADDER_WORD": "ultramarine-word", "AGENT_KEY": "agent-key-123456"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    results = [json.loads(path.read_text()) for path in (directory / "runs").glob("*/result.json")]
    assert len(results) == 1, done.stdout + done.stderr
    return {**results[0], "output": done.stdout + done.stderr}


def texts(requests: list[Request]) -> Iterator[str]:
    for request in requests:
        yield json.dumps(request.body)


@pytest.mark.parametrize("entry", ["codex", "gemini"])
def test_what_a_package_brings_reaches_the_model(tmp_path: Path, entry: str) -> None:
    package = tmp_path / "package"
    shutil.copytree(PACKAGE, package)
    head = f'format: ageval.agent/1\nagent_id: with-{entry}\nversion: "1"'
    (package / "agent.yaml").write_text(head + BINDING % entry)

    def play(request: Request) -> Answer:
        (adder, *_) = [name for name in request.tools if "add_numbers" in name] or [None]
        if request.step == 0 and adder is not None:
            return ToolCall(adder, {"a": 2, "b": 40})
        return Text("Counted.")

    with ScriptedModel(by=play) as model:
        result = run(tmp_path, str(package), entry, model, "log-triage")
    assert result["status"] == "FAIL", result["output"]
    assert model.requests[-1].results == [model.requests[-1].results[0]]
    assert "sum=42 word=ultramarine-word" in model.requests[-1].results[0]
    first = next(texts(model.requests))
    assert "How the marmots of the valley are counted." in first
    assert "heliotrope" in first
    (attempt,) = (tmp_path / "runs").iterdir()
    assert not any(
        "ultramarine-word" in path.read_text(errors="replace") for path in attempt.rglob("*.json*")
    )


SWITCH = os.environ.get("AGEVAL_ALL_AGENTS") == "1"


@pytest.mark.parametrize("entry", sorted(ENTRIES) if SWITCH else ["gemini"])
def test_an_agent_mends_the_program_of_the_quickstart(tmp_path: Path, entry: str) -> None:
    script = [
        Shell("python3 -m unittest"),
        Shell("rm ini2json.py"),  # some refuse to write over a file that they have not read
        Write("ini2json.py", SOLUTION.read_text(encoding="utf-8")),
        Text("ini2json.py does all that FORMAT.md says now."),
    ]
    with ScriptedModel(script) as model:
        result = run(tmp_path, entry, entry, model, "fix-parser")
    assert (result["status"], result["score"]) == ("PASS", 1.0), result["output"]
    assert (result["agent_status"], result["stop_reason"]) == ("completed", "end_turn")
    if ENTRIES[entry].usage.scope in ("turn", "session", "calls"):
        assert result["usage"]["prompt_tokens"] == 4000


@pytest.mark.skipif(not SWITCH, reason="run with AGEVAL_ALL_AGENTS=1")
@pytest.mark.parametrize("entry", ["codex-app-server", "pi"])
def test_a_failure_that_an_agent_does_not_tell_is_an_error(tmp_path: Path, entry: str) -> None:
    """Both end the turn with ``end_turn`` when the provider fails for good."""
    with ScriptedModel([Shell("true"), HttpError(500, "broken down", times=None)]) as model:
        result = run(tmp_path, entry, entry, model, "fix-parser")
    assert (result["status"], result["error"]["phase"]) == ("ERROR", "run"), result["output"]
    (attempt,) = (tmp_path / "runs").iterdir()
    lines = (attempt / "agent" / "model-calls.jsonl").read_text().splitlines()
    # A title may be made after the failure, without tools.
    calls = [call for call in map(json.loads, lines) if call["tools"]]
    assert (calls[0]["outcome"], calls[-1]["outcome"], calls[-1]["status"]) == ("ok", "http_error", 500)
