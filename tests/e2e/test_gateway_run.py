"""Runs through the model gateway, as a user starts them: what it hides, sees, counts, stops, replays."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from plugin.conftest import DataSet
from support.sshd import MISSING, sshd

from pytest_ageval.testing.scripted_model import (
    Cut,
    Garbage,
    HttpError,
    ScriptedModel,
    Text,
    Tokens,
)

KIT = Path(__file__).parents[1] / "support" / "acp_agents" / "agentkit.py"
KEY = "sk-probe0123456789abcdefXYZ"

PROFILES = """
format: ageval.profiles/1
environment: local
agent_profiles:
  "*":
    executor: acp
    api_key: ${PROBE_KEY}
    model: {id: m-1}
    options: {upstream_stall_seconds: 0, command: %s}
"""
HOST_PROFILES = """
format: ageval.profiles/1
environment: local
agent_profiles:
  "*": {executor: openai-http, api_key: "${PROBE_KEY}", model: {id: m-1}}
"""
RUN = """
async def run(ctx):
    reply = await ctx.agent.session("solver").invoke(ctx.params.get("prompt"))
    ctx.publish_json("reply", {key: reply[key] for key in ("ok", "text", "error")})
"""
EVALUATOR = """
import json
from pathlib import Path
def evaluate(inputs):
    answer = Path(inputs["workspace_dir"], "answer.txt")
    reply = json.loads(Path(inputs["artifacts"]["reply"]).read_text())
    good = answer.is_file() or reply["text"] == "42"
    return {"status": "PASS" if good else "FAIL", "score": float(good)}
