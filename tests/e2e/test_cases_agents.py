"""Agents on the protocol that go wrong in every way at once: verdicts, evidence, reports, secrets."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from plugin.conftest import DataSet

KIT = Path(__file__).parents[1] / "support" / "acp_agents" / "agentkit.py"
KEY = "sk-probe0123456789abcdefXYZ"

PROFILES = """
format: ageval.profiles/1
environment: local
agent_profiles:
  "*":
    executor: acp
    api_key: ${PROBE_KEY}
    options: {usage: session, command: %s}
"""
NOBODY = """
format: ageval.profiles/1
environment: local
agent_profiles:
  "*":
    executor: openai-http
    base_url: http://127.0.0.1:9/v1
    api_key: ${PROBE_KEY}
    options: {upstream_stall_seconds: 0}
"""
RUN = """
async def run(ctx):
    reply = await ctx.agent.session("solver").invoke(ctx.params.get("prompt"))
    print(reply)
    ctx.publish_json("reply", dict(reply))
"""
EVALUATOR = """
from pathlib import Path
def evaluate(inputs):
    answer = Path(inputs["workspace_dir"], "answer.txt")
    text = answer.read_text() if answer.is_file() else ""
    for character in text:
        print(character, end="", flush=True)
    checks = [{"id": "answer", "status": "pass" if text else "fail", "message": text}]
    found = {"score": float(bool(text)), "metrics": {text: text}, "checks": checks}
    return {"status": "PASS" if text else "FAIL", **found}
"""
MORE = """
limits: {wall_time_seconds: 30}
parameters: {prompt: %s, agent_timeout_seconds: 3}
artifacts: {publishable: [{id: answer, path: answer.txt}, {id: reply, path: reply.json}]}
"""

#: Says and writes its key wherever it can, in pieces of every size; the prompt says how it ends.
TALKATIVE = """
import base64, os
key = os.environ["PROBE_KEY"]
os.write(2, f"early {key}\\n".encode())
os.write(1, f"banner {key}\\n".encode())
handshake()
while True:
    request = prompt()
    mode = request["params"]["prompt"][0]["text"]
    for place in range(len(key) + 1):
        say("<" + key[:place])
        say(key[place:] + ">")
    for character in key:
        say(character)
        update("agent_thought_chunk", content={"type": "text", "text": character})
        os.write(2, character.encode())
    shown = {key: key, "part": key[:20]}
    update("tool_call", toolCallId=key, title=f"run {key}", kind="execute", rawInput=shown)
    twisted = base64.b64encode(f"zz{key}".encode()).decode()
    update("tool_call_update", toolCallId=key, status="completed", rawOutput={"out": key, "other": twisted})
    update("session_info_update", title=key, _meta={key: key})
    update(f"kind_{key}", x=key)
    open("answer.txt", "w").write(key)
    if mode == "die":
        os._exit(3)
    if mode == "refuse":
        fail(request, -32603, f"bad key {key}", {"key": key})
    else:
        end(request, key if mode == "stop" else "end_turn", _meta={key: key})
"""

#: The prompt is the scenario.
ODD = """
import os, signal
handshake()
request = prompt()
mode = request["params"]["prompt"][0]["text"]
if mode in ("answers", "answers-late", "half-characters"):
    open("answer.txt", "w").write("42")
if mode == "answers-late":
    update("usage_update", inputTokens=100, outputTokens=0, totalTokens=100)
    update("usage_update", inputTokens=250, outputTokens=0, totalTokens=250)
    while read().get("method") != "session/cancel":
        pass
    end(request, "cancelled")
elif mode == "rate-limit":
    fail(request, -32603, "429 rate_limit_error")
elif mode == "says-http-400":
    say("HTTP 400: invalid model")
    end(request)
elif mode == "half-characters":
    say("ok \\ud83d \\u2028 \\u0085 end")
    open(b"\\xff.txt", "w").write("x")
    end(request)
elif mode == "half-a-sentence":
    update("totally_new_kind", payload=[1])
    say("I will now write the fi")
    end(request)
