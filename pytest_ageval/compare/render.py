"""A comparison as text for a terminal, and as Markdown for a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_ageval.report.numbers import cost, count, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Row = dict[str, Any]

#: Tasks that a list names before it says how many more there are.
NAMED = 20

METHODS = {
    "mcnemar-exact": "exact McNemar test",
    "sign-flip": "sign-flip permutation test",
    "sign-flip-exact": "exact sign-flip permutation test",
}


def percent(value: float | None) -> str:
    """``62.5%``."""
    return "n/a" if value is None else f"{value:.1%}"


def points(value: float | None) -> str:
    """A difference of two rates: ``+3.2`` percentage points."""
    return "n/a" if value is None else f"{100 * value:+.1f}"


def with_interval(row: Mapping[str, Any] | None, show: Callable[[float], str]) -> str:
    """``62.5% [40.1%, 80.3%]``."""
    if row is None:
        return "n/a"
    if row["low"] is None or row["high"] is None:
        return show(row["value"])
    return f"{show(row['value'])} [{show(row['low'])}, {show(row['high'])}]"


def figure_table(sides: Sequence[Row]) -> list[list[str]]:
    """One line for each figure, one column for each side; the first line is the head."""
    found = [["", *(side["label"] for side in sides)]]
    whole = [side["figures"] for side in sides]
    found.append(["suite run", *(side["suite_run_id"] for side in sides)])
    found.append(["configuration", *(configuration(side) for side in sides)])
    found.append(["attempts (tasks)", *(f"{f['attempts']} ({f['tasks']})" for f in whole)])
    counts = (f"{f['passed']} / {f['failed']} / {f['errors']}" for f in whole)
    found.append(["pass / fail / error", *counts])
    found.append(["pass rate [95 %]", *(with_interval(f["pass_rate"], percent) for f in whole)])
    if any(f["errors"] for f in whole):
        bounds = (f"{percent(f['errors_as_fail'])} to {percent(f['errors_as_pass'])}" for f in whole)
        found.append(["with errors as FAIL to PASS", *bounds])
    for key, name in (("pass_at_k", "pass@"), ("pass_hat_k", "pass^")):
        ks = sorted({int(k) for f in whole for k in f[key]} - {1})
        for k in ks:
            cells = (with_interval(f[key].get(str(k)), percent) for f in whole)
            found.append([f"{name}{k} [95 %]", *cells])
    found.append(["mean score [95 %]", *(with_interval(f["score"], "{:.3f}".format) for f in whole)])
    found.append(["flaky tasks", *(_count_of(f["flaky"], f["tasks"]) for f in whole)])
    for key, name, show in (
        ("seconds", "time", seconds),
        ("tokens", "tokens", count),
        ("cost_usd", "cost", cost),
    ):
        found.append([f"{name}: median / p90 / total", *(_spread(f[key], show) for f in whole)])
    return found


def configuration(side: Row) -> str:
    """``codex / gpt-5 / docker``: what all attempts of a side have in common, or its values."""
    names = ("agent", "model", "effort", "box")
    return " / ".join(", ".join(v) for name in names if (v := side["configuration"][name])) or "-"


def _count_of(names: Sequence[str], tasks: int) -> str:
    return f"{len(names)} of {tasks}"


def _spread(row: Mapping[str, Any], show: Callable[[float | None], str]) -> str:
    if not row["known"]:
        return "unknown"
    text = " / ".join(show(row[name]) for name in ("median", "p90", "total"))
    marks = [f"{row['unknown']} unknown"] if row["unknown"] else []
    marks += [f"{row[name]} {name}" for name in ("estimated", "partial") if row.get(name)]
    return f"{text} ({', '.join(marks)})" if marks else text


def headline(row: Row) -> str:
    """``B - A: +8.3 points [-4.1, +20.7] over 12 tasks; p = 0.21 (exact McNemar test): inconclusive``."""
    label = f"{row['second']} - {row['first']}"
    if row["difference"] is None:
        return f"{label}: no task has a verdict on both sides"
    difference = with_interval(row["difference"], points).replace("%", "")
    p = f"p = {row['test']['p']:.3g} ({METHODS[row['test']['method']]})"
    if row["test"]["p_adjusted"] != row["test"]["p"]:
        p += f", {row['test']['p_adjusted']:.3g} adjusted after Holm"
    of = "1 task" if row["tasks"] == 1 else f"{row['tasks']} tasks"
    who = f"{row['second']} is {row['conclusion']}" if row["conclusion"] != "inconclusive" else "inconclusive"
    return f"{label}: {difference} points over {of}; {p}: {who}"


def details(row: Row) -> Iterator[tuple[str, list[str]]]:
    """Further lines of a comparison: a title, and the tasks that it names."""
    if row["detectable"] is not None:
        yield f"detectable with these tasks (80 % power): {100 * row['detectable']:.1f} points", []
    for key in ("worse", "better"):
        found = row[key]
        flips = sum(each["flipped"] for each in found)
        title = f"{key} on {len(found)}, {flips} of them across one half"
        yield title if found else f"{key} on none", [_changed(each) for each in found]
    for key, label in (("only_first", row["first"]), ("only_second", row["second"])):
        if row[key]:
            yield f"only in {label}: {len(row[key])}, not compared", row[key]
    if row["unjudged"]:
        yield (
            f"without a verdict on one side: {len(row['unjudged'])}, not compared",
            [f"{r['task']} ({r['first_errors']} and {r['second_errors']} errors)" for r in row["unjudged"]],
        )
    errors = row["errors"]
    if errors["first"] or errors["second"]:
        counts = f"{errors['first']} in {row['first']}, {errors['second']} in {row['second']}"
        bounds = f"{points(errors['low'])} to {points(errors['high'])} points"
        yield f"errors: {counts}; not counted. With all of them against or for a side: {bounds}", []
    for text in row["warnings"]:
        yield f"warning: {text}", []


def _changed(row: Mapping[str, Any]) -> str:
    (a, n), (b, m) = row["first"], row["second"]
    return f"{row['task']} {a}/{n} -> {b}/{m}"


def text(report: Row) -> str:
    """For a terminal."""
    lines = [f"INCOMPLETE: {each}" for each in report.get("incomplete", ())]
    lines += ["These figures are not those of the whole suite run.", ""] if lines else []
    lines += aligned(figure_table(report["sides"]))
    lines += [
        f"flaky in {side['label']}: {_listed(side['figures']['flaky'])}"
        for side in report["sides"]
        if side["figures"]["flaky"]
    ]
    for row in report["comparisons"]:
        lines += ["", headline(row)]
        for title, names in details(row):
            lines.append(f"  {title}{': ' if names else ''}{_listed(names)}")
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns of equal width."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def markdown(report: Row) -> str:
    """For a comment or a summary: tables, and lists that open on a click."""
    lines: list[str] = []
    for each in report.get("incomplete", ()):
        lines += ["> [!WARNING]", f"> **Incomplete**: {escaped(each)}", ""]
    for row in report["comparisons"]:
        lines += [f"**{escaped(headline(row))}**", ""]
        for title, names in details(row):
            if not names:
                lines.append(f"- {escaped(title)}")
        for title, names in details(row):
            if names:
                lines += ["", f"<details><summary>{escaped(title)}</summary>", ""]
                lines += [f"- {escaped(name)}" for name in names[:NAMED]]
                lines += [f"- and {len(names) - NAMED} more"] if len(names) > NAMED else []
                lines += ["", "</details>"]
        lines.append("")
    return "\n".join([*lines, *markdown_table(figure_table(report["sides"]))])


def markdown_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table; the first row is its head."""
    head, *rest = rows
    yield _markdown_row(head)
    yield "|" + " --- |" * len(head)
    yield from map(_markdown_row, rest)


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"


#: Characters that mean something in Markdown or HTML, or call somebody by name.
_SPECIAL = {ord(c): f"\\{c}" for c in "\\`*_[]|~#"} | {
    ord("&"): "&amp;",
    ord("<"): "&lt;",
    ord(">"): "&gt;",
    ord("@"): "&#64;",
    ord("\n"): " ",
    ord("\r"): " ",
}


def escaped(value: str) -> str:
    """`value` as Markdown that shows just that, on one line."""
    return value.translate(_SPECIAL)
