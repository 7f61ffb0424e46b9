"""The report of one attempt: outcome, properties, sections, and the data for the summary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_ageval.inflight.started import Started

from pytest_ageval.attempt_face import DECIDED, FACE, KNOWN, NOT_RUN, RAISED, AttemptFace, describe
from pytest_ageval.collection import TaskItem
from pytest_ageval.errors import AgevalError, TaskFailed
from pytest_ageval.job import Job
from pytest_ageval.options import resolve
from pytest_ageval.recorded import SHOWN
from pytest_ageval.report import recorded
from pytest_ageval.report.plain import clean, cut, plain

#: Characters of the message attribute in JUnit XML, and of the text below it.
MESSAGE = 1000
LONG_TEXT = 16_000

#: Bytes of the last lines of trajectory and evaluator that a report carries.
TAIL = 4096

#: Checks that a report carries, and the fields of each.
CHECKS = 50
CHECK_FIELDS = ("id", "title", "status", "score", "message", "reason")

#: Keys of result.json that a report says in another way, or always alike.
REDUNDANT = ("schema", "evidence_path", "logs", "gold_materialized_at", "task_id", "dataset_id")


#: What the mark of an attempt says of it, besides the values of a matrix.
MARKED = ("task", "dataset", "agent", "model", "effort", "box")

#: pytest escapes the values of properties for XML, but not their names.
_XML_NAME = re.compile(r"[^\w./ -]")


def before(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Tell the engine of foreign exceptions, and set the properties that the report will hold."""
    if (shown := item.stash.get(SHOWN, None)) is not None:
        recorded.before(item, shown)
        return
    face = item.stash.get(FACE, None)
    error = None if call.excinfo is None else call.excinfo.value
    given_up = isinstance(error, pytest.skip.Exception | pytest.xfail.Exception)
    if face is not None and error is not None:
        face.discard() if given_up else face.fail(error)
    if face is not None and face.started is not None:
        for what, text in face.started.said(call.when):
            item.add_report_section(call.when, what, face.raw.redactor.text(text))
    # Replaced, not added: a test that is run again has those of its last attempt.
    kept = [row for row in item.user_properties if not row[0].startswith("ageval.")]
    # After a set-up that went well there is nothing to tell yet: no verdict is not an ERROR.
    given_up = given_up or (face is not None and face.raw.discarded)
    untold = given_up or (call.when == "setup" and error is None)
    known = [] if untold else properties(item, face, error)
    # One string for what several reports say: pytest keeps them all.
    told = {row: row for row in item.user_properties}
    item.user_properties[:] = [*kept, *(told.get(row, row) for row in known)]


