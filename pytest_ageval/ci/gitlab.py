"""GitLab: sections of the job's log that open on a click.

The form is that of "Custom collapsible sections": ESC ``[0Ksection_start:TIME:NAME[collapsed=true]`` CR ESC
``[0K`` and the header, and the same with ``section_end`` and without a header.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_ageval.ci.outcomes import Ended

_ERASE = "\x1b[0K"

SECTION = "ageval_not_passed"


def section(name: str, header: str, lines: Iterable[str]) -> Iterator[str]:
    """`lines` in a section that is closed at first. `name`: letters, digits, ``_``, ``.`` and ``-``."""
    yield f"{_ERASE}section_start:{int(time.time())}:{name}[collapsed=true]\r{_ERASE}{header}"
    yield from lines
    yield f"{_ERASE}section_end:{int(time.time())}:{name}\r{_ERASE}"


def attempts(found: Iterable[Ended]) -> Iterator[str]:
    """The attempts that did not pass, with their evidence; nothing when all did."""
    rows = [row for row in found if row.kind != "known"]
    if rows:
        lines = [f"{row.kind} {row.name}: {row.message} (evidence: {row.evidence})" for row in rows]
        yield from section(SECTION, f"{len(rows)} not passed", lines)
