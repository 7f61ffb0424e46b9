"""GitHub Actions: workflow commands in the log, and the summary of the step.

The forms are those of "Workflow commands for GitHub Actions": ``::error file=F,line=L,title=T::message``,
with ``%``, CR and LF escaped everywhere and ``:`` and ``,`` in properties too.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ageval.compare.render import escaped, markdown_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_ageval.ci.outcomes import Ended

#: Annotations of one type that GitHub shows for a step.
SHOWN = 10

#: Attempts and groups that the summary of the step lists.
LISTED = 50

COMMANDS = {"FAIL": "error", "ERROR": "error", "known": "notice", "unexpected": "warning"}
_FIRST = {"ERROR": 0, "FAIL": 1, "unexpected": 2, "known": 3}


def data(text: str) -> str:
    """`text` as the message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def value(text: str) -> str:
    """`text` as the value of a property."""
    return data(text).replace(":", "%3A").replace(",", "%2C")


def command(name: str, message: str, properties: Mapping[str, str] | None = None) -> str:
    """One line of the log that the runner acts on."""
    given = ",".join(f"{key}={value(each)}" for key, each in (properties or {}).items())
    return f"::{name}{f' {given}' if given else ''}::{data(message)}"


def annotate(found: Iterable[Ended]) -> Iterator[str]:
    """A command for each attempt, ERRORs first; of each type as many as are shown, and how many more."""
    rows = sorted(found, key=lambda row: _FIRST[row.kind])
    counts = Counter(COMMANDS[row.kind] for row in rows)
    written: Counter[str] = Counter()
    for row in rows:
        kind = COMMANDS[row.kind]
        room = SHOWN if counts[kind] <= SHOWN else SHOWN - 1
        if written[kind] < room:
            written[kind] += 1
            where = f" (evidence: {row.evidence})" if row.evidence else ""
            title = {"known": "known failure", "unexpected": "known failure passed"}.get(row.kind, row.kind)
            properties = {"file": row.file, "line": "1", "title": f"{title} {row.name}"}
            yield command(kind, f"{row.message}{where}", properties)
    for kind, count in counts.items():
        if count > SHOWN:
            yield command(kind, f"{count - SHOWN + 1} more; the log has them all", {"title": "ageval"})


class Mute:
    """No workflow commands while text of agents is printed: a task must not annotate, mask or stop a job."""

    def __init__(self) -> None:
        self._token: str | None = None

    def begin(self) -> str:
        """The line from which on the runner takes commands for text."""
        self._token = f"ageval-{secrets.token_hex(16)}"
        return f"::stop-commands::{self._token}"

    def end(self) -> str | None:
        """The line that ends it; None when it is not on."""
        token, self._token = self._token, None
        return None if token is None else f"::{token}::"


def summary(table: Sequence[Sequence[str]], gates: Iterable[str], found: Sequence[Ended]) -> str:
    """The run in Markdown: the table of the terminal, the gates, the attempts that did not pass."""
    lines = ["## ageval", "", *markdown_table(table[: LISTED + 1]), ""]
    lines += [f"- {escaped(line)}" for line in gates]
    failed = [row for row in found if row.kind != "known"]
    if failed:
        lines += ["", f"<details><summary>{len(failed)} not passed</summary>", ""]
        lines += [f"- {row.kind} {escaped(row.name)}: {escaped(row.message)}" for row in failed[:LISTED]]
        lines += [f"- and {len(failed) - LISTED} more"] if len(failed) > LISTED else []
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n\n"


def append_summary(text: str) -> None:
    """Add to the summary of the step, if the runner has named a file for it."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        with Path(path).open("a", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
