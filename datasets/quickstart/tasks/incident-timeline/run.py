"""Three researchers at once, then one editor."""

from __future__ import annotations

from pathlib import Path

from ageval_sdk import RunContext, RunTerminal, bounded_gather

SOURCES = ("deploys", "alerts", "tickets")


async def run(ctx: RunContext) -> RunTerminal:
    """Fan out, merge, publish the editor's answer as it is."""
    assert ctx.task_root is not None
    root = ctx.task_root
    reports = await bounded_gather(
        [research(ctx, root, source) for source in SOURCES], limit=len(SOURCES)
    )
    sections = []
    for source, report in zip(SOURCES, reports, strict=True):
        if isinstance(report, BaseException):
            return RunTerminal.failed(f"researcher {source}: {report}")
        sections.append(f"## {source}\n\n{report}\n")
    prompt = (root / "prompts" / "editor.md").read_text(encoding="utf-8")
    async with ctx.agent.session("editor", max_turns=1) as session:
        reply = await session.invoke(prompt.format(reports="\n".join(sections)))
    if not reply["ok"]:
        return RunTerminal.failed(f"editor: {reply['error']}")
    ctx.publish_json("timeline", {"text": reply["text"]})
    return RunTerminal.completed("merged")


async def research(ctx: RunContext, root: Path, source: str) -> str:
    """The report of one researcher. Raises `RuntimeError` when there is none."""
    prompt = (root / "prompts" / "researcher.md").read_text(encoding="utf-8")
    text = (root / "data" / f"{source}.txt").read_text(encoding="utf-8")
    async with ctx.agent.session("researcher", actor_id=source, max_turns=1) as session:
        reply = await session.invoke(prompt.format(source=source, text=text))
    if not reply["ok"]:
        raise RuntimeError(str(reply["error"]))
    return str(reply["text"])
