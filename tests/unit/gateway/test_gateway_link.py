"""What the calls of a turn make of its result, and what of them is kept as evidence."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ageval.evidence import EvidenceStore, Redactor
from pytest_ageval.executor import AgentResult, Usage
from pytest_ageval.gateway.calls import CallRecord
from pytest_ageval.gateway.link import Link
from pytest_ageval.gateway.routes import Route, Upstream

USAGE = Usage(prompt_tokens=10, completion_tokens=2, source="gateway")
OWN = Usage(prompt_tokens=7, completion_tokens=1, cost_usd=0.5, source="acp")


def call(outcome: Any = "ok", **more: Any) -> CallRecord:
    row = CallRecord("chat", "POST", "/v1/chat/completions", "2026-01-01T00:00:00.000Z", tools=True)
    row.outcome, row.status = outcome, 200
    row.usage = USAGE if outcome == "ok" else None
    for name, value in more.items():
        setattr(row, name, value)
    return row


def settle(result: AgentResult, *calls: CallRecord, before: tuple[CallRecord, ...] = ()) -> AgentResult:
    link = Link(route=Route(Upstream.of("http://127.0.0.1:9/v1", None), calls=list(before)))

    async def run() -> AgentResult:
        link.begin()
        assert link.route is not None
        link.route.calls.extend(calls)
        return link.measure(await link.judge(result))

    return asyncio.run(run())


SAID = AgentResult(text="done", usage=OWN, stop_reason="end_turn", metadata={"entry": "x"})


def test_the_usage_is_that_of_the_wire_and_the_agents_own_is_kept() -> None:
    found = settle(SAID, call(), call(), before=(call(),))
    assert found.ok
    assert found.usage == Usage(prompt_tokens=20, completion_tokens=4, source="gateway")
    assert found.metadata["entry"] == "x"
    kept = found.metadata["gateway"]
    assert kept["usage_of_agent"] == OWN.as_dict()
    assert (kept["calls"], kept["failed"], kept["unfinished"]) == (2, 0, 0)
    # Measured once, however often it is asked for.
    assert Link(route=Route(Upstream.of("http://h/v1", None))).measure(found) is found


def test_without_a_call_the_agents_own_figures_stay() -> None:
    assert settle(SAID, before=(call(),)).usage == OWN


def test_a_hidden_failure() -> None:
    failed = call("http_error", status=503, error="overloaded", retry_after=4.0)
    found = settle(SAID, call(), failed)
    assert (found.ok, found.status, found.infrastructure, found.transient) == (False, "crashed", True, True)
    assert found.error == "provider_failed:HTTP 503: overloaded"
    assert found.retry_after == 4.0
    assert found.metadata["agent_said"] == "end_turn"
    assert found.usage == USAGE
    assert settle(SAID, failed, call()).ok
    assert settle(SAID, before=(failed,)).ok


@pytest.mark.parametrize("status", ["cancelled", "timeout", "crashed"])
def test_a_turn_that_failed_already_keeps_its_own_words(status: Any) -> None:
    told = AgentResult(ok=False, error="why", status=status, usage=Usage(unavailable="lost_on_timeout"))
    found = settle(told, call(), call("http_error", status=500))
    assert (found.ok, found.error, found.status) == (False, "why", status)
    assert found.usage == USAGE


def test_a_budget_and_a_miss_come_before_what_the_agent_makes_of_them() -> None:
    crashed = AgentResult(ok=False, error="acp_error:-32603", status="crashed", infrastructure=True)
    for result in (SAID, crashed):
        found = settle(result, call(), call("refused", error="max_cost"), call("http_error", status=500))
        assert (found.ok, found.status, found.infrastructure) == (False, "limit", False)
        assert found.error == "budget_used_up: max_cost"
        missed = settle(result, call("replay_miss", status=404, error="not in the recording"))
        assert (missed.ok, missed.infrastructure, missed.transient) == (False, True, False)
        assert missed.error == "replay_miss: not in the recording"


def test_a_session_beside_the_gateway_says_so() -> None:
    assert Link("off").measure(SAID).metadata["gateway"] == {"used": False, "reason": "off"}
    assert Link("host").measure(SAID) is SAID


def test_records_are_evidence_without_secrets(tmp_path: Path) -> None:
    redactor = Redactor()
    redactor.add("OPENAI_API_KEY", "sk-secret-0123456789")
    with EvidenceStore.create(tmp_path / "attempt_1", redactor) as store:
        row = call("http_error", status=401, error="no such key: sk-secret-0123456789").as_dict()
        store.model_call("run", row)
        store.model_call("evaluate", row)
        store.write_result({"status": "ERROR"})
        store.model_call("run", row)  # too late: nothing is written after the result
    for surface in ("agent", "evaluation"):
        (line,) = (tmp_path / "attempt_1" / surface / "model-calls.jsonl").read_text().splitlines()
        found = json.loads(line)
        assert found["error"] == "no such key: [REDACTED:OPENAI_API_KEY]"
        assert (found["schema"], found["usage"], found["stop_reason"]) == ("ageval.model_call/1", None, None)
