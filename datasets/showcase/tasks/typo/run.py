"""Never reached: task.yaml is not acceptable."""

from __future__ import annotations

from ageval_sdk import RunContext, RunTerminal


async def run(ctx: RunContext) -> RunTerminal:
    """Ask the solver for nothing."""
    async with ctx.agent.session("solver", max_turns=1) as session:
        await session.invoke("Say hello.")
    return RunTerminal.completed("asked")
