"""The dialog: the customer writes, the agent answers after any number of tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ageval_sdk import RunContext, RunTerminal
from lib.airline import FUNCTIONS, Airline
from lib.customer import CLOSING, OPENING, Customer
from shared.conversation import AgentStopped, Conversation

#: The customer loses patience after this many messages.
MAX_MESSAGES = 8


async def run(ctx: RunContext) -> RunTerminal:
    """Play the dialog and publish what it left behind, also when the agent stopped half way."""
    assert ctx.task_root is not None
    policy = (ctx.task_root / "data" / "policy.md").read_text(encoding="utf-8")
    airline = Airline()
    customer = Customer(airline)
    tools = airline.tools()
    changes: list[dict[str, Any]] = []

    def note_change(name: str, arguments: Mapping[str, Any]) -> None:
        if name in ("rebook", "cancel"):
            row = {"tool": name, "arguments": dict(arguments), "agreed": customer.agreed}
            changes.append(row)

    tools.before_hooks.append(note_change)
    transcript: list[dict[str, str]] = []
    terminal = RunTerminal.failed("the customer lost patience")
    async with ctx.agent.session("service", max_turns=100) as session:
        conversation = Conversation(session, tools, FUNCTIONS, policy)
        message: str | None = OPENING
        while message is not None and len(transcript) < 2 * MAX_MESSAGES:
            transcript.append({"from": "customer", "text": message})
            try:
                text = await conversation.say(message)
            except AgentStopped as stopped:
                terminal = RunTerminal.failed(str(stopped))
                break
            transcript.append({"from": "service", "text": text})
            message = customer.answer(text)
            if message is None:
                transcript.append({"from": "customer", "text": CLOSING})
                terminal = RunTerminal.completed("the customer left")
    ctx.publish_json(
        "final-state",
        {
            "reservations": airline.reservations,
            "flights": airline.flights,
            "changes": changes,
            "transcript": transcript,
        },
    )
    return terminal
