"""Check what can be counted, then let a judge grade the rest by the rubric."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from ageval_sdk import ScriptError
from shared.grading import Grade, Unreadable, parse_object, read_object, shorten, unfence

MAX_POINTS = 2
INTERNAL = re.compile(r"BlobStore|refactor|runners|#\d{3,}", re.IGNORECASE)


async def evaluate(inputs: dict[str, Any]) -> dict[str, Any]:
    """PASS if every plain check passed and the judge gave enough points."""
    grade = Grade()
    try:
        note = str(read_object(inputs["artifacts"], "note")["text"]).strip()
    except Unreadable:
        note = ""
    if not grade.check("written", bool(note), "the writer's answer is a text", "an empty answer"):
        return grade.verdict(judged=False)
    words, limit = len(note.split()), inputs["parameters"]["max_words"]
    grade.check("length", words <= limit, f"at most {limit} words", f"{words} words")
    grade.check("version", "4.2.0" in note, "the note names version 4.2.0", shorten(note))
    internal = INTERNAL.findall(note)
    grade.check("internal", not internal, "nothing about internal work", shorten(internal))
    gold = Path(inputs["evaluation_dir"])
    rubric = json.loads((gold / "rubric.json").read_text(encoding="utf-8"))
    template = (gold / "judge.md").read_text(encoding="utf-8")
    plain = grade.verdict()["score"]
    verdict = await judge(inputs, template, rubric["criteria"], note)
    points, most = sum(verdict["points"].values()), MAX_POINTS * len(rubric["criteria"])
    grade.check(
        "rubric",
        points >= rubric["pass_points"],
        f"at least {rubric['pass_points']} of {most} points from the judge",
        f"{points} points: {shorten(verdict)}",
    )
    return grade.verdict(score=plain * points / most, judged=True, points=points)


async def judge(
    inputs: dict[str, Any], template: str, criteria: dict[str, str], note: str
) -> dict[str, Any]:
    """The judge's answer, checked. Raises `ScriptError`: no verdict without a sound one."""
    agent = inputs.get("agent")
    if agent is None:
        raise ScriptError("judge_missing", "no agent is bound to the role judge")
    # A fence that the writer cannot have known.
    fence = f"=== {hashlib.sha256(template.encode() + note.encode()).hexdigest()[:16]} ==="
    listed = "\n".join(f"- {name}: {text}" for name, text in criteria.items())
    async with agent.session("judge", max_turns=1) as session:
        reply = await session.invoke(template.format(fence=fence, criteria=listed, note=note))
    if not reply["ok"]:
        raise ScriptError("judge_unavailable", str(reply["error"]))
    return parse_verdict(reply["text"], criteria)


def parse_verdict(text: str, criteria: dict[str, str]) -> dict[str, Any]:
    """The verdict in the judge's answer. Raises `ScriptError`."""
    try:
        verdict = parse_object(unfence(text))
    except Unreadable as problem:
        raise ScriptError("judge_answer_invalid", str(problem)) from None
    points = verdict.get("points")
    if not isinstance(points, dict) or set(points) != set(criteria):
        raise ScriptError(
            "judge_answer_invalid", f"points for {sorted(criteria)} expected: {shorten(verdict)}"
        )
    for criterion, given in points.items():
        if isinstance(given, bool) or given not in range(MAX_POINTS + 1):
            raise ScriptError("judge_answer_invalid", f"{criterion}: {shorten(given)} points")
    return verdict
