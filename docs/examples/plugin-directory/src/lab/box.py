"""A box on this machine whose commands give way to everything else that runs here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ageval_boxes.local import LocalBox, LocalOptions
from pytest_ageval.box import ExecResult, StdioTransport


class LowPriorityOptions(LocalOptions, forbid_unknown_fields=True, frozen=True):
    """The options of a local box, and `nice`: 0 (as everybody) to 19 (last)."""

    nice: int = 10


class LowPriorityBox(LocalBox):
    """`LocalBox`, with every command and every agent behind ``nice``."""

    kind = "lab"
    Options = LowPriorityOptions

    @classmethod
    def describe(cls, options: Mapping[str, Any]) -> str:
        """For the header of a run."""
        return f"lab, a {super().describe(options)}"

    async def exec(self, argv: Any, **options: Any) -> ExecResult:
        """See `Box.exec`."""
        return await super().exec(self._nice(argv), **options)

    async def attach_stdio(self, argv: Any, **options: Any) -> StdioTransport:
        """See `Box.attach_stdio`."""
        return await super().attach_stdio(self._nice(argv), **options)

    def _nice(self, argv: Any) -> list[str]:
        # What is no command is refused by LocalBox, with its own words.
        words = [] if isinstance(argv, str) else list(argv)
        return ["nice", "-n", str(self.options.nice), *words] if words and words[0] else argv
