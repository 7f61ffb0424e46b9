"""One prompt; the reply is published."""

from __future__ import annotations

from ageval_sdk import RunContext, RunTerminal


async def run(ctx: RunContext) -> RunTerminal:
    """Ask the solver."""
    async with ctx.agent.session("solver", max_turns=1) as session:
        reply = await session.invoke("Say hello in one word.")
    if not reply["ok"]:
        return RunTerminal.failed(str(reply["error"]))
    ctx.publish_json("reply", {"text": reply["text"]})
    return RunTerminal.completed("asked")
