"""One prompt; the reply is the release note."""

from __future__ import annotations

from ageval_sdk import RunContext, RunTerminal


async def run(ctx: RunContext) -> RunTerminal:
    """Ask the writer and publish its text."""
    assert ctx.task_root is not None
    instruction = (ctx.task_root / "prompts" / "instruction.md").read_text(encoding="utf-8")
    log = (ctx.task_root / "data" / "CHANGES.txt").read_text(encoding="utf-8")
    prompt = instruction.format(max_words=ctx.params.require_int("max_words")) + log
    async with ctx.agent.session("writer", max_turns=1) as session:
        reply = await session.invoke(prompt)
    if not reply["ok"]:
        return RunTerminal.failed(str(reply["error"]))
    ctx.publish_json("note", {"text": reply["text"]})
    return RunTerminal.completed("a text was written")
