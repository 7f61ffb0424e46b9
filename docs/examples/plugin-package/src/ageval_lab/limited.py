"""A box on this machine whose commands can have only so much memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ageval_boxes.local import LocalBox, LocalOptions
from pytest_ageval.box import ExecResult, StdioTransport


class LimitedOptions(LocalOptions, forbid_unknown_fields=True, frozen=True):
    """The options of a local box, and `address_space_mb`: what one process may map, in MiB."""

    address_space_mb: int = 4096


class LimitedBox(LocalBox):
    """`LocalBox`, with every command and every agent behind ``prlimit``."""

    kind = "limited"
    Options = LimitedOptions

    @classmethod
    def describe(cls, options: Mapping[str, Any]) -> str:
        """For the header of a run."""
        return f"limited, a {super().describe(options)}"

    async def exec(self, argv: Any, **options: Any) -> ExecResult:
        """See `Box.exec`."""
        return await super().exec(self._limit(argv), **options)

    async def attach_stdio(self, argv: Any, **options: Any) -> StdioTransport:
        """See `Box.attach_stdio`."""
        return await super().attach_stdio(self._limit(argv), **options)

    def _limit(self, argv: Any) -> list[str]:
        # What is no command is refused by LocalBox, with its own words.
        words = [] if isinstance(argv, str) else list(argv)
        size = self.options.address_space_mb * 1024 * 1024
        return ["prlimit", f"--as={size}", *words] if words and words[0] else argv
