"""The list of what is refused: the one in the docs is the one in the code."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_ageval.config.harbor import compose, refuse

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "harbor.md"


def rows(heading: str) -> list[tuple[str, str]]:
    """The cells of the first table below a heading."""
    _, _, text = PAGE.read_text().partition(f"\n{heading}\n")
    table = re.search(r"(?m)^\|---\|---\|\n((?:\|.*\n)+)", text)
    assert table is not None
    cells = [line.strip("|").split(" | ") for line in table[1].splitlines()]
    return [(left.strip(), right.strip()) for left, right in cells]


def test_every_refusal_and_its_reason_are_in_the_docs() -> None:
    told: dict[str, str] = {}
    for left, why in rows("## What is refused"):
        if left == "`main`: any other key":
            told["main: any other key"] = why
            continue
        of = "main: " if left.startswith("`main`: ") else ""
        told |= {of + name: why for name in re.findall(r"`([^`]+)`", left.removeprefix("`main`: "))}
    told.pop("linux")
    known = dict(refuse.REASONS) | {f"main: {key}": why for key, why in compose.REFUSED.items()}
    assert told == {**known, "main: any other key": compose._OTHER}


def test_every_key_of_main_that_is_taken_is_in_the_docs() -> None:
    found = [set(re.findall(r"`([^`]+)`", left)) for left, _ in rows("### The service `main`")]
    assert found[0] - {"dockerfile", "environment/"} == compose.OPTIONS
    assert found[1] - {":ro"} == compose.CONTAINER
    assert found[2] == compose.WITHOUT_EFFECT