"""
MORE = """
limits: {wall_time_seconds: 60}
parameters: {prompt: %s}
"""

#: Asks its model as often as it takes, never says that it failed, and does what the prompt says.
AGENT = """
import urllib.error, urllib.request
def call(path, **more):
    body = {"model": "m-1", "stream": True, "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": mode}], **more}
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["PROBE_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except Exception as error:
        return 0, repr(error)
tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
handshake()
while True:
    request = prompt()
    mode = request["params"]["prompt"][0]["text"]
    for _ in range(3 if mode.startswith("persists") else 1):
        status, said = call("/chat/completions", tools=[tool])
        if status == 200 and "[DONE]" in said:
            break
    call("/chat/completions")  # a title, of which nothing depends
    if mode.endswith("answers"):
        open("answer.txt", "w").write(f"{os.environ} {said}")
    say("all done")
    end(request)
"""


def by(request: Any) -> Any:
    """The model: what the prompt says, and for titles a failure."""
    if not request.tools:
        return HttpError(500)
    for word, fault in (("500", HttpError(500)), ("401", HttpError(401)), ("cut", Cut("half"))):
        if f"hides-{word}" in request.prompt:
            return fault
    if "hides-garbage" in request.prompt:
        return Garbage()
    return None


@pytest.fixture
def demo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    monkeypatch.setenv("PROBE_KEY", KEY)
    made = DataSet(pytester, pytester.path / "datasets" / "demo")
    command = [sys.executable, "-u", "-c", f"{KIT.read_text()}\n{AGENT}", "{model}"]
    made.profiles(PROFILES % json.dumps(command))
    return made


def task(demo: DataSet, name: str, prompt: str | None = None) -> None:
    demo.task(name, EVALUATOR, RUN, ("solver",), MORE % json.dumps(prompt or name))


def by_task(demo: DataSet) -> dict[str, dict[str, Any]]:
    return {str(row["task_id"]): row for row in demo.results()}


def calls(attempt: Path) -> list[dict[str, Any]]:
    lines = (attempt / "agent" / "model-calls.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def everything(demo: DataSet, *more: Path) -> bytes:
    """All that was written."""
    roots = (demo.root / ".ageval", *more)
    files = (Path(folder, name) for root in roots for folder, _, names in os.walk(root) for name in names)
    return b"".join(path.read_bytes() for path in files)


def test_a_failure_that_an_agent_hides_is_an_error_and_one_that_it_got_over_is_not(demo: DataSet) -> None:
    hidden = ("hides-500", "hides-401", "hides-cut", "hides-garbage")
    for name in (*hidden, "persists-answers", "persists", "answers"):
        task(demo, name)
    script = [HttpError(500), HttpError(429), Text("well", tokens=Tokens(input=70, cached=20, output=7))]
    with ScriptedModel(script, by=by) as model:
        result = demo.pytest("datasets", "-n", "2", "--base-url", model.base_url)
    # The model answers "answers" with 500 and gives no second chance.
    result.assert_outcomes(passed=2, failed=1, errors=4)
    found = by_task(demo)
    assert {name: row["status"] for name, row in found.items()} == {
        **dict.fromkeys(hidden, "ERROR"),
        "persists-answers": "PASS",
        "answers": "PASS",
        "persists": "FAIL",
    }
    titles = {name: found[name]["error"]["title"] for name in hidden}
    assert titles == {
        "hides-500": "provider_failed:HTTP 500",
        "hides-401": "provider_failed:HTTP 401",
        "hides-cut": "provider_failed:cut",
        "hides-garbage": "provider_failed:garbage",
    }
    assert "agent_error_suspected" in found["hides-500"]["flags"]
    usage = found["persists"]["usage"]
    assert (usage["prompt_tokens"], usage["cached_tokens"], usage["completion_tokens"]) == (70, 20, 7)
    assert usage["reasoning_tokens"] == 10
    assert not usage["partial"]
    for attempt in demo.attempts():
        rows = calls(attempt)
        assert {row["wire"] for row in rows} == {"chat"}
        assert [row["tools"] for row in rows][-1] is False
        assert {row["model"] for row in rows} == {"m-1"}
        for row in rows:
            assert (row["usage"] is not None) == (row["outcome"] in ("ok", "cut", "garbage", "http_error"))


def test_the_real_key_stays_outside(demo: DataSet) -> None:
    task(demo, "answers")
    with ScriptedModel([Text("well")]) as model:
        demo.pytest("datasets", "--base-url", model.base_url, "--keep-raw").assert_outcomes(passed=1)
        assert {request.api_key for request in model.requests} == {KEY}
    assert KEY.encode() not in everything(demo)
    # Had the key been in the box, its name would stand in its place in what the agent wrote.
    (attempt,) = demo.attempts()
    assert b"[REDACTED:PROBE_KEY]" not in everything(demo)
    assert json.loads((attempt / "lock.json").read_text())["gateway"] == "auto"
    facts = json.loads((attempt / "summary.json").read_text())["facts"]
    assert [fact["detail"]["used"] for fact in facts if fact["name"] == "model_gateway"] == [True, True]
    (metadata,) = attempt.glob("agent/invocations/*/metadata.json")
    found = json.loads(metadata.read_text())["executor_metadata"]["gateway"]
    assert (found["used"], found["calls"], found["usage_of_agent"]) == (
        True,
        2,
        {"unavailable": "not_reported"},
    )


def test_without_the_gateway_the_key_goes_as_the_profile_says(demo: DataSet) -> None:
    task(demo, "answers")
    with ScriptedModel([Text("well")]) as model:
        arguments = ("datasets", "--base-url", model.base_url, "--gateway", "off")
        demo.pytest(*arguments).assert_outcomes(passed=1)
        assert {request.api_key for request in model.requests} == {KEY}
    (attempt,) = demo.attempts()
    assert not (attempt / "agent" / "model-calls.jsonl").exists()
    assert json.loads((attempt / "lock.json").read_text())["gateway"] == "off"
    facts = json.loads((attempt / "summary.json").read_text())["facts"]
    rows = [fact["detail"] for fact in facts if fact["name"] == "model_gateway"]
    assert {(row["used"], row["reason"]) for row in rows} == {(False, "off")}


@pytest.mark.parametrize("kind", ["acp", "openai-http"])
def test_a_recorded_run_is_repeated_without_key_and_model(
    demo: DataSet, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    names = [f"t{number}-answers" for number in range(2)]
    for name in names:
        task(demo, name, f"persists-{name}" if kind == "acp" else f"what is {name}?")
    if kind == "openai-http":
        demo.profiles(HOST_PROFILES)
    faults = [HttpError(500)] if kind == "acp" else []
    tape = demo.root.parent / "tape"
    with ScriptedModel([*faults, Text("42")]) as model:
        url = model.base_url
        arguments = ("datasets", "-n", "2", "--base-url", url, "--record", str(tape))
        demo.pytest(*arguments).assert_outcomes(passed=2)
        requests = len(model.requests)
    recorded = sorted(tape.rglob("*.json"))
    assert len(recorded) == requests
    assert KEY.encode() not in everything(demo, tape)

    monkeypatch.delenv("PROBE_KEY")
    replay = ("datasets", "--base-url", url, "--replay", str(tape))
    demo.pytest(*replay).assert_outcomes(passed=2)
    flags = [row["flags"] for row in demo.results()]
    assert sum("replayed" in row for row in flags) == 2

    # The same with another prompt: an error that shows the difference.
    yaml = demo.root / "tasks" / names[0] / "task.yaml"
    yaml.write_text(
        yaml.read_text()
        .replace("t0-answers", "t0-wonders answers")
        .replace('task_id: "t0-wonders answers"', 'task_id: "t0-answers"')
    )
    result = demo.pytest(*replay, "-k", "t0")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*replay_miss*"])
    text = str(result.stdout)
    assert "t0-answers" in text
    assert "t0-wonders answers" in text
    assert sorted(tape.rglob("*.json")) == recorded


@pytest.mark.ssh
@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_an_agent_on_another_host(demo: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    task(demo, "answers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(demo.root.parent / "cache"))
    with sshd(demo.root.parent / "sshd") as server, ScriptedModel([Text("well")]) as model:
        options = [f"--box-option={name}={value}" for name, value in server.options.items()]
        demo.pytest("datasets", "--box=ssh", *options, "--base-url", model.base_url).assert_outcomes(passed=1)
        assert {request.api_key for request in model.requests} == {KEY}
    (attempt,) = demo.attempts()
    assert [row["outcome"] for row in calls(attempt)] == ["ok", "ok"]
    assert KEY.encode() not in everything(demo)
    assert b"[REDACTED:PROBE_KEY]" not in everything(demo)


FAR = """
from ageval_boxes.local import LocalBox

class FarBox(LocalBox):
    kind = "far"
    async def forward(self, port):
        return None

def pytest_ageval_box_kinds():
    return {"far": FarBox}
"""


def test_a_box_that_cannot_reach_this_machine(demo: DataSet) -> None:
    task(demo, "answers")
    demo.pytester.makeconftest(FAR)
    with ScriptedModel([Text("well")]) as model:
        arguments = ("datasets", "--box", "far", "--base-url", model.base_url)
        demo.pytest(*arguments).assert_outcomes(passed=1)
        assert {request.api_key for request in model.requests} == {KEY}
        result = demo.pytest(*arguments, "--record", "tape")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*gateway_unreachable*cannot reach this machine*"])
    (attempt,) = (path for path in demo.attempts() if "PASS" in (path / "result.json").read_text())
    facts = json.loads((attempt / "summary.json").read_text())["facts"]
    rows = [fact["detail"] for fact in facts if fact["name"] == "model_gateway"]
    assert {(row["used"], row["reason"]) for row in rows} == {(False, "unreachable")}
    (metadata,) = attempt.glob("agent/invocations/*/metadata.json")
    found = json.loads(metadata.read_text())["executor_metadata"]["gateway"]
    assert found == {"used": False, "reason": "unreachable"}


def test_what_cannot_be_meant_is_refused(demo: DataSet) -> None:
    task(demo, "answers")
    for arguments, words in (
        (("--record", "a", "--replay", "b"), "exclude each other"),
        (("--record", "a", "--gateway", "off"), "--gateway is off"),
        (("--replay", "nowhere"), "is not a directory"),
    ):
        result = demo.pytest("datasets", *arguments)
        assert result.ret == 4
        result.stderr.fnmatch_lines([f"*{words}*"])


def test_calls_that_cannot_be_recorded_are_an_error(demo: DataSet) -> None:
    task(demo, "answers")
    result = demo.pytest("datasets", "--record", "tape")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*gateway_unreachable*no base_url*"])
