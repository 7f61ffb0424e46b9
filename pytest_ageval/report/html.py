"""pytest-html: columns, the table of the summary, links and trajectories. Imported when a page is written."""

from __future__ import annotations

import json
import os
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pytest_ageval.evidence.layout import Layout
from pytest_ageval.evidence.trajectory import tool_command, tool_output, tool_words
from pytest_ageval.report import usage
from pytest_ageval.report.numbers import seconds, total_seconds
from pytest_ageval.report.plain import clean
from pytest_ageval.report.terminal import groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_ageval.accounting import Ledger

Row = dict[str, Any]

#: What of a trajectory goes into the page: rows, bytes read, characters of a text, and of all.
ROWS = 400
READ = 4_000_000
TEXT = 4000
WHOLE = 200_000

COLUMNS = {
    "agscore": "Score",
    "agent": "Agent",
    "agtokens": "Tokens",
    "agcost": "Cost",
    "agtime": "Phases' time",
}

HEADER = [f'<th class="sortable" data-column-type="{name}">{title}</th>' for name, title in COLUMNS.items()]

#: pytest-html writes in grey. An element has its own colours: the page may have any style sheet.
_BLOCK = "color:#111;background:#fff;font-size:13px;padding:4px 8px"
_PRE = (
    "white-space:pre-wrap;overflow-wrap:anywhere;max-height:30em;overflow:auto;margin:2px 0;padding:6px;"
    "color:#111;background:#f4f4f4"
)
_CELL = "border:1px solid #bbb;padding:4px 8px;text-align:left"

_WHO = {"user": "prompt", "assistant": "answer"}


def cells(data: Mapping[str, Any] | None) -> list[str]:
    """The cells of one row, in the order of `HEADER`; empty for a test that is no attempt."""
    if not data:
        return [f'<td class="col-{name}"></td>' for name in COLUMNS]
    score = data.get("score")
    agent = " / ".join(str(data[name]) for name in ("agent", "model", "box") if data.get(name))
    return [
        f'<td class="col-agscore">{"" if score is None else f"{score:.2f}"}</td>',
        f'<td class="col-agent">{escape(agent)}</td>',
        f'<td class="col-agtokens">{usage.tokens_cell([data])}</td>',
        f'<td class="col-agcost">{usage.cost_cell([data])}</td>',
        f'<td class="col-agtime">{seconds(total_seconds(data))}</td>',
    ]


def summary(results: Iterable[Mapping[str, Any]], ledger: Ledger | None = None) -> str:
    """The table that the terminal shows and what was used, for the top of the page."""
    results = list(results)
    head, *lines = groups(results)
    cells = [_cells("th", head), *(_cells("td", line) for line in lines)]
    rows = "".join(f"<tr>{row}</tr>" for row in cells)
    used = "".join(f'<p style="margin:2px 8px">{escape(line)}</p>' for line in usage.lines(results, ledger))
    return f'<table class="ageval" style="{_BLOCK};margin:8px 0">{rows}</table>{used}'


def _cells(tag: str, texts: Iterable[str]) -> str:
    return "".join(f'<{tag} style="{_CELL}">{escape(text)}</{tag}>' for text in texts)


def extras(directory: Path, page: str, *, analyze: bool = False) -> list[Row]:
    """The link to the evidence and the trajectory of an attempt, as extras of the page at `page`.

    With `analyze`, signs of reward hacking too.
    """
    found = [_extra("Evidence", "url", link(directory, page))]
    body = trajectory(Layout(directory).trajectory)
    if body:
        content = f'<details class="ageval" style="{_BLOCK}"><summary>Trajectory</summary>{body}</details>'
        found.append(_extra("Trajectory", "html", content))
    if analyze:
        found.append(_extra("Analysis", "html", analysis(directory)))
    return found


def analysis(directory: Path) -> str:
    """Signs of reward hacking in the evidence of an attempt, as an element (``--analyze hack``)."""
    from pytest_ageval.analyze.evidence import findings_of

    found = findings_of(directory, list(_rows(Layout(directory).trajectory)))
    lines = (f"{f.severity}: {f.rule}: {f.about} ({f.file} line {f.row}): {f.excerpt}" for f in found)
    items = "".join(f"<li>{escape(clean(line, 600))}</li>" for line in lines)
    title = f"Analysis: {len(found)} sign{'s' if len(found) != 1 else ''} of reward hacking"
    return f'<details class="ageval" style="{_BLOCK}"><summary>{title}</summary><ul>{items}</ul></details>'


