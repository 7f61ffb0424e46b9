"""Agents that do what real ones have been seen to do. Usage: raw_agent.py SCENARIO [ARGUMENT]."""

import json
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from agentkit import (
    SESSION,
    answer,
    ask,
    ask_permission,
    end,
    expect,
    fail,
    handshake,
    idle,
    initialized,
    pending,
    prompt,
    read,
    say,
    send,
    update,
    write,
)

ARGUMENT = sys.argv[2] if len(sys.argv) > 2 else ""


def hello() -> None:
    """Says hello, and how long the prompt was; every turn."""
    handshake()
    while True:
        request = prompt()
        text = request["params"]["prompt"][0]["text"]
        say("hello, ")
        say(f"{len(text)}")
        end(request)


def tools() -> None:
    """One read, one write (with permission), a thought."""
    handshake()
    request = prompt()
    update("agent_thought_chunk", content={"type": "text", "text": "let me see"})
    update("tool_call", toolCallId="t1", title="Read a", kind="read", rawInput={"path": "a"})
    content = [{"type": "content", "content": {"type": "text", "text": "the file"}}]
    update("tool_call_update", toolCallId="t1", status="completed", content=content)
    if ARGUMENT != "read":
        update("tool_call", toolCallId="t2", title="Write b", kind="edit", status="in_progress")
        diff = [{"type": "diff", "path": "b", "oldText": None, "newText": "new"}]
        update("tool_call_update", toolCallId="t2", status="failed", content=diff, rawOutput={"exit_code": 3})
        update("tool_call", toolCallId="t3", title="Sleep", kind="execute", status="in_progress")
    say("done")
    end(request)
    idle()


def long_line() -> None:
    handshake()
    request = prompt()
    size = int(ARGUMENT)
    line = json.dumps(
        {
            "jsonrpc": "2.0",
            "method": "session/update",
            "params": {
                "sessionId": SESSION,
                "update": {
                    "sessionUpdate": "tool_call",
                    "toolCallId": "big",
                    "kind": "read",
                    "status": "completed",
                    "content": [{"type": "content", "content": {"type": "text", "text": "@"}}],
                },
            },
        }
    )
    line = line.replace("@", "x" * (size - len(line) + 1))
    assert len(line) == size
    write(line.encode() + b"\n")
    end(request)
    idle()


def cuts() -> None:
    """One message of 5 MiB in one write, in 4 KiB writes, cut before or after its end; then a small one."""
    handshake()
    request = prompt()
    text = "y" * (5 * 2**20)
    chunk = {"type": "text", "text": text}
    big = {"sessionUpdate": "agent_message_chunk", "content": chunk}
    small = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "|"}}

    def frame(body: dict) -> bytes:
        params = {"sessionId": SESSION, "update": body}
        message = {"jsonrpc": "2.0", "method": "session/update", "params": params}
        return json.dumps(message).encode() + b"\n"

    data, after = frame(big), frame(small)
    if ARGUMENT == "whole":
        write(data + after)
    elif ARGUMENT == "pages":
        for start in range(0, len(data), 4096):
            write(data[start : start + 4096])
        write(after)
    elif ARGUMENT == "before":
        write(data[:-1])
        time.sleep(0.1)
        write(data[-1:] + after)
    else:
        write(data)
        time.sleep(0.1)
        write(after)
    end(request)
    idle()


NOISE = [
    b"Welcome back",
    b"",
    b"[adapter] ready",
    b"42",
    b'"str"',
    b"[]",
    b"null",
    b'{"level":"info"}',
    b"\xff\xfe broken utf-8",
    b"[" * 100_000,
    b'{"jsonrpc":"2.0","id":true,"result":{}}',
    b'{"jsonrpc":"2.0","id":[],"result":{}}',
]


def noise() -> None:
    def chatter() -> None:
        for line in NOISE:
            write(line + b"\n")

    chatter()
    request = expect("initialize")
    chatter()
    answer(request, initialized())
    answer(expect("session/new"), {"sessionId": SESSION})
    request = prompt()
    chatter()
    say("still here")
    chatter()
    end(request)
    idle()


def babble() -> None:
    """Never a message."""
    write(b"Usage: frobnicate [OPTIONS] FILE\n")
    for _ in range(300):
        write(b"nonsense\n")
    time.sleep(60)


