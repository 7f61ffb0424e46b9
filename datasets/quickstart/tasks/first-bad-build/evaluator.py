"""Grade the search: the right build, or how far the tests had narrowed it down."""

from __future__ import annotations

import math
from typing import Any

from lib.builds import first_bad
from shared.grading import Grade, Unreadable, read_object

#: What narrowing alone is worth, when the build was not named.
PARTIAL = 0.5


def evaluate(inputs: dict[str, Any]) -> dict[str, Any]:
    """PASS for the right build; else a score below `PARTIAL` for the halvings that were done."""
    grade = Grade()
    parameters = inputs["parameters"]
    builds = parameters["builds"]
    bad = first_bad(builds, parameters["seed"])
    try:
        search = read_object(inputs["artifacts"], "search")
    except Unreadable as problem:
        grade.check("search", False, "the search left a record", str(problem))
        return grade.verdict()
    found, moves = search["found"], search["moves"]
    low = max((row["build"] for row in moves if not row["bad"]), default=1)
    high = min((row["build"] for row in moves if row["bad"]), default=builds)
    named = grade.check(
        "named",
        found is not None,
        f"a build is named within {parameters['answers']} answers",
        f"{len(moves)} builds tested, none named",
    )
    right = grade.check(
        "right", found == bad, f"the first bad build: {bad}", str(found) if named else "none"
    )
    halvings = math.log2((builds - 1) / (high - low))
    progress = halvings / math.log2(builds - 1)
    return grade.verdict(
        score=1.0 if right else PARTIAL * progress * (not named),
        tests=len(moves),
        left_over=high - low,
    )
