"""Answers to an agent's permission requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_ageval.executor import PermissionPolicy

_ALLOW = ("allow_once", "allow_always")
_REJECT = ("reject_once", "reject_always")


@dataclass(frozen=True, slots=True)
class Decision:
    """One of the agent's own options, or (`option_id` None) the outcome ``cancelled``."""

    option_id: str | None = None
    option_kind: str | None = None
    note: str | None = None

    @property
    def outcome(self) -> dict[str, Any]:
        """The ``outcome`` object of the answer."""
        if self.option_id is None:
            return {"outcome": "cancelled"}
        return {"outcome": "selected", "optionId": self.option_id}


CANCELLED = Decision()


def usable_options(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options of a request that can be selected at all: objects with an ``optionId`` text."""
    found = params.get("options")
    rows = found if isinstance(found, list) else []
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("optionId"), str)]


def decide(policy: PermissionPolicy, options: Sequence[Mapping[str, Any]]) -> Decision:
    """What `policy` selects. ``allow`` takes once before always; an id is never made up.

    Under ``allow`` a request that offers no way to allow is rejected, or cancelled if it offers
    nothing that we know. ``ask`` is not decided here; see `pick`.
    """
    wanted = (*_ALLOW, *_REJECT) if policy == "allow" else _REJECT
    for kind in wanted:
        for option in options:
            if option.get("kind") == kind:
                return Decision(option["optionId"], kind)
    return Decision(note="no option that the policy can select")


def pick(option_id: str | None, options: Sequence[Mapping[str, Any]]) -> Decision:
    """The option that a hook chose by its id; an id that the agent did not offer is a cancellation."""
    for option in options:
        if option_id is not None and option["optionId"] == option_id:
            kind = option.get("kind")
            return Decision(option_id, kind if isinstance(kind, str) else None)
    note = None if option_id is None else f"the hook answered {option_id!r}, which was not offered"
    return Decision(note=note)
