"""Which build is the first bad one, and what an answer of the agent means."""

from __future__ import annotations

import hashlib
import re

_WORD = re.compile(r"\b(test|found)\b[\s:*`#]*(\d{1,9})\b", re.IGNORECASE)


def first_bad(builds: int, seed: int) -> int:
    """The number of the first bad build, 2 to `builds`; the same on every machine."""
    digest = hashlib.sha256(f"{builds}:{seed}".encode()).digest()
    return 2 + int.from_bytes(digest[:8], "big") % (builds - 1)


def last_move(text: str) -> tuple[str, int] | None:
    """The last ``TEST <n>`` or ``FOUND <n>`` in an answer; None if there is none."""
    moves = _WORD.findall(text)
    return (moves[-1][0].lower(), int(moves[-1][1])) if moves else None
