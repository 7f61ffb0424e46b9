"""A conversation in which an agent may call tools that the task executes.

A model behind an API calls them natively (`tools=` and `messages=`). An agent that brings its own
loop sees only the prompt; it is told the same tools in words and asks for a call with one JSON
object. Both end up in the same `ToolSet`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ageval_sdk import AgentSession, ToolSet
from shared.grading import Unreadable, parse_object, unfence

FALLBACK = """\
Call the tools with your tool interface. If you have none, answer with one JSON object and nothing
else, {"tool": "<name>", "arguments": {...}}; the next message brings its result. The tools are:
"""


class AgentStopped(Exception):
    """The agent gave no answer; the text is the reason that the session service reported."""


class Conversation:
    """One session plus its tools.

    `functions` are the OpenAI function schemas of what `tools` holds. `max_steps` bounds the model
    calls between two messages of the user.
    """

    def __init__(
        self,
        session: AgentSession,
        tools: ToolSet,
        functions: Sequence[Mapping[str, Any]],
        rules: str,
        *,
        max_steps: int = 10,
    ) -> None:
        self.session = session
        self.tools = tools
        self.functions = [{"type": "function", "function": dict(row)} for row in functions]
        self.max_steps = max_steps
        self.messages: list[dict[str, Any]] = []
        catalogue = "\n".join(json.dumps(row, sort_keys=True) for row in functions)
        self._opening = f"{rules.strip()}\n\n{FALLBACK}{catalogue}\n\n"
        self._calls_in_text = 0

    async def say(self, text: str) -> str:
        """Send one message of the user; the agent's answer after all its tool calls.

        Raises `AgentStopped`.
        """
        prompt = text if self.messages else self._opening + text
        self.messages.append({"role": "user", "content": prompt})
        for _ in range(self.max_steps):
            # `messages` is the whole conversation; the prompt is what the user says now, for
            # executors that keep a history of their own. After native calls that is nothing: their
            # results are in `messages`.
            reply = await self.session.invoke(prompt, tools=self.functions, messages=self.messages)
            if not reply["ok"]:
                raise AgentStopped(str(reply["error"]))
            answer = reply["text"]
            if reply["tool_calls"]:
                await self._native_calls(reply)
                prompt = ""
            elif (call := call_in_text(answer)) is not None:
                prompt = await self._call_in_text(answer, call, reply["invocation_id"])
            else:
                self.messages.append({"role": "assistant", "content": answer})
                return answer
        raise AgentStopped(f"no answer after {self.max_steps} rounds of tool calls")

    async def _native_calls(self, reply: Mapping[str, Any]) -> None:
        calls = reply["tool_calls"]
        self.messages.append(
            {
                "role": "assistant",
                "content": reply["text"] or None,
                "tool_calls": [
                    {
                        "id": call["id"],
                        "type": "function",
                        "function": {
                            "name": call["name"],
                            "arguments": json.dumps(call["arguments"]),
                        },
                    }
                    for call in calls
                ],
            }
        )
        for call in calls:
            content = await self._execute(call, call["id"], reply["invocation_id"])
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    async def _call_in_text(
        self, answer: str, call: Mapping[str, Any], invocation_id: str | None
    ) -> str:
        self._calls_in_text += 1
        content = await self._execute(call, f"text_{self._calls_in_text}", invocation_id)
        prompt = f"Result of {call['name']}: {content}"
        self.messages.append({"role": "assistant", "content": answer})
        self.messages.append({"role": "user", "content": prompt})
        return prompt

    async def _execute(
        self, call: Mapping[str, Any], call_id: str, invocation_id: str | None
    ) -> str:
        observation = await self.tools.call(call["name"], call["arguments"])
        content = json.dumps(observation, sort_keys=True)
        await self.session.record_observation(
            call_id,
            content=content,
            raw_output=observation,
            function_name=call["name"],
            error=observation["status"] != "ok",
            invocation_id=invocation_id,
        )
        return content


def call_in_text(text: str) -> dict[str, Any] | None:
    """The tool call that `text` spells as one JSON object, fenced or not; None if it is plain text."""
    try:
        value = parse_object(unfence(text))
    except Unreadable:
        return None
    if not isinstance(value.get("tool"), str):
        return None
    arguments = value.get("arguments", {})
    return {"name": value["tool"], "arguments": arguments if isinstance(arguments, dict) else {}}
