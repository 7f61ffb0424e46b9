"""A small coding agent: asks a model in Chat Completions, runs its commands, keeps its sessions below HOME.

Usage: model_agent.py MODEL [any-id]. With any-id it says yes to every session/load, as some agents do.
Standard library only.
"""

import http.client
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from agentkit import answer, end, fail, initialized, send, update

STORE = Path(os.environ["HOME"], ".model-agent")
SHELL = {
    "name": "shell",
    "description": "Runs a command in the workspace.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
OPTIONS = [
    {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]
USAGE = {
    "inputTokens": ("prompt_tokens",),
    "outputTokens": ("completion_tokens",),
    "totalTokens": ("total_tokens",),
    "cachedReadTokens": ("prompt_tokens_details", "cached_tokens"),
    "thoughtTokens": ("completion_tokens_details", "reasoning_tokens"),
}


class ProviderError(Exception):
    def __init__(self, message: str, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.data = {"retryAfter": float(retry_after)} if retry_after else None


class Inbox:
    """What the client sends. ``session/cancel`` is heard at once, whatever the agent is doing."""

    def __init__(self) -> None:
        self.messages: queue.Queue = queue.Queue()
        self.cancelled = threading.Event()
        self.connection: http.client.HTTPConnection | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            message = json.loads(line)
            if message.get("method") == "session/cancel":
                self.cancelled.set()
                connection = self.connection
                if connection is not None and connection.sock is not None:
                    connection.sock.shutdown(socket.SHUT_RDWR)
            else:
                self.messages.put(message)
        os._exit(0)

    def next(self) -> dict:
        return self.messages.get()


inbox = Inbox()


class Conversation:
    def __init__(self, session_id: str, messages: list) -> None:
        self.id = session_id
        self.messages = messages
        self.effort: str | None = None
        self.usage: dict | None = {}

    def save(self) -> None:
        STORE.mkdir(exist_ok=True)
        (STORE / f"{self.id}.json").write_text(json.dumps(self.messages))

    def replay(self) -> None:
        for message in self.messages:
            kind = {"user": "user_message_chunk", "assistant": "agent_message_chunk"}.get(message["role"])
            if kind and message["content"]:
                self.tell(kind, content={"type": "text", "text": message["content"]})

    def tell(self, update_kind: str, /, **fields: object) -> None:
        update(update_kind, self.id, **fields)

    def turn(self, request: dict) -> None:
        before = len(self.messages)
        self.messages.append({"role": "user", "content": request["params"]["prompt"][0]["text"]})
        self.usage = {}
        inbox.cancelled.clear()
        self.tell("totally_new_kind", payload={"a": [1, 2]})
        try:
            reason = self.steps()
        except (ProviderError, OSError, http.client.HTTPException, ValueError) as error:
            del self.messages[before:]
            if inbox.cancelled.is_set():
                end(request, "cancelled")
            else:
                told = str(error) if isinstance(error, ProviderError) else f"stream disconnected: {error!r}"
                fail(request, -32603, told, getattr(error, "data", None))
            return
        self.save()
        end(request, reason, **({"usage": self.usage} if self.usage else {}))

    def steps(self) -> str:
        while True:
            message, reason = self.ask()
            self.messages.append(message)
            for call in message.get("tool_calls", ()):
                output = self.run(call)
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
            if not message.get("tool_calls"):
                return {"length": "max_tokens", "content_filter": "refusal"}.get(reason, "end_turn")

    def ask(self) -> tuple[dict, str | None]:
        url = urlsplit(os.environ["OPENAI_BASE_URL"])
        connection = inbox.connection = http.client.HTTPConnection(url.hostname, url.port)
        body = {
            "model": sys.argv[1],
            "messages": self.messages,
            "tools": [{"type": "function", "function": SHELL}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.effort:
            body["reasoning_effort"] = self.effort
        headers = {"authorization": f"Bearer {os.environ.get('CONTRACT_API_KEY', '')}"}
        try:
            connection.request("POST", f"{url.path}/chat/completions", json.dumps(body), headers)
            return self.receive(connection.getresponse())
        finally:
            connection.close()

    def receive(self, response: http.client.HTTPResponse) -> tuple[dict, str | None]:
        if response.status != 200:
            said = response.read().decode()
            raise ProviderError(f"{response.status} {said}", response.headers["retry-after"])
        if "event-stream" not in response.headers["content-type"]:
            raise ProviderError(f"stream disconnected: a {response.headers['content-type']} came instead")
        text, calls, reason = "", {}, None
        for line in response:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                message = {"role": "assistant", "content": text}
                return (message | {"tool_calls": list(calls.values())} if calls else message), reason
            row = json.loads(data)
            if "error" in row:
                raise ProviderError(f"{row['error'].get('code')}: {row['error'].get('message')}")
            self.count(row.get("usage"))
            for choice in row.get("choices", ()):
                delta = choice["delta"]
                reason = choice.get("finish_reason") or reason
                text += self.piece(delta)
                for part in delta.get("tool_calls", ()):
                    call = calls.setdefault(
                        part["index"],
                        {"id": part.get("id"), "type": "function", "function": {"name": "", "arguments": ""}},
                    )
                    for name, piece in part["function"].items():
                        call["function"][name] += piece
        raise ProviderError("stream disconnected before completion")

    def piece(self, delta: dict) -> str:
        kinds = {"reasoning_content": "agent_thought_chunk", "content": "agent_message_chunk"}
        for key, kind in kinds.items():
            if delta.get(key):
                self.tell(kind, content={"type": "text", "text": delta[key]})
        return delta.get("content") or ""

    def count(self, row: dict | None) -> None:
        for name, path in USAGE.items():
            found = row
            for key in path:
                found = (found or {}).get(key)
            if found is not None:
                self.usage[name] = self.usage.get(name, 0) + found

    def run(self, call: dict) -> str:
        command = json.loads(call["function"]["arguments"])["command"]
        tool = {"toolCallId": call["id"], "title": command[:200], "kind": "execute"}
        self.tell("tool_call", **tool, status="pending", rawInput={"command": command})
        if not self.allowed(tool):
            output, status = "The user did not allow it.", "failed"
        else:
            done = subprocess.run(
                ["sh", "-c", command], capture_output=True, text=True, stdin=subprocess.DEVNULL
            )
            output, status = done.stdout + done.stderr, "failed" if done.returncode else "completed"
        content = [{"type": "content", "content": {"type": "text", "text": output}}]
        self.tell("tool_call_update", toolCallId=call["id"], status=status, content=content)
        return output

    def allowed(self, tool: dict) -> bool:
        number = f"ask-{uuid.uuid4()}"
        params = {"sessionId": self.id, "toolCall": tool, "options": OPTIONS}
        send({"jsonrpc": "2.0", "id": number, "method": "session/request_permission", "params": params})
        reply = inbox.next()
        assert reply["id"] == number, reply
        return reply["result"]["outcome"].get("optionId") == "yes"


def opened(conversation: Conversation) -> dict:
    effort = {"id": "effort", "name": "Effort", "category": "thought_level", "type": "select"}
    return {"sessionId": conversation.id, "configOptions": [effort]}


def load(request: dict) -> Conversation | None:
    session_id = request["params"]["sessionId"]
    path = STORE / f"{session_id}.json"
    if not path.is_file() and "any-id" not in sys.argv:
        fail(request, -32002, f"Resource not found: {session_id}")
        return None
    conversation = Conversation(session_id, json.loads(path.read_text()) if path.is_file() else [])
    conversation.replay()
    answer(request, opened(conversation))
    return conversation


def main() -> None:
    conversation = None
    while True:
        request = inbox.next()
        method = request.get("method")
        if method == "initialize":
            answer(request, initialized({"loadSession": True}))
        elif method == "session/new":
            conversation = Conversation(uuid.uuid4().hex, [])
            answer(request, opened(conversation))
        elif method == "session/load":
            conversation = load(request) or conversation
        elif method == "session/set_config_option":
            conversation.effort = request["params"]["value"]
            answer(request, {})
        elif method == "session/prompt":
            conversation.turn(request)
        elif "id" in request and method:
            fail(request, -32601, f"Method not found: {method}")


main()
