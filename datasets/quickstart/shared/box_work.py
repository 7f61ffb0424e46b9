"""The run of a task whose work is done in the box: one instruction, then the files are harvested."""

from __future__ import annotations

from ageval_sdk import RunContext, RunTerminal


async def instruct(ctx: RunContext, role: str = "solver") -> RunTerminal:
    """Give `role` the text of prompts/instruction.md, once.

    What the agent leaves in the workspace is what counts; the engine collects the declared
    artifacts when the agent has stopped, so nothing is published here.
    """
    assert ctx.task_root is not None
    instruction = (ctx.task_root / "prompts" / "instruction.md").read_text(encoding="utf-8")
    async with ctx.agent.session(role, max_turns=1) as session:
        reply = await session.invoke(instruction)
    if not reply["ok"]:
        return RunTerminal.failed(str(reply["error"]))
    return RunTerminal.completed("instructed")
