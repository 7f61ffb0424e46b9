"""Export of real attempts: documents that other programs' readers take, and no gold in them."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from copy import copy as copy_of

import atif
import pytest

from pytest_ageval import cli
from pytest_ageval.testing.scripted_model import HttpError, ScriptedModel, Text, ToolCall

from .attempt_kit import ASK, JUDGE, KEY, ONE, PROFILES, ROLES
from .conftest import DataSet

pytestmark = pytest.mark.usefixtures("key")

GOLD = "GOLD-ANSWER-42"
TOOLS = """
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

async def run(ctx):
    session = ctx.agent.session("solver")
    reply = await session.invoke("What is 40 plus 2?", tools=[ADD])
    call = reply["tool_calls"][0]
    await session.record_observation(tool_call_id=call["id"], function_name="add", content="42")
    reply = await session.invoke("", messages=[
        {"role": "user", "content": "What is 40 plus 2?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": call["id"], "type": "function",
             "function": {"name": "add", "arguments": '{"a": 40, "b": 2}'}}]},
        {"role": "tool", "tool_call_id": call["id"], "content": "42"},
    ])
    ctx.publish_json("reply", {"text": reply["text"]})
"""
JUDGED = """
async def evaluate(inputs):
    judge = inputs["agent"].session("judge")
    await judge.invoke("GOLD-ANSWER-42: is it right?")
    return {
        "status": "PASS", "score": 1.0,
        "metrics": {"expected": "GOLD-ANSWER-42"}, "checks": [{"id": "GOLD-ANSWER-42", "status": "pass"}],
    }
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A data set with one attempt: a tool call, an answer, and a judge that has seen gold."""

    def answer(request):
        if "GOLD" in request.prompt:
            return Text(f"yes, {GOLD}")
        return Text("42") if request.results else ToolCall("add", {"a": 40, "b": 2})

    demo = DataSet(None, tmp_path_factory.mktemp("made") / "demo")
    with ScriptedModel(by=answer) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        more = ONE + "limits: {agent_invocations: 2}"
        demo.task("sum", run=TOOLS, evaluator=JUDGED, roles=(ROLES, "judge"), more=more)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(demo.root)]
        environ = {**os.environ, "PROBE_KEY": KEY}
        done = subprocess.run(
            command, env=environ, cwd=demo.root, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout
    return demo


@pytest.fixture
def evidence(made, tmp_path):
    """A copy that a test may change."""
    shutil.copytree(made.root, tmp_path / "demo")
    copy = copy_of(made)
    copy.root = tmp_path / "demo"
    return copy


def export(capsys, *arguments):
    capsys.readouterr()
    code = cli.main(["export", *map(str, arguments)])
    found = capsys.readouterr()
    return code, found.out, found.err


# -- ATIF ------------------------------------------------------------------------------------------


def test_a_session_is_one_atif_document(evidence, capsys):
    (attempt,) = evidence.attempts()
    code, out, _ = export(capsys, attempt, "--format", "atif")
    assert code == 0
    assert GOLD not in out
    atif.read(out)
    found = json.loads(out)
    assert (found["schema_version"], found["session_id"]) == ("ATIF-v1.8", "sess_solver_default_main_1")
    assert found["agent"]["name"] == "openai-http"
    assert found["agent"]["model_name"] == "scripted"
    assert [step["step_id"] for step in found["steps"]] == [1, 2, 3, 4]
    user, called, _, answered = found["steps"]
    assert (user["source"], user["message"]) == ("user", "What is 40 plus 2?")
    (call,) = called["tool_calls"]
    assert (call["function_name"], call["arguments"]) == ("add", {"a": 40, "b": 2})
    (result,) = called["observation"]["results"]
    assert (result["source_call_id"], result["content"]) == (call["tool_call_id"], "42")
    assert called["metrics"]["prompt_tokens"] == 1000
    assert answered["message"] == "42"
    totals = found["final_metrics"]
    assert (totals["total_prompt_tokens"], totals["total_completion_tokens"]) == (2000, 100)
    assert totals["total_steps"] == 4
    assert found["extra"]["status"] == "PASS"


def test_a_failed_call_is_a_step_without_an_answer(demo, capsys):
    with ScriptedModel([HttpError(400)]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        demo.pytest("datasets").assert_outcomes(errors=1)
    _, out, _ = export(capsys, *demo.attempts(), "--format=atif")
    atif.read(out)
    step = json.loads(out)["steps"][-1]
    assert (step["source"], step["message"]) == ("agent", "")
    assert step["extra"]["error"].startswith("HTTPError:400")
    assert step["metrics"]["extra"]["unavailable"] == "not_reported"


def test_many_documents_need_a_directory(evidence, capsys, tmp_path):
    (attempt,) = evidence.attempts()
    shutil.copytree(attempt, attempt.with_name("attempt_copy"))
    (attempt.with_name("attempt_copy") / "result.json").unlink()
    code, _, err = export(capsys, evidence.root, "--format=atif")
    assert code == 2
    assert "there are 2 sessions" in err
    code, out, _ = export(capsys, evidence.root, "--format=atif", "--out", tmp_path / "atif")
    assert (code, out.split()[0]) == (0, "2")
    names = sorted(path.name for path in (tmp_path / "atif").rglob("*.json"))
    assert names == ["sess_solver_default_main_1.trajectory.json"] * 2


def test_what_cannot_be_exported_is_said(evidence, capsys, tmp_path):
    code, _, err = export(capsys, tmp_path, "--format=atif")
    assert (code, err.startswith("no_evidence:")) == (2, True)
    (attempt,) = evidence.attempts()
    code, _, err = export(capsys, attempt, "--format=atif", "--endpoint=http://127.0.0.1:1")
    assert (code, "are for --format otel" in err) == (2, True)
    (attempt / "trajectory.jsonl").write_text("no json\n{}\n")
    code, _, err = export(capsys, attempt, "--format=atif")
    assert (code, err.startswith("evidence_corrupt:")) == (2, True)
    (attempt / "trajectory.jsonl").unlink()
    code, _, err = export(capsys, attempt, "--format=otel")
    assert "has no trajectory; it is left out" in err


@pytest.mark.skipif("AGEVAL_HARBOR_PYTHON" not in os.environ, reason="needs a Python that has harbor")
def test_harbor_takes_the_documents(evidence, capsys, tmp_path):
    export(capsys, evidence.root, "--format=atif", "--out", tmp_path / "atif")
    code = (
        "import sys, pathlib; from harbor.models.trajectories import Trajectory\n"
        "for path in map(pathlib.Path, sys.argv[1:]): Trajectory.model_validate_json(path.read_text())"
    )
    paths = list((tmp_path / "atif").rglob("*.json"))
    assert paths
    subprocess.run([os.environ["AGEVAL_HARBOR_PYTHON"], "-c", code, *map(str, paths)], check=True)


def record(*rows, usage=None):
    """An attempt directory with the rows of one invoke, as an agent in a box leaves them."""
    common = {"session_id": "s/1", "profile_id": "solver", "turn_index": 1, "source": "acp"}
    end = {"type": "terminal", "ok": True, "usage": usage or {}, "metadata": {"invocation_id": "inv_1"}}
    return [{**common, **row} for row in (*rows, end)]


@pytest.fixture
def attempt_of(tmp_path):
    def write(rows):
        root = tmp_path / "attempt_1"
        root.mkdir()
        (root / "lock.json").write_text(json.dumps({"task_id": "t", "dataset_id": "d"}))
        (root / "trajectory.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return root

    return write


def test_an_agents_turn_becomes_steps_in_their_order(attempt_of, capsys):
    root = attempt_of(
        record(
            {"type": "turn", "role": "user", "content": "do it"},
            {"type": "turn", "role": "assistant", "part": "thought", "content": "hm"},
            {"type": "turn", "role": "assistant", "content": "I look."},
            {
                "type": "tool_call",
                "tool_call_id": "c1",
                "function_name": "ls",
                "args": {},
                "status": "failed",
            },
            {"type": "tool_call", "tool_call_id": "c2", "function_name": "cat", "args": {"f": 1}},
            {"type": "observation", "tool_call_id": "c2", "content": "text", "raw_output": {"code": 0}},
            {"type": "observation", "tool_call_id": "c1", "content": "denied", "status": "failed"},
            {"type": "permission_decision", "outcome": "selected", "option_id": "yes"},
            {"type": "turn", "role": "assistant", "part": "thought", "content": "now I know"},
            {"type": "turn", "role": "assistant", "content": "done"},
            {"type": "observation", "tool_call_id": "c9", "content": "of nobody"},
            usage={"prompt_tokens": 5, "completion_tokens": 1, "cost_usd": 0.5, "cost_source": "estimated"},
        )
    )
    found = atif.read(export(capsys, root, "--format=atif")[1])
    user, first, last = found.steps
    assert (user.source, user.message) == ("user", "do it")
    assert (first.reasoning_content, first.message) == ("hm", "I look.")
    assert [call.function_name for call in first.tool_calls] == ["ls", "cat"]
    results = {row.source_call_id: row.content for row in first.observation.results}
    assert results == {"c1": "denied", "c2": "text"}
    assert first.extra["events"][0]["outcome"] == "selected"
    assert (last.reasoning_content, last.message) == ("now I know", "done")
    assert [row.source_call_id for row in last.observation.results] == [None]
    assert (first.metrics, last.metrics.cost_usd) == (None, 0.5)
    assert found.final_metrics.extra["cost_source"] == "estimated"
    assert found.agent.version == "unknown"
    names = [span["name"] for span in spans(export(capsys, root, "--format=otel")[1])]
    assert sorted(names) == [
        "execute_tool cat",
        "execute_tool ls",
        "invoke_agent solver",
        "invoke_workflow t",
    ]


# -- OpenTelemetry ---------------------------------------------------------------------------------


def attributes(span):
    return {row["key"]: next(iter(row["value"].values())) for row in span["attributes"]}


def spans(text):
    (line,) = text.splitlines()
    (resource,) = json.loads(line)["resourceSpans"]
    return [span for scope in resource["scopeSpans"] for span in scope["spans"]]


def test_an_attempt_is_one_trace(evidence, capsys):
    pytest.importorskip("opentelemetry.exporter.otlp.json.file")
    (attempt,) = evidence.attempts()
    code, out, _ = export(capsys, attempt, "--format=otel")
    assert code == 0
    found = spans(out)
    names = [span["name"] for span in found]
    agent, chat = "invoke_agent openai-http", "chat scripted"
    assert sorted(names) == sorted(["invoke_workflow sum", agent, chat, "execute_tool add", agent, chat])
    root = next(span for span in found if not span.get("parentSpanId"))
    by_id = {span["spanId"]: span for span in found}
    assert root["name"] == "invoke_workflow sum"
    assert all(len(span["traceId"]) == 32 and span["traceId"] == root["traceId"] for span in found)
    for span in found:
        begun, ended = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        assert begun <= ended
        if span is not root:
            parent = by_id[span["parentSpanId"]]
            assert int(parent["startTimeUnixNano"]) <= begun
            assert parent["name"] == (agent if span["name"] != agent else root["name"])
    first = next(span for span in found if span["name"] == chat)
    told = attributes(first)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.provider.name"] == "openai"
    assert told["gen_ai.request.model"] == "scripted"
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) in (
        ("1000", "50"),
        (1000, 50),
    )
    assert root["events"][0]["name"] == "gen_ai.evaluation.result"
    assert "What is 40" not in out, "no content unless it is asked for"
    assert export(capsys, attempt, "--format=otel")[1] == out, "the same ids each time"
    _, whole, _ = export(capsys, attempt, "--format=otel", "--content")
    assert "What is 40 plus 2?" in whole
    assert GOLD not in whole


def test_every_attribute_is_one_of_the_conventions(evidence, capsys):
    """gen_ai.* names that the conventions do not have are a slip."""
    conventions = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    known = {value for name, value in vars(conventions).items() if name.startswith("GEN_AI_")}
    operations = {value.value for value in conventions.GenAiOperationNameValues}
    (attempt,) = evidence.attempts()
    _, out, _ = export(capsys, attempt, "--format=otel", "--content")
    for span in spans(out):
        found = attributes(span)
        assert {name for name in found if name.startswith("gen_ai.")} <= known
        assert found["gen_ai.operation.name"] in operations


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes what is posted, as a collector's OTLP/HTTP receiver does."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.taken.append(
            (self.path, self.headers["content-type"], self.headers["content-encoding"], body)
        )
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def collector():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.taken, server.status = [], 200
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_spans_are_sent_to_a_collector(evidence, capsys, collector, tmp_path):
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    url = f"http://127.0.0.1:{collector.server_port}"
    out = tmp_path / "spans.jsonl"
    code, said, _ = export(capsys, evidence.root, "--format=otel", "--endpoint", url, "--out", out)
    assert (code, said.startswith("6 spans of 1 attempts")) == (0, True)
    ((path, kind, _, body),) = collector.taken
    assert (path, kind) == ("/v1/traces", "application/x-protobuf")
    request = service.ExportTraceServiceRequest.FromString(body)
    sent = [span for scope in request.resource_spans[0].scope_spans for span in scope.spans]
    assert [span.span_id.hex() for span in sent] == [span["spanId"] for span in spans(out.read_text())]


def test_a_collector_that_refuses_is_an_error(evidence, capsys, collector):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    collector.status = 400
    url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    code, _, err = export(capsys, evidence.root, "--format=otel", "--endpoint", url)
    assert (code, "export_failed:" in err) == (2, True)
    code, _, err = export(capsys, evidence.root, "--format=otel", "--endpoint", "collector:4318")
    assert (code, "--endpoint takes an http or https URL" in err) == (2, True)


def test_without_the_package_the_remedy_is_told(evidence):
    (attempt,) = evidence.attempts()
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from pytest_ageval.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "export", str(attempt), "--format=otel"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'pytest-ageval[otel]'" in done.stderr
