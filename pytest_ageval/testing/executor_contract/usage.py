"""The executor contract: tokens and money. What is not known is None, with a reason, and never zero."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from pytest_ageval.executor import Usage
from pytest_ageval.testing.executor_contract.base import Hooks, Play, Stage
from pytest_ageval.testing.scripted_model import NO_USAGE, Text, Tokens

#: What the model reports in these tests: no figure equals another.
TOKENS = Tokens(input=1003, cached=201, output=57, reasoning=11)

FIGURES: dict[str, int] = {
    "prompt_tokens": 1003,
    "cached_tokens": 201,
    "completion_tokens": 57,
    "reasoning_tokens": 11,
}


def figures(usage: Usage) -> dict[str, Any]:
    """The token counts that are known."""
    return {name: value for name in FIGURES if (value := getattr(usage, name)) is not None}


class Accounting(Hooks):
    """The usage of a turn, as far as the class says in `reports` that it knows it."""

    def test_usage_that_was_reported(self, play: Play) -> None:
        """Every figure in `reports` is the model's, in one convention; no other one is made up."""

        async def body(stage: Stage) -> None:
            usage = (await stage.invoke()).usage
            known = figures(usage)
            assert {name: known.get(name) for name in self.reports} == {
                name: FIGURES[name] for name in self.reports
            }
            assert not set(known) - self.reports, "reported, and not declared"
            assert usage.source or not known
            assert usage.unavailable is not None or {"prompt_tokens", "completion_tokens"} <= set(known)

        play(body, Text("an answer", tokens=TOKENS))

    @pytest.mark.parametrize("left_out", ["all", "input", "output"])
    def test_usage_that_was_not_reported(
        self, play: Play, left_out: Literal["all", "input", "output"]
    ) -> None:
        """A figure that the model does not report is None, with a reason, never zero."""
        self.needs_model()
        tokens = {
            "all": NO_USAGE,
            "input": Tokens(input=None, cached=None, cache_write=None, output=57, reasoning=11),
            "output": Tokens(input=1003, cached=201, output=None, reasoning=None),
        }[left_out]
        hidden = {
            "all": set(FIGURES),
            "input": {"prompt_tokens", "cached_tokens"},
            "output": {"completion_tokens", "reasoning_tokens"},
        }[left_out]

        async def body(stage: Stage) -> None:
            result = await stage.invoke()
            assert result.ok, result.error
            known = figures(result.usage)
            assert not hidden & set(known), known
            assert 0 not in known.values()
            assert result.usage.unavailable is not None
            assert result.usage.cost_usd is None

        play(body, Text("an answer", tokens=tokens))

    def test_each_turn_counts_its_own(self, play: Play) -> None:
        """The usage of a turn is not that of the session so far."""
        self.needs_model()
        self.needs(bool(self.reports), "reports no tokens")

        async def body(stage: Stage) -> None:
            first = await stage.invoke("one")
            second = await stage.invoke("two")
            assert figures(first.usage).get("completion_tokens") == 57
            assert figures(second.usage).get("completion_tokens") == 58

        more = Tokens(input=2003, cached=201, output=58, reasoning=11)
        play(body, Text("an answer", tokens=TOKENS), Text("another", tokens=more))
