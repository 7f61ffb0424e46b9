"""A handler as ageval calls it: `nxt` goes on with the value."""

from __future__ import annotations

from typing import Any


async def add_line(ctx: Any, value: str, nxt: Any) -> str:
    """Name the role in the prompt, as a comment of a shell script."""
    ctx.record_fact("lab_line_added", {"role": ctx.profile_id})
    return await nxt(f"# for the {ctx.profile_id}\n{value}")