def kinds() -> None:
    handshake()
    request = prompt()
    update("user_message_chunk", content={"type": "text", "text": "the prompt again"})
    update("available_commands_update", availableCommands=[])
    update("current_mode_update", currentModeId="x")
    update("config_option_update", configOptions=[])
    update("session_info_update", title="t", _meta={"a": 1})
    update("usage_update", used=10, size=100, _meta={})
    update("totally_new_kind", payload={"a": [1, 2]})
    update("agent_message_chunk")
    update("agent_message_chunk", content={"type": "image", "data": "", "mimeType": "image/png"})
    update("tool_call", title="no id")
    update("plan", entries="not a list")
    update("tool_call_update", toolCallId="only-updates", status="completed", extra=1)
    for params in (None, 7, [], {"sessionId": SESSION}, {"sessionId": SESSION, "update": "text"}):
        send({"jsonrpc": "2.0", "method": "session/update", "params": params})
    send({"jsonrpc": "2.0", "method": "_vendor/notice", "params": {"a": 1}})
    send({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"id": 1}})
    say("lone surrogate: \ud800.", _meta={"more": True})
    end(request)
    idle()


def stop() -> None:
    handshake()
    request = prompt()
    say("text")
    if ARGUMENT == "missing":
        answer(request, {})
    elif ARGUMENT == "not-an-object":
        answer(request, "end_turn")
    else:
        end(request, json.loads(ARGUMENT))
    idle()


def permission() -> None:
    handshake()
    request = prompt()
    reply = ask_permission(json.loads(ARGUMENT))
    say(json.dumps(reply["result"]["outcome"]))
    end(request)
    idle()


def hung_permission() -> None:
    """Does not end its turn before its request is answered."""
    handshake()
    request = prompt()
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    reply = ask_permission(options)
    cancelled = pending.pop(0) if pending else read()
    say(f"{reply['result']['outcome']['outcome']}, then {cancelled['method']}")
    end(request, "cancelled")
    idle()


def unknown_requests() -> None:
    handshake()
    request = prompt()
    codes = [
        ask(method, {"sessionId": SESSION}, number)["error"]["code"]
        for method, number in (("_vendor/drain", 77), ("terminal/create", "text-id"), ("x", 2.5))
    ]
    send({"jsonrpc": "2.0", "method": "_vendor/notification", "params": {}})
    say(json.dumps(codes))
    end(request)
    idle()


def files() -> None:
    """Reads and writes through the client, inside and outside of the workspace."""
    handshake()
    request = prompt()
    cwd = os.getcwd()
    told = {}
    write_file = {"path": f"{cwd}/sub/new.txt", "content": "one\ntwo\nthree"}
    told["write"] = ask("fs/write_text_file", write_file).get("result")
    told["read"] = ask("fs/read_text_file", {"path": f"{cwd}/sub/new.txt"})["result"]["content"]
    part = {"path": f"{cwd}/sub/new.txt", "line": 2, "limit": 1}
    told["part"] = ask("fs/read_text_file", part)["result"]["content"]
    os.symlink("/etc/hostname", f"{cwd}/link")
    os.symlink("/etc", f"{cwd}/dir")
    for path in (
        "/etc/hostname",
        f"{cwd}/../x",
        f"{cwd}/link",
        f"{cwd}/dir/hostname",
        "relative",
        f"{cwd}/no",
    ):
        told[path.replace(cwd, "")] = ask("fs/read_text_file", {"path": path})["error"]["code"]
    bad = ask("fs/write_text_file", {"path": f"{cwd}/dir/evil", "content": "x"})
    told["write outside"] = bad["error"]["code"]
    say(json.dumps(told))
    end(request)
    idle()


def die() -> None:
    if ARGUMENT == "at-once":
        sys.stderr.write("SyntaxError: bad agent\n")
        sys.exit(1)
    if ARGUMENT == "after-initialize":
        answer(expect("initialize"), initialized())
        read()
        sys.exit(0)
    handshake()
    if ARGUMENT == "closes-stdin":
        os.close(0)
        time.sleep(60)
    request = prompt()
    say("working")
    sys.stderr.write("Traceback: it hurts\n")
    sys.stderr.flush()
    if ARGUMENT == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if ARGUMENT == "closes-stdout":
        os.close(1)
        time.sleep(60)
    if ARGUMENT == "held-pipe":
        subprocess.Popen(["sleep", "60"], start_new_session=True)
        os._exit(3)
    if ARGUMENT == "half-line":
        write(b'{"jsonrpc":"2.0","method":"session/upd')
        os._exit(0)
    raise AssertionError(request)


def stderr_flood() -> None:
    block = b"e" * 1023 + b"\n"
    for _ in range(5 * 1024):
        os.write(2, block)
    handshake()
    request = prompt()
    for _ in range(5 * 1024):
        os.write(2, block)
    os.write(2, b"the last line\n")
    say("quiet on stdout")
    end(request)
    idle()