def after(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Decide between FAIL and ERROR, and attach what the summary and the reports need."""
    if call.excinfo is not None:
        item.stash.setdefault(RAISED, []).append(call.excinfo.value)
    if (known := item.stash.get(SHOWN, None)) is not None:
        if call.excinfo is not None and not report.skipped:
            classify(call.excinfo, call.when, report, str)
        recorded.after(item, known, call.when, report)
        return
    face = item.stash.get(FACE, None)
    redact = str if face is None else face.raw.redactor.text
    if call.excinfo is not None and not report.skipped:
        classify(call.excinfo, call.when, report, redact)
        if face is not None and not isinstance(call.excinfo.value, TaskFailed):
            _name_evidence(report, face)
    if report.skipped and face is None and NOT_RUN not in item.stash and (roles := _unplayed(item)):
        report.ageval_unbound = roles  # type: ignore[attr-defined]
    if report.skipped and (used_up := item.stash.get(NOT_RUN, None)) is not None:
        report.ageval_not_run = used_up  # type: ignore[attr-defined]
    if report.skipped and (decided := item.stash.get(DECIDED, None)) is not None:
        report.ageval_decided = decided  # type: ignore[attr-defined]
    if face is not None:
        shown = report.longreprtext
        if redact(shown) != shown:
            report.longrepr = redact(shown)
        report.sections[:] = [(n, face.raw.redactor.text(text)) for n, text in report.sections]
    if face is not None and face.started is not None:
        _in_its_own_time(report, face.started, call.when)
    warnings = [] if face is None else [*filter(None, (face.raw.cleanup_warning, face.raw.export_warning))]
    if call.when == "teardown" and warnings:
        report.ageval_cleanup = clean("; ".join(warnings))  # type: ignore[attr-defined]
    if call.when == "teardown" and face is not None:
        report.ageval_timing = plain(dict(face.outcome.timing))  # type: ignore[attr-defined]
    if call.when == "teardown" or (call.when == "setup" and not report.failed):
        return
    error = None if call.excinfo is None else call.excinfo.value
    data = summary(item, face, error)
    if data is None:
        return
    report.ageval = data  # type: ignore[attr-defined]
    if face is not None:
        for name, text in face.raw.tails.items():
            if text.strip():
                report.sections.append((f"ageval {name}", tail(text)))
        page = item.config.getoption("htmlpath", None)
        if page:
            from pytest_ageval.report import html

            analyze = resolve(item.config, "analyze")[0] == "hack"
            extra = html.extras(face.directory, page, analyze=analyze)
            report.extras = [*getattr(report, "extras", ()), *extra]  # type: ignore[attr-defined]


def _in_its_own_time(report: pytest.TestReport, started: Started, when: str) -> None:
    """An attempt that was started ahead took its own time, not that of its item's turn."""
    report.duration = started.seconds(when)
    report.stop = report.start + report.duration


def classify(
    excinfo: pytest.ExceptionInfo[BaseException],
    when: str,
    report: pytest.TestReport,
    redact: Callable[[str], str],
) -> None:
    """Everything but the verdict is an ERROR, which pytest tells by the phase of the report."""
    error = excinfo.value
    if isinstance(error, AgevalError | TaskFailed):
        # No traceback of ours: the message says it all. Survives xdist, keeps the summary line.
        found = excinfo.getrepr(style="value")
        for entry in getattr(getattr(found, "reprtraceback", None), "reprentries", ()):
            # Redacted before it is cut: half a credential is not recognised.
            entry.lines[:] = clean(redact("\n".join(entry.lines)), LONG_TEXT).split("\n")
        report.longrepr = found
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        first = redact(str(error)).strip().partition("\n")[0]
        crash.message = clean(f"{type(error).__name__}: {first}", MESSAGE)
    if when == "call" and not isinstance(error, TaskFailed):
        report.when = "setup"


def _name_evidence(report: pytest.TestReport, face: AttemptFace) -> None:
    """The last line of an ERROR; the message of a FAIL has it already."""
    trace = getattr(report.longrepr, "reprtraceback", None)
    if trace is not None and face.directory.is_dir():
        trace.extraline = f"evidence: {face.directory}"


def _unplayed(item: pytest.Item) -> list[str]:
    """The roles for want of which an item was skipped."""
    if not isinstance(item, TaskItem) or item.variant.role_agents:
        return []
    return list(map(str, Job.of(item.config).unbound_roles(item)))


def summary(
    item: pytest.Item, face: AttemptFace | None, error: BaseException | None
) -> dict[str, Any] | None:
    """What the controller learns of the attempt: plain JSON types, small. None when it is skipped."""
    if isinstance(error, pytest.skip.Exception):
        return None
    if face is None:
        return _unlocked(item, error)
    outcome = face.outcome
    data = outcome.as_dict()
    failure = data.get("error") or (_as_error(error) if _is_error(error) else None)
    data.update(
        describe(face),
        status="ERROR" if _is_error(error) else outcome.status,
        error=failure,
        failed_checks=list(outcome.failed_checks),
        checks=[
            {name: row[name] for name in CHECK_FIELDS if name in row} for row in list(outcome.checks)[:CHECKS]
        ],
        attempt_dir=str(face.directory),
        sources=sources(face),
        message=clean(str(error), LONG_TEXT) if isinstance(error, TaskFailed) else None,
    )
    for name in REDUNDANT:
        data.pop(name, None)
    found: dict[str, Any] = plain(face.raw.redactor.value(data))
    return found


def _unlocked(item: pytest.Item, error: BaseException | None) -> dict[str, Any]:
    """An attempt that was never made: its task is broken or cannot be locked."""
    variant = getattr(item, "variant", None)
    mark = item.get_closest_marker("ageval")
    settings = {} if variant is None else variant.settings
    found: dict[str, Any] = plain(
        {
            **{name: mark.kwargs[name] for name in MARKED if mark is not None and name in mark.kwargs},
            "attempt": getattr(variant, "attempt", 1),
            "variant": getattr(variant, "name", None),
            "parameters": settings,
            "status": "ERROR",
            "score": None,
            "error": _as_error(error),
        }
    )
    return found


def _is_error(error: BaseException | None) -> bool:
    return error is not None and not isinstance(error, TaskFailed)


def _as_error(error: BaseException | None) -> dict[str, Any]:
    if isinstance(error, AgevalError):
        return error.as_dict()
    return {"phase": None, "title": type(error).__name__, "message": str(error)}


def sources(face: AttemptFace) -> dict[str, str]:
    """Where each configured value came from: ``{"/box": "cli", ...}``."""
    return {row.pointer: row.source for row in face.locked.resolution}


def properties(
    item: pytest.Item, face: AttemptFace | None, error: BaseException | None
) -> list[tuple[str, str]]:
    """The ``<properties>`` of the test case."""
    known = _reported(item, face, error)
    return [] if known is None else property_rows(known)


def property_rows(known: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a report says of an attempt as properties."""
    found: dict[str, Any] = {
        name: known.get(name)
        for name in (
            *("status", "score", "limit", "agent", "model", "effort", "box", "dataset", "task", "task_name"),
        )
    }
    found["attempt"] = known.get("attempt")
    found["attempt_dir"] = known.get("attempt_dir")
    found["suite"] = known.get("suite_run_id")
    found["digest"] = known.get("digest")
    found["regraded_of"] = known.get("regraded_of")
    found["agent_status"] = known.get("agent_status")
    failure = known.get("error") or {}
    found.update({f"error.{name}": failure.get(name) for name in ("phase", "title")})
    for table in ("parameters", "metrics", "timing", "sources"):
        rows = known.get(table) or {}
        found.update({f"{table}.{name}": value for name, value in rows.items()})
    usage = dict(known.get("usage") or {})
    if len(usage.get("by_role") or ()) < 2:
        usage.pop("by_role", None)  # says nothing new
    found.update(_flat("usage", usage))
    checks = known.get("checks") or ()
    if checks:
        found["checks"] = "; ".join(
            f"{row.get('id') or row.get('title')}: {row.get('status')}" for row in checks
        )
    return [
        (_XML_NAME.sub("_", f"ageval.{name}"), cut(str(value), MESSAGE))
        for name, value in found.items()
        if value is not None and value != ""
    ]


def _flat(prefix: str, rows: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A table with tables in it as properties: ``usage.by_role.solver.prompt_tokens``."""
    for name, value in rows.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}.{name}", value)
        else:
            yield f"{prefix}.{name}", ", ".join(map(str, value)) if isinstance(value, list) else value


def _reported(
    item: pytest.Item, face: AttemptFace | None, error: BaseException | None
) -> dict[str, Any] | None:
    if error is None and face is None:
        return item.stash.get(KNOWN, None)
    known = summary(item, face, error)
    if known is not None:
        previous = item.stash.get(KNOWN, None)
        if previous is not None and previous["status"] == "ERROR" and error is None:
            known = {**known, "status": "ERROR", "error": previous["error"]}
        item.stash[KNOWN] = known
    return known


def tail(text: str, limit: int = TAIL) -> str:
    """The last `limit` bytes of `text`, from the beginning of a line."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode("utf-8")
    last = data[-limit:].decode("utf-8", "ignore")
    return f"[... the whole of it is in the evidence ...]\n{last.partition(chr(10))[2] or last}"
