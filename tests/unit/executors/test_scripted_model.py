"""The scripted model: which turn a request gets, how tools are chosen, and how faults look on the wire."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from pytest_ageval.testing.scripted_model import (
    NO_USAGE,
    Calls,
    Cut,
    Delay,
    Garbage,
    Hang,
    HttpError,
    InOrder,
    Malformed,
    ScriptedModel,
    ScriptError,
    Shell,
    StreamError,
    Text,
    Tokens,
    ToolCall,
    When,
    Write,
)

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
BASH = {"command": {"type": "string"}, "description": {"type": "string"}}
CODEX = [
    {
        "type": "function",
        "name": "exec_command",
        "parameters": {
            "type": "object",
            "properties": {"cmd": {"type": "string"}, "workdir": {"type": "string"}},
            "required": ["cmd"],
        },
    },
    {"type": "function", "name": "write_stdin", "parameters": {"type": "object"}},
    {"type": "custom", "name": "apply_patch"},
]


def chat_tool(name: str, properties: dict, required: list[str] = []) -> dict:  # noqa: B006
    schema = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


class Client:
    """A harness in miniature: keeps the conversation as each wire wants it back."""

    def __init__(self, model: ScriptedModel, api: str = "chat", *, stream=False, tools=()):
        self.url, self.api, self.stream, self.tools = model.root_url + PATHS[api], api, stream, tools
        self.http = httpx.Client(trust_env=False, timeout=10)
        self.said: list[dict] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.close()

    def post(self, prompt: str | None = None, **more) -> httpx.Response:
        if prompt is not None:
            self.said.append({"role": "user", "content": prompt})
        field = "input" if self.api == "responses" else "messages"
        body = {"model": "m", field: self.said, "stream": self.stream, **more}
        if self.tools:
            body["tools"] = list(self.tools)
        return self.http.post(self.url, json=body, headers={"authorization": "Bearer k"})

    def ask(self, prompt: str | None = None) -> dict:
        """Post, add the answer and empty tool results to the conversation, return the document."""
        reply = self.post(prompt)
        assert reply.status_code == 200, reply.text
        found = reply.json()
        if self.api == "chat":
            message = found["choices"][0]["message"]
            self.said.append(message)
            for call in message.get("tool_calls") or []:
                self.said.append({"role": "tool", "tool_call_id": call["id"], "content": "ok"})
        elif self.api == "responses":
            self.said += found["output"]
            for item in found["output"]:
                if "call_id" in item:
                    kind = item["type"].replace("custom_tool_call", "custom_tool_call") + "_output"
                    self.said.append({"type": kind, "call_id": item["call_id"], "output": "ok"})
        else:
            self.said.append({"role": "assistant", "content": found["content"]})
            results = [
                {"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}
                for block in found["content"]
                if block["type"] == "tool_use"
            ]
            if results:
                self.said.append({"role": "user", "content": results})
        return found

    def text(self, prompt: str | None = None) -> str:
        return said_in(self.api, self.ask(prompt))


def said_in(api: str, found: dict) -> str:
    if api == "chat":
        return found["choices"][0]["message"]["content"] or ""
    if api == "responses":
        parts = [part for item in found["output"] for part in item.get("content", [])]
        return "".join(part["text"] for part in parts)
    return "".join(block.get("text", "") for block in found["content"])


def events(reply: httpx.Response) -> list[dict]:
    lines = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


# -- which turn ----------------------------------------------------------------------------------


@pytest.mark.parametrize("api", PATHS)
def test_turns_follow_each_other_in_every_wire(api):
    with ScriptedModel([Text("one"), Text("two")]) as model, Client(model, api) as client:
        assert client.text("a") == "one"
        assert client.text("b") == "two"
        assert client.text("c") == "The script has ended."
    assert [request.prompt for request in model.requests] == ["a", "b", "c"]
    assert [request.step for request in model.requests] == [0, 1, 2]
    assert model.requests[2].turn is None


@pytest.mark.parametrize("api", PATHS)
def test_a_call_and_its_result_are_one_step(api):
    tools = {
        "chat": [chat_tool("Bash", BASH)],
        "responses": CODEX,
        "anthropic": [{"name": "Bash", "input_schema": {"properties": BASH, "required": ["command"]}}],
    }
    with (
        ScriptedModel([Shell("make"), Text("done")]) as model,
        Client(model, api, tools=tools[api]) as client,
    ):
        client.ask("build it")
        assert client.text() == "done"
    assert model.requests[1].results == ["ok"]


def test_several_calls_of_one_answer_are_one_step_however_their_results_stand():
    script = [Calls([ToolCall("a", {}), ToolCall("b", {})]), Text("done")]
    with ScriptedModel(script) as model, Client(model, "responses", tools=CODEX) as client:
        first, second = client.ask("go")["output"]
        # Agents may write each result right behind its call.
        client.said[1:] = [
            first,
            {"type": "function_call_output", "call_id": first["call_id"], "output": "1"},
            second,
            {"type": "function_call_output", "call_id": second["call_id"], "output": "2"},
        ]
        assert client.text() == "done"


def test_sessions_side_by_side_each_play_the_script_from_their_own_place():
    with ScriptedModel([Text("one"), Delay(0.05), Text("two")]) as model:

        def session(number: int) -> list[str]:
            with Client(model) as client:
                return [client.text(f"session {number}"), client.text("next")]

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(session, range(8))) == [["one", "two"]] * 8


def test_a_session_that_comes_back_goes_on_where_it_was():
    with ScriptedModel([Text("one"), Text("two")]) as model, Client(model) as client:
        client.ask("a")
        with Client(model) as other:
            other.said = list(client.said)
            assert other.text("b") == "two"


def test_when_answers_prompts_that_match_and_counts_from_each():
    script = [
        When("weather", [Shell("curl wttr.in"), Text("sunny")]),
        Text("hello"),
    ]
    with (
        ScriptedModel(script) as model,
        Client(model, tools=[chat_tool("bash", BASH)]) as client,
    ):
        assert client.text("hi") == "hello"
        for _ in range(2):
            client.ask("what weather is it?")
            assert client.text() == "sunny"


def test_what_an_agent_adds_to_the_prompt_is_not_the_prompt():
    reminder = "<system-reminder>the weather is nice</system-reminder>"
    with (
        ScriptedModel([When("weather", [Text("wrong")]), Text("right")]) as model,
        Client(model) as client,
    ):
        client.said.append({"role": "user", "content": "hi"})
        client.said.append({"role": "user", "content": reminder})
        assert client.text() == "right"
    assert model.requests[0].prompt == "hi"


def test_a_request_without_tools_gets_a_line_and_uses_up_nothing():
    tools = [chat_tool("bash", BASH)]
    with ScriptedModel([HttpError(500), Shell("make"), Text("done")]) as model:
        with Client(model) as title:
            assert title.text("build it") == "A scripted aside."
        with Client(model, tools=tools) as client:
            assert client.post("build it").status_code == 500
            client.ask()
            assert client.text() == "done"
    assert model.requests[0].turn is None


def test_a_fault_is_over_when_the_request_comes_again():
    script = [HttpError(429, retry_after=3, times=2), HttpError(503), Text("at last")]
    with ScriptedModel(script) as model, Client(model) as client:
        replies = [client.post("go")] + [client.post() for _ in range(3)]
    assert [reply.status_code for reply in replies] == [429, 429, 503, 200]
    assert replies[0].headers["retry-after"] == "3"
    assert [request.status for request in model.requests] == [429, 429, 503, 200]


def test_a_fault_of_one_session_is_not_used_up_by_another():
    with ScriptedModel([HttpError(503), Text("ok")]) as model:
        for name in ("a", "b"):
            with Client(model) as client:
                assert client.post(name).status_code == 503
                assert client.post().status_code == 200


def test_by_decides_and_may_leave_it_to_the_script():
    def by(request):
        return Text(f"for {request.model}") if "model" in request.prompt else None

    with ScriptedModel([Text("script")], by=by) as model, Client(model) as client:
        assert client.text("which model?") == "for m"
        client.said.clear()
        assert client.text("go") == "script"


def test_in_order_serves_whoever_comes_first():
    turns = InOrder([Text("first"), HttpError(500, times=2), Text("last")])
    with ScriptedModel(by=turns) as model, Client(model) as one, Client(model) as two:
        assert one.text("a") == "first"
        assert [two.post("b").status_code, one.post("c").status_code] == [500, 500]
        assert two.text() == "last"


def test_a_by_that_fails_is_told_to_the_agent_and_to_the_test():
    def by(request):
        raise KeyError("oops")

    with pytest.raises(ScriptError, match="oops"), ScriptedModel(by=by) as model, Client(model) as client:
        assert client.post("a").status_code == 400


# -- which tool ----------------------------------------------------------------------------------


def call_of(tools: list[dict], turn, prompt: str = "go") -> tuple[str, dict]:
    with ScriptedModel([turn]) as model, Client(model, tools=tools) as client:
        call = client.ask(prompt)["choices"][0]["message"]["tool_calls"][0]["function"]
    return call["name"], json.loads(call["arguments"])


def test_shell_fills_what_the_tool_requires():
    properties = {**BASH, "security_risk": {"enum": ["LOW", "HIGH"]}, "is_input": {"type": "boolean"}}
    tools = [chat_tool("TodoWrite", {}), chat_tool("terminal", properties, [*properties])]
    assert call_of(tools, Shell("ls")) == (
        "terminal",
        {"command": "ls", "description": "scripted", "security_risk": "LOW", "is_input": False},
    )


def test_shell_gives_a_list_to_a_tool_that_wants_one():
    tools = [chat_tool("shell", {"command": {"type": "array", "items": {"type": "string"}}})]
    assert call_of(tools, Shell("ls | wc")) == ("shell", {"command": ["bash", "-lc", "ls | wc"]})


def test_shell_takes_an_unknown_tool_by_its_name_and_schema():
    editor = chat_tool("editor", {"command": {"enum": ["view", "create"]}, "path": {}})
    mcp = chat_tool("dev__run_in_shell", {"script": {"type": "string"}, "cwd": {}})
    assert call_of([editor, mcp], Shell("ls", workdir="/w")) == (
        "dev__run_in_shell",
        {"script": "ls", "cwd": "/w"},
    )


def test_write_gives_an_absolute_path_below_the_directory_that_the_agent_names():
    tools = [chat_tool("Write", {"file_path": {"type": "string"}, "content": {"type": "string"}})]
    prompt = "Working directory: /home/me/w\nWrite a file."
    assert call_of(tools, Write("a/b.txt", "x"), prompt) == (
        "Write",
        {"file_path": "/home/me/w/a/b.txt", "content": "x"},
    )


def test_write_falls_back_to_the_shell(tmp_path):
    import subprocess

    _, arguments = call_of([chat_tool("bash", BASH)], Write("d/it's.txt", "50% 'x'\n"))
    subprocess.run(["sh", "-c", arguments["command"]], cwd=tmp_path, check=True)
    assert (tmp_path / "d" / "it's.txt").read_text() == "50% 'x'\n"


def test_write_makes_a_patch_for_a_freeform_tool():
    script = [Write("/w/a.txt", "one\ntwo\n")]
    with ScriptedModel(script) as model, Client(model, "responses", tools=CODEX) as client:
        item = client.ask("<cwd>/w</cwd> go")["output"][0]
    assert (item["type"], item["name"]) == ("custom_tool_call", "apply_patch")
    assert item["input"] == "*** Begin Patch\n*** Add File: a.txt\n+one\n+two\n*** End Patch"


def test_a_script_that_no_tool_can_do_is_an_error_of_the_script():
    with (
        pytest.raises(ScriptError, match="no tool that runs a command among \\['add'\\]"),
        ScriptedModel([Shell("ls")]) as model,
        Client(model, tools=[chat_tool("add", {})]) as client,
    ):
        reply = client.post("go")
        assert reply.status_code == 400
        assert "script error" in reply.json()["error"]["message"]


# -- the wires -----------------------------------------------------------------------------------


@pytest.mark.parametrize("api", PATHS)
def test_a_stream_and_a_document_say_the_same(api):
    turn = Text("héllo 🎉 world", thought="let me see", pieces=3)
    with ScriptedModel([turn]) as model:
        with Client(model, api) as client:
            assert client.text("go") == turn.text
        with Client(model, api, stream=True) as client:
            found = events(client.post("go", stream_options={"include_usage": True}))
    deltas = {
        "chat": lambda e: [c["delta"].get("content") or "" for c in e.get("choices", [])],
        "responses": lambda e: [e["delta"]] if e["type"] == "response.output_text.delta" else [],
        "anthropic": lambda e: [e.get("delta", {}).get("text", "")],
    }
    pieces = [piece for event in found for piece in deltas[api](event) if piece]
    assert "".join(pieces) == turn.text
    assert len(pieces) == 3


def test_usage_keeps_each_wires_own_convention():
    tokens = Tokens(input=100, cached=60, cache_write=10, output=20, reasoning=5, cost=0.5)
    found = {}
    for api in PATHS:
        with ScriptedModel([Text("x")], tokens=tokens) as model, Client(model, api) as client:
            found[api] = client.ask("go")["usage"]
    assert found["chat"]["prompt_tokens"] == 100
    assert found["chat"]["cost"] == 0.5
    assert found["responses"]["input_tokens_details"] == {"cached_tokens": 60}
    assert found["anthropic"]["input_tokens"] == 30  # neither read from a cache nor written to one


def test_usage_can_be_missing_and_a_stream_tells_it_only_when_asked():
    with ScriptedModel([Text("x", tokens=NO_USAGE), Text("y")]) as model, Client(model) as client:
        assert "usage" not in client.ask("a")
        client.stream = True
        assert not any("usage" in event for event in events(client.post("b")))


@pytest.mark.parametrize(
    ("api", "left"),
    [
        ("chat", {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}),
        ("responses", {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 3}}),
        ("anthropic", {"input_tokens": 4, "cache_read_input_tokens": 3}),
    ],
)
def test_a_figure_that_is_none_is_left_out(api, left):
    tokens = Tokens(input=7, cached=3, cache_write=None, output=None, reasoning=None)
    with ScriptedModel([Text("x", tokens=tokens)]) as model:
        with Client(model, api) as client:
            assert client.ask("go")["usage"] == left
        with Client(model, api, stream=True) as client:
            assert "output_tokens" not in client.post("go").text


@pytest.mark.parametrize("api", PATHS)
def test_what_no_client_knows(api):
    with ScriptedModel([Text("x", unknown=True)]) as model:
        with Client(model, api) as client:
            found = client.ask("go")
            assert "scripted_unknown" in found
            assert said_in(api, found) == "x"
        with Client(model, api, stream=True) as client:
            assert "scripted_unknown" in [event.get("type") for event in events(client.post("go"))]


def test_a_lone_surrogate_goes_out_as_an_escape():
    with ScriptedModel([Text("ok \ud83d end")]) as model, Client(model) as client:
        assert b"ok \\ud83d end" in client.post("go").content


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", [Cut("par"), Hang(0.05), Hang(0.05, after="par")])
def test_a_connection_that_ends_too_early(api, stream, fault):
    with ScriptedModel([fault, Text("ok")]) as model, Client(model, api, stream=stream) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            client.post("go")
        assert client.post().status_code == 200
    assert [request.completed for request in model.requests] == [False, True]


@pytest.mark.parametrize("api", PATHS)
def test_broken_streams_carry_the_partial_text_and_no_end(api):
    marks = ("[DONE]", "response.completed", "message_stop", "output_item.done", "content_block_stop")
    for fault, mark in [(Malformed("par"), "broken"), (StreamError(after="par"), "overloaded_error")]:
        with ScriptedModel([fault]) as model, Client(model, api, stream=True) as client:
            body = client.post("go").text
        assert '"pa"' in body
        assert mark in body
        assert not any(end in body for end in marks)


def test_garbage_is_a_page_with_status_200():
    with ScriptedModel([Garbage()]) as model, Client(model) as client:
        reply = client.post("go")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html")


def test_the_list_of_models_and_unknown_pages():
    with ScriptedModel(models=["a", "b"]) as model:
        found = httpx.get(model.base_url + "/models", trust_env=False).json()
        assert [row["id"] for row in found["data"]] == ["a", "b"]
        assert httpx.get(model.root_url + "/nope", trust_env=False).status_code == 404


def test_stopping_ends_connections_that_hang():
    with ThreadPoolExecutor(1) as pool:
        with ScriptedModel([Hang()]) as model, Client(model) as client:
            waiting = pool.submit(client.post, "go")
            model.wait_for(1)
            started = time.monotonic()
            model.stop()
            with pytest.raises(httpx.HTTPError):
                waiting.result(5)
        assert time.monotonic() - started < 2


def test_credentials_are_not_in_what_a_failing_test_would_print():
    with ScriptedModel([Text("x")]) as model, Client(model) as client:
        client.post("go")
    assert model.requests[0].api_key == "k"
    assert "authorization" not in model.requests[0].headers
    assert "Bearer" not in repr(model.requests)


def test_the_environment_for_agents_and_sdks():
    with ScriptedModel() as model:
        assert model.env()["OPENAI_BASE_URL"] == f"{model.root_url}/v1"
        assert model.env()["ANTHROPIC_BASE_URL"] == model.root_url
    with pytest.raises(RuntimeError, match="with statement"):
        _ = ScriptedModel().base_url


def test_the_fixture_starts_stops_and_checks():
    from pytest_ageval.testing.scripted_model.fixture import serve_models

    factory = serve_models()
    model = next(factory)([Shell("ls")])
    with Client(model, tools=[chat_tool("add", {})]) as client:
        client.post("go")
    with pytest.raises(ScriptError):
        next(factory)
    with pytest.raises(httpx.ConnectError):
        httpx.get(model.base_url + "/models", trust_env=False)


def test_bodies_may_be_chunked_or_compressed():
    import gzip

    body = json.dumps({"messages": [{"role": "user", "content": "go"}]}).encode()
    with ScriptedModel([Text("ok")]) as model, httpx.Client(trust_env=False) as http:
        url = model.root_url + PATHS["chat"]
        assert http.post(url, content=iter([body[:9], body[9:]])).status_code == 200
        packed = gzip.compress(body)
        assert http.post(url, content=packed, headers={"content-encoding": "gzip"}).status_code == 200
    assert [request.prompt for request in model.requests] == ["go", "go"]


def test_what_is_no_request_for_an_answer_is_told_so():
    with ScriptedModel([Text("ok")]) as model, httpx.Client(trust_env=False) as http:
        chat = model.root_url + PATHS["chat"]
        assert http.post(chat, content=b"{").status_code == 400
        assert http.post(chat, content=b"[]").status_code == 400
        assert http.post(chat, json={"previous_response_id": "r1"}).status_code == 400
        assert http.post(model.root_url + "/v1/embeddings", json={}).status_code == 404
        assert http.post(model.root_url + "/v1/messages/count_tokens", json={}).json()["input_tokens"] == 1
        assert http.head(model.root_url).status_code == 200
    assert model.requests == []


# -- Gemini ----------------------------------------------------------------------------------------

SHELL_OF_GEMINI = {
    "name": "run_shell_command",
    "parametersJsonSchema": {
        "type": "object",
        "properties": {"command": {"type": "string"}, "description": {"type": "string"}},
        "required": ["command"],
    },
}


def ask_gemini(
    model: ScriptedModel, contents: list[dict], *, stream: bool, tools: bool = True
) -> httpx.Response:
    verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
    body = {"contents": contents, "tools": [{"functionDeclarations": [SHELL_OF_GEMINI] if tools else []}]}
    url = f"{model.gemini_base_url}/v1beta/models/gemini-x:{verb}"
    with httpx.Client(trust_env=False, timeout=10) as client:
        return client.post(url, json=body, headers={"x-goog-api-key": "secret-key"})


def pieces(reply: httpx.Response, *, stream: bool) -> list[dict]:
    if not stream:
        return [reply.json()]
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if line]


@pytest.mark.parametrize("stream", [True, False])
def test_gemini_goes_through_the_script(stream: bool) -> None:
    with ScriptedModel([Shell("make"), Text("all done", thought="so")]) as model:
        said: list[dict] = [{"role": "user", "parts": [{"text": "go"}]}]
        first = pieces(ask_gemini(model, said, stream=stream), stream=stream)
        (call,) = [
            part["functionCall"]
            for piece in first
            for part in piece["candidates"][0]["content"]["parts"]
            if "functionCall" in part
        ]
        assert (call["name"], call["args"]["command"]) == ("run_shell_command", "make")
        assert first[-1]["candidates"][0]["finishReason"] == "STOP"
        answer = {"functionResponse": {"id": call["id"], "name": call["name"], "response": {"output": "ok"}}}
        said += [{"role": "model", "parts": [{"functionCall": call}]}, {"role": "user", "parts": [answer]}]
        second = pieces(ask_gemini(model, said, stream=stream), stream=stream)
    parts = [part for piece in second for part in piece["candidates"][0]["content"]["parts"]]
    assert "".join(part["text"] for part in parts if not part.get("thought")) == "all done"
    assert "".join(part["text"] for part in parts if part.get("thought")) == "so"
    usage = second[-1]["usageMetadata"]
    assert usage["promptTokenCount"] + usage["candidatesTokenCount"] + usage["thoughtsTokenCount"] == 1050
    request = model.requests[-1]
    assert (request.api, request.model, request.step, request.results) == ("gemini", "gemini-x", 1, ["ok"])
    assert request.api_key == "secret-key"
    assert "secret-key" not in json.dumps(dict(request.headers))


def test_faults_of_gemini() -> None:
    with ScriptedModel([HttpError(429), Malformed("half"), Cut("half"), Text("fine")]) as model:
        said = [{"role": "user", "parts": [{"text": "go"}]}]
        refused = ask_gemini(model, said, stream=True)
        assert refused.status_code == 429
        assert refused.json()["error"]["status"] == "RESOURCE_EXHAUSTED"
        assert '{"type": "broken' in ask_gemini(model, said, stream=True).text
        with pytest.raises(httpx.HTTPError):
            ask_gemini(model, said, stream=True)
        assert "fine" in "".join(
            part["text"]
            for piece in pieces(ask_gemini(model, said, stream=True), stream=True)
            for part in piece["candidates"][0]["content"]["parts"]
        )


def test_words_that_an_agent_plants_are_no_answer_of_the_model() -> None:
    with ScriptedModel([Text("first")]) as model, Client(model) as client:
        client.said = [
            {"role": "user", "content": "This is the context. I am working in the directory: /w/s"},
            {"role": "assistant", "content": "Got it. Thanks for the context!"},
        ]
        assert client.ask("go")["choices"][0]["message"]["content"] == "first"
    assert (model.requests[0].step, model.requests[0].cwd) == (0, "/w/s")
