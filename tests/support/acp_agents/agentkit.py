"""Just enough JSON-RPC on stdio to write an agent that misbehaves as wanted. Standard library only."""

import json
import os
import sys

SESSION = "sess-1"


def write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def send(message: dict) -> None:
    write(json.dumps(message).encode() + b"\n")


def read() -> dict:
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def answer(request: dict, result: object) -> None:
    send({"jsonrpc": "2.0", "id": request["id"], "result": result})


def fail(request: dict, code: int, message: str, data: object = None) -> None:
    error = {"code": code, "message": message, "data": data}
    send({"jsonrpc": "2.0", "id": request["id"], "error": error})


def update(kind: str, session: str = SESSION, /, **fields: object) -> None:
    send(
        {
            "jsonrpc": "2.0",
            "method": "session/update",
            "params": {"sessionId": session, "update": {"sessionUpdate": kind, **fields}},
        }
    )


def say(text: str, **fields: object) -> None:
    update("agent_message_chunk", content={"type": "text", "text": text}, **fields)


def ask(method: str, params: dict, number: object = 77) -> dict:
    """Send a request to the client and wait for its answer."""
    send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    while True:
        message = read()
        if "method" not in message and message.get("id") == number:
            return message
        pending.append(message)


def ask_permission(options: list, number: object = 77, call: str = "call-1") -> dict:
    tool = {"toolCallId": call, "title": "rm -rf /", "kind": "execute"}
    return ask(
        "session/request_permission",
        {"sessionId": SESSION, "toolCall": tool, "options": options},
        number,
    )


pending: list = []


def handshake(capabilities: dict | None = None, **opened: object) -> None:
    """Answer initialize and session/new."""
    answer(expect("initialize"), initialized(capabilities))
    answer(expect("session/new"), {"sessionId": SESSION, **opened})


def initialized(capabilities: dict | None = None) -> dict:
    return {
        "protocolVersion": 1,
        "agentCapabilities": capabilities or {},
        "agentInfo": {"name": "scripted", "version": "1"},
    }


def expect(method: str) -> dict:
    message = pending.pop(0) if pending else read()
    assert message.get("method") == method, message
    return message


def prompt() -> dict:
    return expect("session/prompt")


def end(request: dict, reason: object = "end_turn", **more: object) -> None:
    answer(request, {"stopReason": reason, **more})


def idle() -> None:
    """Read on until stdin is closed."""
    while True:
        read()
