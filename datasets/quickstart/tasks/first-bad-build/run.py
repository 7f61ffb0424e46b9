"""Answer the agent's questions until it names a build or may not ask any more."""

from __future__ import annotations

from typing import Any

from ageval_sdk import RunContext, RunTerminal
from lib.builds import first_bad, last_move

RULES = """\
Builds 1 to {builds} of a product lie in order. Build 1 is good, build {builds} is bad; from one build
on, all are bad. Find the first bad build.

Answer with one line and nothing else: `TEST <number>` to learn whether a build is good or bad, or
`FOUND <number>` to name the first bad build, which ends the search. You have {turns} answers in all.
"""


async def run(ctx: RunContext) -> RunTerminal:
    """Play the search and publish the moves; the engine's limit on invocations ends it at the latest."""
    builds = ctx.params.require_int("builds")
    bad = first_bad(builds, ctx.params.require_int("seed"))
    moves: list[dict[str, Any]] = []
    found: int | None = None
    terminal = RunTerminal.completed("a build was named")
    prompt = RULES.format(builds=builds, turns=ctx.params.require_int("answers"))
    # No limit of our own: the engine counts the invocations, and its limit shows in the result.
    async with ctx.agent.session("solver", max_turns=10_000) as session:
        while found is None:
            reply = await session.invoke(prompt)
            if not reply["ok"]:
                terminal = RunTerminal.failed(str(reply["error"]))
                break
            move = last_move(reply["text"])
            if move is None:
                prompt = "Answer with `TEST <number>` or `FOUND <number>`."
            elif not 1 <= move[1] <= builds:
                prompt = f"There are only builds 1 to {builds}."
            elif move[0] == "found":
                found = move[1]
            else:
                is_bad = move[1] >= bad
                moves.append({"build": move[1], "bad": is_bad})
                prompt = f"Build {move[1]} is {'bad' if is_bad else 'good'}."
    ctx.publish_json("search", {"moves": moves, "found": found})
    return terminal
