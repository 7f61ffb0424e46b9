"""A kind of box of your own: the local one, with variables for every command and a log of commands.

Copy this file beside your data set's ageval.yaml, then:

    pytest my-dataset --agent codex --box logged --box-option 'variables=["HTTP_PROXY=http://proxy:3128"]'

A kind is a class; `pytest_ageval.box.Box` is the protocol, `pytest_ageval.testing` has tests that
every kind should pass. Whatever is done here is done on the event loop: await, do not block.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ageval_boxes.local import LocalBox, LocalOptions

if TYPE_CHECKING:
    from pytest_ageval.box import Box, ExecResult, StdioTransport


class LoggedOptions(LocalOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What `--box-option` takes: the options of a local box, and these."""

    #: Entries NAME=VALUE; they become part of lock.json, so no secrets.
    variables: tuple[str, ...] = ()


class LoggedBox(LocalBox):
    """A local box that adds variables and counts what was run in it."""

    kind = "logged"
    Options = LoggedOptions

    async def start(self) -> None:
        """Open the box with an empty log."""
        self.log: list[tuple[str, float]] = []
        await super().start()

    async def exec(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **how: Any
    ) -> ExecResult:
        """Run a command, and note its name and seconds."""
        started = time.monotonic()
        try:
            return await super().exec(argv, env={**self._variables(), **(env or {})}, **how)
        finally:
            self.log.append((argv[0], time.monotonic() - started))

    async def attach_stdio(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **how: Any
    ) -> StdioTransport:
        """Start an agent, with the variables."""
        return await super().attach_stdio(argv, env={**self._variables(), **(env or {})}, **how)

    def _variables(self) -> dict[str, str]:
        return dict(entry.split("=", 1) for entry in self.options.variables)


def pytest_ageval_box_kinds() -> dict[str, type[Box]]:
    """`--box logged`."""
    return {LoggedBox.kind: LoggedBox}


def pytest_ageval_summary_enrich(attempt: Any, value: dict[str, Any]) -> dict[str, Any] | None:
    """Keep the log under `extra` of summary.json."""
    if not isinstance(attempt.raw_box, LoggedBox):
        return None
    seconds = sum(seconds for _, seconds in attempt.raw_box.log)
    return {**value, "commands": len(attempt.raw_box.log), "command_seconds": round(seconds, 3)}
