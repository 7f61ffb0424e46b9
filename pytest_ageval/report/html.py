"""pytest-html: columns of an attempt, and its trajectory. Imported when a page is written."""

from __future__ import annotations

import json
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any

from pytest_ageval.report.numbers import count, seconds, tokens, total_seconds
from pytest_ageval.report.plain import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pytest_ageval.attempt_face import AttemptFace

#: What of a trajectory goes into the page: rows, bytes read, characters of a text, and of all.
ROWS = 400
READ = 4_000_000
TEXT = 4000
WHOLE = 200_000

COLUMNS = {"agscore": "Score", "agent": "Agent", "agtokens": "Tokens", "agtime": "Time"}

HEADER = [f'<th class="sortable" data-column-type="{name}">{title}</th>' for name, title in COLUMNS.items()]


def cells(data: Mapping[str, Any] | None) -> list[str]:
    """The cells of one row, in the order of `HEADER`; empty for a test that is no attempt."""
    if not data:
        return [f'<td class="col-{name}"></td>' for name in COLUMNS]
    score = data.get("score")
    agent = " / ".join(str(data[name]) for name in ("agent", "model", "box") if data.get(name))
    return [
        f'<td class="col-agscore">{"" if score is None else f"{score:.2f}"}</td>',
        f'<td class="col-agent">{escape(agent)}</td>',
        f'<td class="col-agtokens">{count(tokens(data))}</td>',
        f'<td class="col-agtime">{seconds(total_seconds(data))}</td>',
    ]


def trajectory_extra(face: AttemptFace) -> list[dict[str, Any]]:
    """The trajectory as an HTML extra of pytest-html; nothing when there is none."""
    path = face.raw.evidence.layout.trajectory
    body = _body(path)
    if not body:
        return []
    page = f'<details class="ageval"><summary>Trajectory ({escape(str(path))})</summary>{body}</details>'
    return [
        {
            "name": "Trajectory",
            "format_type": "html",
            "content": page,
            "mime_type": None,
            "extension": None,
        }
    ]


def _body(path: Path) -> str:
    """As much of the page as fits, never ending inside an element."""
    found, size = [], 0
    for part in islice(_rendered(path), ROWS):
        size += len(part)
        if size > WHOLE:
            found.append("<p>[... the rest is in the file ...]</p>")
            break
        found.append(part)
    return "".join(found)


def _rendered(path: Path) -> Iterator[str]:
    """One element for each row."""
    try:
        with path.open("rb") as stream:
            lines = stream.read(READ).split(b"\n")
    except OSError:
        return
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:  # the last line of what was read, or an empty one
            continue
        if isinstance(row, dict):
            yield _row(row)


def _row(row: Mapping[str, Any]) -> str:
    title = " ".join(
        str(row[name]) for name in ("turn_index", "role", "kind", "type", "name") if row.get(name)
    )
    said = next((row[name] for name in ("content", "text", "final_text") if row.get(name)), None)
    rest = {
        name: value
        for name, value in row.items()
        if name not in ("content", "text", "final_text") and value not in (None, "", [], {})
    }
    text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False) if said else ""
    detail = json.dumps(rest, ensure_ascii=False, indent=1)
    return (
        f"<section><h4>{escape(clean(title, 200))}</h4>"
        f'<pre style="white-space:pre-wrap">{escape(clean(text, TEXT))}</pre>'
        f"<details><summary>row</summary><pre>{escape(clean(detail, TEXT))}</pre></details>"
        "</section>"
    )