def _extra(name: str, kind: str, content: str) -> Row:
    return {
        "name": name,
        "format_type": kind,
        "content": content,
        "mime_type": None,
        "extension": None,
    }


def link(directory: Path, page: str) -> str:
    """`directory` for a link of the page: relative if it lies below the page's, so that both can move."""
    below = Path(os.path.expandvars(page)).expanduser().absolute().parent
    try:
        return quote(f"{directory.absolute().relative_to(below).as_posix()}/")
    except ValueError:
        return f"{directory.absolute().as_uri()}/"


# -- the trajectory ----------------------------------------------------------------------------------


def trajectory(path: Path) -> str:
    """The rows of a file as elements: as many as fit, each of them whole."""
    found, size = [], 0
    for part in islice(_rendered(path), ROWS):
        size += len(part)
        if size > WHOLE:
            found.append("<p>[... the rest is in the file ...]</p>")
            break
        found.append(part)
    return "".join(found)


def _rendered(path: Path) -> Iterator[str]:
    """One element for each row; the result of a tool stands with its call."""
    rows = list(_rows(path))
    results = {row.get("tool_call_id"): row for row in rows if row.get("type") == "observation"}
    called = {row.get("tool_call_id") for row in rows if row.get("type") == "tool_call"}
    for row in rows:
        call = row.get("tool_call_id")
        if row.get("type") == "tool_call":
            yield _tool(row, results.get(call, {}))
        elif row.get("type") != "observation" or call not in called:
            yield _row(row)


def _rows(path: Path) -> Iterator[Row]:
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
            yield row


def _tool(call: Row, result: Row) -> str:
    """``tool execute: make -> ok`` with the command, if the line is not all of it, and what came back."""
    words, command = tool_words(call, result), tool_command(call)
    texts = [command] if command not in words else []
    raw = result.get("raw_output")
    texts.append(tool_output(result) or (raw if isinstance(raw, str) else ""))
    rows = [call, result] if result else [call]
    return _section(call, words, texts, rows)


def _row(row: Row) -> str:
    kind, error = str(row.get("type")), row.get("error")
    if kind == "turn":
        words = row.get("part") or _WHO.get(str(row.get("role")), str(row.get("role")))
        return _section(row, str(words), [str(row.get("content") or "(no text)")])
    if kind == "permission_decision":
        return _section(row, f"permission: {row.get('outcome')}", [], [row])
    if kind == "truncated":
        return _section(row, f"{row.get('dropped_events')} events left out: too much output", [])
    if kind == "observation":
        return _section(row, "result of a tool", [tool_output(row)], [row])
    what = (
        f"end: {row.get('stop_reason') or 'not reported'}" if kind == "terminal" else "event of another type"
    )
    if error:
        return _section(row, f"error: {error}", [], [row])
    return f'<div style="color:#555">{_json(f"{_place(row)} · {what}", [row])}</div>'


def _section(row: Row, words: str, texts: Iterable[str], raw: Iterable[Row] = ()) -> str:
    title = escape(clean(f"{_place(row)} · {words}", 600))
    said = "".join(f'<pre style="{_PRE}">{escape(clean(text, TEXT))}</pre>' for text in texts if text)
    rows = list(raw)
    return (
        f'<section><h4 style="margin:8px 0 2px;color:#111">{title}</h4>{said}'
        f"{_json('JSON', rows) if rows else ''}</section>"
    )


def _place(row: Row) -> str:
    """``Turn 1 · researcher``."""
    where = str(row.get("profile_id") or "")
    return " · ".join(part for part in (f"Turn {row.get('turn_index', '?')}", where) if part)


def _json(title: str, rows: Iterable[Row]) -> str:
    text = "\n".join(json.dumps(row, ensure_ascii=False, indent=1) for row in rows)
    return (
        f"<details><summary>{escape(clean(title, 200))}</summary>"
        f'<pre style="{_PRE}">{escape(clean(text, TEXT))}</pre></details>'
    )