def late() -> None:
    answer(expect("initialize"), initialized())
    request = expect("session/new")
    update("available_commands_update", availableCommands=[])
    answer(request, {"sessionId": SESSION})
    update("current_mode_update", currentModeId="before any prompt")
    request = prompt()
    say("in time")
    end(request)
    time.sleep(0.1)
    say(" and late")
    update("agent_message_chunk", "another-session", content={"type": "text", "text": "lost"})
    request = prompt()
    say("second turn")
    end(request)
    idle()


def rpc_error() -> None:
    handshake()
    request = prompt()
    found = json.loads(ARGUMENT)
    if found.pop("after_tool", False):
        update("tool_call", toolCallId="t", kind="execute", status="completed")
    fail(request, **found)
    while True:
        request = prompt()
        say("recovered")
        end(request)


def refuse_option() -> None:
    option = {"id": "model", "name": "Model", "category": "model", "type": "select"}
    options = [] if ARGUMENT == "no-option" else [option]
    handshake(configOptions=options)
    while True:
        request = pending.pop(0) if pending else read()
        if request["method"] == "session/prompt":
            say(" ".join(seen))
            end(request)
        elif ARGUMENT == "accept":
            seen.append(f"{request['method']}:{request['params'].get('value')}")
            answer(request, {})
        else:
            fail(request, -32601, "Method not found")


seen: list = []


def fake_success() -> None:
    handshake()
    request = prompt()
    if ARGUMENT == "system-error":
        meta = {"codex": {"threadStatus": {"type": "systemError"}}}
        update("session_info_update", _meta=meta)
        say("We're currently experiencing high demand")
        end(request, usage=None)
    elif ARGUMENT == "declared":
        say("HTTP 400: invalid model")
        end(request, _meta={"x": {"failed": True, "error": "HTTP 400"}})
    else:
        say("HTTP 400: invalid model")
        end(request)
    idle()


def usage() -> None:
    """Two turns; ARGUMENT is [[updates of turn 1], result 1, [updates of turn 2], result 2]."""
    handshake()
    plan = json.loads(ARGUMENT)
    for updates, result in zip(plan[::2], plan[1::2], strict=True):
        request = prompt()
        for fields in updates:
            update("usage_update", **fields)
        if result == "hang":
            idle_until_cancel(request)
        else:
            end(request, **result)
    idle()


def idle_until_cancel(request: dict) -> None:
    while read().get("method") != "session/cancel":
        pass
    end(request, "cancelled")


def hang() -> None:
    """Never ends its turn; a child that ignores TERM keeps on working."""
    handshake()
    prompt()
    say("started")
    trap = 'trap "" TERM; while :; do date >> tick; sleep 0.1; done'
    subprocess.Popen(["bash", "-c", trap], start_new_session=ARGUMENT == "setsid")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


def cancellable() -> None:
    handshake()
    while True:
        request = prompt()
        say("working")
        idle_until_cancel(request)


def load() -> None:
    """ARGUMENT: ok, empty (an answer without replay), late (the replay follows the answer), error, auth."""
    answer(expect("initialize"), initialized({"loadSession": True}))
    request = expect("session/load")
    if ARGUMENT == "error":
        fail(request, -32603, "no rollout found for thread")
    elif ARGUMENT == "auth":
        fail(request, -32000, "Authentication required")
    else:
        update("available_commands_update", "old", availableCommands=[])
        if ARGUMENT == "ok":
            update("agent_message_chunk", "old", content={"type": "text", "text": "replayed"})
            update("usage_update", "old", inputTokens=100, outputTokens=0, totalTokens=100)
        answer(request, {})
        if ARGUMENT == "late":
            time.sleep(0.2)
            update("agent_message_chunk", "old", content={"type": "text", "text": "replayed"})
        request = prompt()
        update("agent_message_chunk", "old", content={"type": "text", "text": "continued"})
        end(request, usage={"inputTokens": 250, "outputTokens": 0, "totalTokens": 250})
    idle()


def resume() -> None:
    """Has session/resume alone, which replays nothing. ARGUMENT: ok, lost (the first prompt is refused)."""
    answer(expect("initialize"), initialized({"sessionCapabilities": {"resume": {}}}))
    answer(expect("session/resume"), {})
    request = prompt()
    if ARGUMENT == "ok":
        update("agent_message_chunk", "old", content={"type": "text", "text": "continued"})
        end(request, usage={"inputTokens": 250, "outputTokens": 0, "totalTokens": 250})
    else:
        end(request, "refusal")
    idle()


def auth() -> None:
    answer(expect("initialize"), initialized())
    fail(expect("session/new"), -32000, "Authentication required", {"methods": ["login"]})
    idle()


def silent() -> None:
    time.sleep(60)


def environment() -> None:
    handshake()
    request = prompt()
    say(json.dumps({"argv": sys.argv[2:], "cwd": os.getcwd(), "env": dict(os.environ)}))
    end(request)
    idle()


globals()[sys.argv[1]]()
