"""An agent for the soak: a process that speaks ACP, asks the model once, and fails in the way it is told.

Usage: soak_agent.py BASE_URL. The prompt is ``FAULT NUMBER``. Standard library only, in one file: it lies in
the workspace of its task.
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

#: Bytes that a loud agent writes to each of its streams, and of one piece.
LOUD = 512 * 1024
PIECE = 4096

#: Bytes that a file of an agent with a quota may have.
QUOTA = 4096


def main() -> None:
    request = next_prompt()
    fault, number = request["params"]["prompt"][0]["text"].split()[:2]
    if fault == "agent-hangs":
        time.sleep(3600)
    try:
        said = ask_model(f"{fault} {number}")
        work(fault, said)
    except OSError as error:
        answer(request, error={"code": -32603, "message": str(error)})
    else:
        say("done")
        answer(request, result={"stopReason": "end_turn"})
    while True:
        read()


def work(fault: str, said: str) -> None:
    if fault == "agent-killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "agent-loud":
        for _ in range(LOUD // PIECE):
            sys.stderr.write("x" * (PIECE - 1) + "\n")
            say("y" * PIECE)
        sys.stderr.flush()
    if fault == "agent-quota":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (QUOTA, QUOTA))
        said = said.ljust(2 * QUOTA)
    with Path("answer.txt").open("w", encoding="utf-8") as stream:
        stream.write(said)


def ask_model(prompt: str) -> str:
    """One call of Chat Completions."""
    url = urlsplit(sys.argv[1])
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=600)
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": prompt}]})
    connection.request("POST", f"{url.path}/chat/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    data = response.read()
    if response.status != 200:
        raise OSError(f"the model answered {response.status}")
    return str(json.loads(data)["choices"][0]["message"]["content"])


# -- the protocol ------------------------------------------------------------------------------------


def next_prompt() -> dict[str, Any]:
    """Say yes to what comes before it: the beginning, a session, the choice of the model."""
    while True:
        request = read()
        if request["method"] == "session/prompt":
            return request
        answer(request, result={"protocolVersion": 1, "agentCapabilities": {}, "sessionId": "soak"})


def read() -> dict[str, Any]:
    """The next message; the process ends with its client."""
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit(0)
    message: dict[str, Any] = json.loads(line)
    return message if "method" in message else read()


def send(**message: Any) -> None:
    data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def answer(request: dict[str, Any], **outcome: Any) -> None:
    if "id" in request:
        send(id=request["id"], **outcome)


def say(text: str) -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    send(method="session/update", params={"sessionId": "soak", "update": update})


if __name__ == "__main__":
    main()