elif mode == "half-a-line":
    say("I will now write the fi")
    write(b'{"jsonrpc":"2.0","method":"session/upd')
    os._exit(0)
elif mode == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
else:
    end(request, {"refuses": "refusal", "limit": "max_tokens", "own-word": "max_steps"}.get(mode, "end_turn"))
idle()
"""

#: Asks before it writes, and writes only what it may.
POLITE = """
handshake()
request = prompt()
offered = [{"optionId": "go", "name": "Go", "kind": "allow_once"}]
offered += [{"optionId": "stop", "name": "Stop", "kind": "reject_once"}]
outcome = ask_permission(offered)["result"]["outcome"]
if outcome.get("optionId") == "go":
    open("answer.txt", "w").write("42")
end(request)
idle()
"""
OFFICER = """
def pytest_ageval_permission(attempt, value):
    assert [row["optionId"] for row in value["options"]] == ["go", "stop"]
    if attempt.task_id == "raises":
        raise RuntimeError("no opinion")
    return {"yes": "go", "no": "stop", "made-up": "always"}.get(attempt.task_id)
"""


@pytest.fixture
def demo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    monkeypatch.setenv("PROBE_KEY", KEY)
    return DataSet(pytester, pytester.path / "datasets" / "demo")


def agent(demo: DataSet, program: str) -> None:
    command = [sys.executable, "-u", "-c", f"{KIT.read_text()}\n{program}"]
    demo.profiles(PROFILES % json.dumps(command))


def tasks(demo: DataSet, *names: str) -> None:
    for name in names:
        demo.task(name, EVALUATOR, RUN, ("solver",), MORE % name)


def trajectory(demo: DataSet, task: str) -> list[dict[str, Any]]:
    results = [(path, json.loads((path / "result.json").read_text())) for path in demo.attempts()]
    (attempt,) = [path for path, row in results if row["task_id"] == task]
    return [json.loads(line) for line in (attempt / "trajectory.jsonl").read_text().splitlines()]


def test_a_key_that_the_agent_says_everywhere_is_nowhere(demo: DataSet) -> None:
    agent(demo, TALKATIVE)
    tasks(demo, "end", "stop", "refuse", "die")
    args = ("--junitxml", "out.xml", "--html", "out.html", "--self-contained-html", "-rA", "--showlocals")
    result = demo.pytest("datasets", "-n", "2", "--keep-raw", "-o", "junit_logging=all", *args)
    result.assert_outcomes(passed=4)
    texts = [f"{result.stdout}{result.stderr}".encode()]
    texts += [Path(name).read_bytes() for name in ("out.xml", "out.html")]
    assert len(demo.attempts()) == 4
    for folder, _, files in os.walk(demo.root / ".ageval"):
        texts += [Path(folder, name).read_bytes() for name in files]
    assert [text for text in texts if KEY.encode() in text] == []
    assert [text for text in texts if KEY[:12].encode() in text] == []
    whole = b"".join(texts)
    assert whole.count(b"[REDACTED:PROBE_KEY]") > 100


def test_how_a_turn_ends_decides_neither_for_nor_against_the_work(demo: DataSet) -> None:
    agent(demo, ODD)
    names = ("answers", "answers-late", "rate-limit", "says-http-400", "half-characters", "killed")
    tasks(demo, *names, "refuses", "limit", "own-word", "half-a-sentence", "half-a-line")
    result = demo.pytest("datasets", "-n", "2", "--set", "/agent_profiles/*/options/upstream_stall_seconds=0")
    result.assert_outcomes(passed=3, failed=5, errors=3)
    found = {str(row["task_id"]): row for row in demo.results()}
    assert {name: row["status"] for name, row in found.items()} == {
        **dict.fromkeys(("answers", "answers-late", "half-characters"), "PASS"),
        **dict.fromkeys(("says-http-400", "refuses", "limit", "own-word", "half-a-sentence"), "FAIL"),
        **dict.fromkeys(("rate-limit", "killed", "half-a-line"), "ERROR"),
    }
    assert {name: row["agent_status"] for name, row in found.items()} == {
        **dict.fromkeys(("answers", "half-characters", "says-http-400", "half-a-sentence"), "completed"),
        "half-a-line": "crashed",
        "answers-late": "timeout",
        "rate-limit": "crashed",
        "killed": "crashed",
        "refuses": "refused",
        "limit": "limit",
        "own-word": "unknown",
    }
    assert found["own-word"]["stop_reason"] == "max_steps"
    assert found["says-http-400"]["flags"] == ["agent_error_suspected"]
    assert "429 rate_limit_error" in found["rate-limit"]["error"]["message"]
    torn = found["half-a-line"]["error"]
    assert 'mid-message (exit code 0): {"jsonrpc":"2.0","method":"session/upd' in torn["message"]
    rows = trajectory(demo, "half-a-sentence")
    assert [row["raw"]["payload"] for row in rows if row["type"] == "unknown"] == [[1]]
    assert "I will now write the fi" in json.dumps(rows)
    usage = found["answers-late"]["usage"]
    assert (usage["prompt_tokens"], usage["partial"]) == (250, True)
    result.stdout.fnmatch_lines(["*demo * 3 * 5 * 3 * 8/11 *"])
    for attempt in demo.attempts():
        for line in (attempt / "trajectory.jsonl").read_bytes().split(b"\n"):
            assert line == b"" or json.loads(line.decode("utf-8"))


def test_rate_limits_are_errors_of_all_and_the_score_of_none(demo: DataSet) -> None:
    """Eight attempts that a provider turns away: no mean, an exit code, and `--maxfail` ends it."""
    agent(demo, ODD.replace('mode = request["params"]["prompt"][0]["text"]', 'mode = "rate-limit"'))
    tasks(demo, *(f"t{number}" for number in range(8)))
    quickly = ("--set", "/agent_profiles/*/options/upstream_stall_seconds=0")
    result = demo.pytest("datasets", "-n", "2", *quickly)
    result.assert_outcomes(errors=8)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*demo * 0 * 0 * 8 * 0/8 * n/a*"])
    assert {row["score"] for row in demo.results()} == {None}
    stopped = demo.pytest("datasets", "--maxfail=2", *quickly)
    stopped.assert_outcomes(errors=2)
    assert len(demo.results()) == 10


def test_an_endpoint_that_is_dead_is_no_green_run(demo: DataSet) -> None:
    demo.profiles(NOBODY)
    tasks(demo, *"abcde")
    result = demo.pytest("datasets", "-n", "2", "--junitxml", "out.xml")
    result.assert_outcomes(errors=5)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*demo * 0 * 0 * 5 * 0/5 * n/a*"])
    assert 'errors="5" failures="0"' in Path("out.xml").read_text()
    assert {row["error"]["title"] for row in demo.results()} == {"TransportError:ClientConnectorError"}


def test_the_hook_of_a_conftest_answers_for_the_policy_ask(demo: DataSet) -> None:
    agent(demo, POLITE)
    names = ("yes", "no", "made-up", "raises", "silent")
    tasks(demo, *names)
    (demo.root / "conftest.py").write_text(OFFICER)
    result = demo.pytest("datasets", "--permission", "ask")
    result.assert_outcomes(passed=1, failed=3, errors=1)
    found = {str(row["task_id"]): row for row in demo.results()}
    assert [name for name in names if found[name]["status"] == "PASS"] == ["yes"]
    assert (found["raises"]["status"], "no opinion" in found["raises"]["error"]["message"]) == ("ERROR", True)
    decisions = {}
    for name in names:
        (row,) = (row for row in trajectory(demo, name) if row["type"] == "permission_decision")
        decisions[name] = (row["outcome"], row.get("option_id"))
    assert decisions == {
        "yes": ("selected", "go"),
        "no": ("selected", "stop"),
        **dict.fromkeys(("made-up", "raises", "silent"), ("cancelled", None)),
    }
