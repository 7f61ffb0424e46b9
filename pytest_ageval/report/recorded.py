"""The report of an item that was not run, because its result is known: as the attempt's own report was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_ageval.options import resolve
from pytest_ageval.suite.record import Settled

if TYPE_CHECKING:
    import pytest

    from pytest_ageval.recorded import Shown


def before(item: pytest.Item, shown: Shown) -> None:
    """Set the properties that the report will hold."""
    from pytest_ageval.report.item import property_rows

    kept = [row for row in item.user_properties if not row[0].startswith("ageval.")]
    item.user_properties[:] = [*kept, *property_rows(shown.data), *_marks(shown.row)]


def _marks(row: Settled) -> list[tuple[str, str]]:
    """That this is not a result of this session, and where it comes from."""
    found = [("ageval.recorded", row.settled_at)] if row.source != "reused" else []
    return [*found, *([("ageval.reused", row.of or "")] if row.source == "reused" else [])]


def after(item: pytest.Item, shown: Shown, when: str, report: pytest.TestReport) -> None:
    """Attach what summary and reports need; the duration is that of the attempt."""
    if when != "call":
        return
    report.ageval = shown.data  # type: ignore[attr-defined]
    report.duration = shown.row.seconds or 0.0
    report.sections.append(("ageval", _words(shown)))
    page: Any = item.config.getoption("htmlpath", None)
    if page and shown.directory is not None and shown.directory.is_dir():
        from pytest_ageval.report import html

        extra = html.extras(shown.directory, page, analyze=resolve(item.config, "analyze")[0] == "hack")
        report.extras = [*getattr(report, "extras", ()), *extra]  # type: ignore[attr-defined]


def _words(shown: Shown) -> str:
    where = "" if shown.directory is None else f"; evidence: {shown.directory}"
    if shown.row.source == "reused":
        return f"not run: the result of {shown.row.of}, whose lock has the same digest{where}"
    return f"not run: recorded at {shown.row.settled_at}{where}"
