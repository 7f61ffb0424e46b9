"""Who an attempt is, in the words of the reference formats."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field


def _new(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


def new_run_id() -> str:
    """An id for all that one pytest session does: ``run_<32 hex>``."""
    return _new("run")


@dataclass(frozen=True, slots=True)
class Identity:
    """Ids of one attempt. `index` counts the attempts of one task and binding from 1.

    `slot` names the attempt's place in the suite run: its node id. `worker` is the xdist worker
    (``gw0``) or ``main``; with `run_id` it is on everything that the attempt starts, so that leftovers
    can be found.
    """

    run_id: str = field(default_factory=new_run_id)
    attempt_id: str = field(default_factory=lambda: _new("attempt"))
    trial_id: str = field(default_factory=lambda: _new("trial"))
    suite_run_id: str | None = None
    slot: str | None = None
    worker: str = "main"
    index: int = 1

    @property
    def labels(self) -> dict[str, str]:
        """What a box and everything in it carries."""
        return {
            "ageval.run": self.run_id,
            "ageval.worker": self.worker,
            "ageval.attempt": self.attempt_id,
        }
