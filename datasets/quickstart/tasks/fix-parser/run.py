"""One instruction; the mended program is harvested from the workspace."""

from __future__ import annotations

from ageval_sdk import RunContext, RunTerminal
from shared.box_work import instruct


async def run(ctx: RunContext) -> RunTerminal:
    """Ask the solver to mend the program."""
    return await instruct(ctx)
