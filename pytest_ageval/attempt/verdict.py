"""The verdict: what an evaluator may return, and its frozen form."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pytest_ageval.errors import EvaluatorError

#: Characters of a refused value that a message shows.
SHOWN = 200


class Verdict:
    """An evaluator's answer, checked and frozen: nothing after the evaluate phase can change it.

    `status` is PASS or FAIL, `score` a finite float or None, `metrics` and `checks` what the
    evaluator reported. Keys of the raw answer that we do not know are kept in `raw`.
    """

    __slots__ = ("_raw", "score", "status")

    status: str
    score: float | None
    _raw: Mapping[str, Any]

    def __init__(self, status: str, score: float | None, raw: Mapping[str, Any]) -> None:
        frozen = MappingProxyType(copy.deepcopy(dict(raw)))
        for name, value in (("status", status), ("score", score), ("_raw", frozen)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a bound verdict cannot be changed: {name}")

    @property
    def raw(self) -> dict[str, Any]:
        """A fresh copy of the evaluator's whole answer."""
        return copy.deepcopy(dict(self._raw))

    @property
    def metrics(self) -> dict[str, Any]:
        """The evaluator's metrics."""
        return copy.deepcopy(dict(self._raw.get("metrics") or {}))

    @property
    def checks(self) -> list[dict[str, Any]]:
        """The evaluator's checks, in its order."""
        return [dict(row) for row in self._raw.get("checks") or () if isinstance(row, Mapping)]

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """Ids (or titles) of the checks that did not pass."""
        return tuple(
            str(row.get("id") or row.get("title") or number)
            for number, row in enumerate(self.checks, 1)
            if str(row.get("status", "")).lower() not in ("pass", "passed", "ok", "skipped", "")
        )


def bind(raw: Any) -> Verdict:
    """Check the evaluator's answer. Raises `EvaluatorError` with the text that was seen."""
    if raw is None:
        raise EvaluatorError(
            "evaluator_no_verdict", "the evaluator returned None; return a dict with 'status'"
        )
    if not isinstance(raw, Mapping):
        raise EvaluatorError(
            "evaluator_invalid_verdict",
            f"the evaluator must return a dict with 'status', found {_seen(raw)}",
        )
    status = raw.get("status")
    if status not in ("PASS", "FAIL") or not isinstance(status, str):
        raise EvaluatorError(
            "evaluator_invalid_status",
            f"status must be exactly 'PASS' or 'FAIL', found {_seen(status)}",
        )
    _check_mapping(raw, "metrics")
    _check_finite(raw.get("metrics"), "metrics")
    if not isinstance(raw.get("checks") or [], list):
        raise EvaluatorError(
            "evaluator_invalid_checks", f"checks must be a list, found {_seen(raw['checks'])}"
        )
    return Verdict(status, _score(raw.get("score")), raw)


def _score(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EvaluatorError(
            "evaluator_invalid_score", f"score must be a finite number or absent, found {_seen(value)}"
        )
    if not math.isfinite(value):
        raise EvaluatorError(
            "evaluator_invalid_score", f"score must be a finite number, found {_seen(value)}"
        )
    return float(value)


def _check_mapping(raw: Mapping[str, Any], key: str) -> None:
    if not isinstance(raw.get(key) or {}, Mapping):
        raise EvaluatorError(f"evaluator_invalid_{key}", f"{key} must be a mapping, found {_seen(raw[key])}")


def _check_finite(value: Any, where: str) -> None:
    """NaN and infinity are not JSON: they would make the evidence unreadable."""
    if isinstance(value, float) and not math.isfinite(value):
        raise EvaluatorError("evaluator_invalid_metrics", f"{where} is {value!r}, not a finite number")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_finite(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _check_finite(inner, f"{where}[{number}]")


def _seen(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


def added_metrics(verdict: Verdict, after: Any) -> dict[str, Any]:
    """What ``after_evaluate`` added: new metrics only. Raises EvaluatorError on anything else."""
    if not isinstance(after, Mapping):
        raise EvaluatorError(
            "after_evaluate_invalid",
            f"pytest_ageval_after_evaluate must return the verdict, found {_seen(after)}",
        )
    before = verdict.raw
    for key in {*before, *after} - {"metrics"}:
        if before.get(key) != after.get(key):
            raise EvaluatorError(
                "after_evaluate_changed_verdict",
                f"{key} is bound as {_seen(before.get(key))} and cannot become {_seen(after.get(key))}",
            )
    metrics = before.get("metrics") or {}
    added = dict(after.get("metrics") or {})
    for key, value in metrics.items():
        if key not in added or added[key] != value:
            raise EvaluatorError(
                "after_evaluate_changed_verdict", f"the evaluator's metric {key!r} cannot be changed"
            )
        del added[key]
    _check_finite(added, "metrics")
    return added
