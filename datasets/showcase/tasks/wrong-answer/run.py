"""One instruction; stock.json is harvested from the workspace."""

from __future__ import annotations

from ageval_sdk import RunContext, RunTerminal

INSTRUCTION = """\
movements.csv in your working directory lists what came into a shop's stock and what left it: bought,
sold, or returned by a customer (which puts it back into stock). All stock was 0 before.

Write stock.json there: one JSON object, product name to number of pieces in stock.
"""


async def run(ctx: RunContext) -> RunTerminal:
    """Ask the solver."""
    async with ctx.agent.session("solver", max_turns=1) as session:
        reply = await session.invoke(INSTRUCTION)
    if not reply["ok"]:
        return RunTerminal.failed(str(reply["error"]))
    return RunTerminal.completed("instructed")
