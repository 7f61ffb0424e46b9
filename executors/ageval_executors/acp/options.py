"""The executor options of ``acp``."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

import msgspec

from ageval_executors.acp.entries import ENTRIES, Entry, custom_entry
from ageval_executors.acp.usage import Scope, UsageRule

_EXACT = re.compile(r"\d+\.\d+\.\d+(?:[-+][0-9A-Za-z.+-]+)?\Z")
_PACKAGE = re.compile(r"(?:@[a-z0-9~._-]+/)?[a-z0-9~._-]+\Z")


class AcpOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a profile's or an agent package's ``options`` may say for the executor ``acp``.

    Either `entry` names a known agent or `command` starts another one; in `command` the fields
    ``{runtime}``, ``{node}``, ``{platform}``, ``{model}``, ``{base_url}``, ``{home}`` and
    ``{workspace}`` are filled in, other braces stay.

    - `env`: further variables for the agent.
    - `packages`: packages with exact versions; they replace the pins of the entry by name.
    - `runtime`: a directory that holds an install (``node_modules``, or ``bin/python3``) already; nothing
      is installed.
    - `node`: the Node binary to use instead of the one on PATH.
    - `permission`: how requests for permission are answered; default is the run's own policy. ``hook`` is
      another word for ``ask``.
    - `mode`: the session mode to set; a failure to set it fails the session.
    - `usage`, `usage_input_has_cache`: what a `command` agent's figures count, where that is known.
    - `start_timeout_seconds`: for the handshake, and again for opening the session.
    - `idle_timeout_seconds`: end a turn in which the agent has been silent for so long; by default
      it may be silent as long as it likes (``model.watchdog`` means the same).
    """

    entry: str | None = None
    command: list[str] | None = None
    env: dict[str, str] = {}
    packages: dict[str, str] = {}
    runtime: str | None = None
    node: str | None = None
    permission: Literal["allow", "deny", "ask", "hook"] | None = None
    mode: str | None = None
    usage: Scope | None = None
    usage_input_has_cache: bool | None = None
    start_timeout_seconds: float = 120.0
    idle_timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.entry is None) == (self.command is None):
            raise ValueError("exactly one of entry and command is needed")
        if self.entry is not None and self.entry not in ENTRIES:
            known = ", ".join(sorted(ENTRIES))
            raise ValueError(f"unknown entry {self.entry!r}; known: {known} (or give a command)")
        if self.command is not None and not self.command:
            raise ValueError("command is empty")
        if self.entry is not None and (self.usage or self.usage_input_has_cache is not None):
            raise ValueError("usage is for a command; what an entry's figures mean is known")
        for name, version in self.packages.items():
            if not _PACKAGE.match(name) or not _EXACT.match(version):
                raise ValueError(f"packages: {name}: {version!r} is not an exact version (1.2.3)")
        for field in ("start_timeout_seconds", "idle_timeout_seconds"):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise ValueError(f"{field} must be more than 0")

    def resolve(self) -> Entry:
        """The entry with the packages of these options."""
        if self.entry is None:
            rule = UsageRule(self.usage or "turn", self.usage_input_has_cache)
            return custom_entry(tuple(self.command or ()), self.packages, rule)
        known = ENTRIES[self.entry]
        return replace(known, packages={**known.packages, **self.packages})
