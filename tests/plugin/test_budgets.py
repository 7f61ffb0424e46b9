"""Budgets and costs in real runs: what is counted, what stops, and what every report says of it."""

from __future__ import annotations

import json
import re
import textwrap
import xml.etree.ElementTree as ET
from html import unescape

import pytest

from pytest_ageval.testing.scripted_model import HttpError, ScriptedModel, Text, Tokens
from pytest_ageval.testing.scripted_model.turns import NO_USAGE

from .attempt_kit import ASK, JUDGE, ONE, PROFILES, ROLES, only

pytestmark = pytest.mark.usefixtures("key")

ROUNDS = """
async def run(ctx):
    session = ctx.agent.session("solver")
    for turn in range(4):
        reply = await session.invoke(f"question {turn}")
        if not reply["ok"]:
            text = "42" if ctx.params.get("good") else ""
            ctx.publish_json("reply", {"text": text, "error": reply["error"]})
            return
    ctx.publish_json("reply", {"text": reply["text"], "error": None})
"""
FOUR = ONE + "limits: {agent_invocations: 4}\n"
#: The scripted model's usual answer: 1050 tokens; at these prices 800 * 2 + 200 * 1 + 50 * 4 millionths.
TABLE = """
format: ageval.prices/1
date: "2026-11-30"
source: https://example.com/prices
models:
  - {match: scripted*, input: 2, output: 4, cache_read: 1}
"""
COST = 0.002
TOKENS = 1050


@pytest.fixture
def prices(demo):
    path = demo.pytester.path / "prices.yaml"
    path.write_text(TABLE)
    return f"--ageval-prices={path}"


def profiles(demo, model):
    demo.profiles(PROFILES.format(url=model.base_url, stall=0))


def usage(demo):
    return only(demo)["usage"]


# -- what is counted -------------------------------------------------------------------------------


def test_an_estimate_is_marked_everywhere(demo, prices):
    with ScriptedModel([Text("42")]) as model:
        profiles(demo, model)
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        result = demo.pytest("datasets", prices, "--junitxml=j.xml", "--html=h.html", "--keep-raw")
    result.assert_outcomes(passed=1)
    found = usage(demo)
    assert found["cost_usd"] == pytest.approx(COST)
    assert found["cost_source"] == "estimated"
    assert found["cost_estimated_usd"] == pytest.approx(COST)
    assert found["price_tables"] == ["prices.yaml (2026-11-30)"]
    assert found["by_role"]["solver"]["prompt_tokens"] == 1000
    assert found["by_role"]["solver"]["cost_usd"] == pytest.approx(COST)
    result.stdout.fnmatch_lines(
        [
            "demo *~$0.0020*",
            "usage: 1.1k tokens (1.0k input, 200 of it cached; 50 output, 10 of it reasoning), ~$0.0020",
            "~ estimated from list prices: prices.yaml (2026-11-30)",
        ]
    )
    (attempt,) = demo.attempts()
    terminal = json.loads((attempt / "trajectory.jsonl").read_text().splitlines()[-1])
    assert terminal["usage"]["cost_source"] == "estimated"
    metadata = json.loads(next(attempt.glob("agent/invocations/*/metadata.json")).read_text())
    assert metadata["usage"]["price_table"] == "prices.yaml (2026-11-30)"
    junit = {row.get("name"): row.get("value") for row in ET.parse("j.xml").iter("property")}
    assert junit["ageval.usage.cost_source"] == "estimated"
    assert float(junit["ageval.usage.cost_usd"]) == pytest.approx(COST)
    assert not any(name.startswith("ageval.usage.by_role") for name in junit)
    page = unescape((demo.pytester.path / "h.html").read_text())
    assert "~$0.0020" in page
    assert "~ estimated from list prices" in page


def test_a_reported_cost_wins_and_a_mixed_one_is_said(demo, prices):
    def turn(request):
        return Text("42", tokens=Tokens(cost=0.5)) if "1" in request.prompt else Text("a")

    with ScriptedModel(by=turn) as model:
        profiles(demo, model)
        demo.task("t", run=ROUNDS, evaluator=JUDGE, roles=(ROLES,), more=FOUR)
        result = demo.pytest("datasets", prices)
    found = usage(demo)
    assert found["cost_usd"] == pytest.approx(0.5 + 3 * COST)
    assert found["cost_source"] == "mixed"
    assert found["cost_estimated_usd"] == pytest.approx(3 * COST)
    result.stdout.fnmatch_lines(["~ $0.0060 of it is estimated from list prices: prices.yaml (2026-11-30)"])


def test_what_nobody_knows_has_a_reason_and_is_not_zero(demo, prices):
    with ScriptedModel([Text("42", tokens=NO_USAGE)]) as model:
        profiles(demo, model)
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        result = demo.pytest("datasets", prices)
    found = usage(demo)
    assert found["cost_usd"] is None
    assert found["prompt_tokens"] is None
    assert found["unavailable"] == "not_reported"
    assert found["cost_unavailable"] == ["not_reported"]
    result.stdout.fnmatch_lines(["demo * - * - *"])


def test_roles_and_judges_are_counted_apart(demo, prices):
    run = """
        async def run(ctx):
            await ctx.agent.session("writer").invoke("write")
            reply = await ctx.agent.session("solver").invoke("solve")
            ctx.publish_json("reply", {"text": reply["text"]})
    """
    evaluator = """
        async def evaluate(inputs):
            await inputs["agent"].session("judge").invoke("right?")
            return {"status": "PASS"}
    """
    with ScriptedModel(by=lambda request: Text("42")) as model:
        profiles(demo, model)
        more = ONE + "limits: {agent_invocations: 2}"
        demo.task("t", run=run, evaluator=evaluator, roles=("writer", "solver", "judge"), more=more)
        result = demo.pytest("datasets", prices, "--junitxml=j.xml")
    found = usage(demo)
    assert found["invocations"] == 2
    assert sorted(found["by_role"]) == ["solver", "writer"]
    assert found["judges"]["judge"]["prompt_tokens"] == 1000
    result.stdout.fnmatch_lines(
        [
            "usage: 2.1k tokens*",
            "  role solver: 1.1k tokens*",
            "  role writer: 1.1k*",
            "judge judge: 1.1k tokens*",
        ]
    )
    junit = {row.get("name"): row.get("value") for row in ET.parse("j.xml").iter("property")}
    assert junit["ageval.usage.by_role.writer.prompt_tokens"] == "1000"
    assert junit["ageval.usage.judges.judge.completion_tokens"] == "50"


# -- the budget of an attempt ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "limit"),
    [("--max-tokens-per-attempt=1051", "max_tokens"), ("--max-cost-per-attempt=0.0021", "max_cost")],
)
def test_an_attempts_budget_is_a_limit_and_the_work_is_judged(demo, prices, option, limit):
    with ScriptedModel(by=lambda request: Text("a")) as model:
        profiles(demo, model)
        demo.task("bad", run=ROUNDS, evaluator=JUDGE, roles=(ROLES,), more=FOUR)
        demo.task("good", run=ROUNDS, evaluator=JUDGE, roles=(ROLES,), more=FOUR + "parameters: {good: true}")
        result = demo.pytest("datasets", prices, option)
        assert len(model.requests) == 4, "two calls of each attempt: the second one crosses the limit"
    result.assert_outcomes(passed=1, failed=1)
    for found in demo.results():
        assert (found["limit"], found["agent_status"]) == (limit, "limit")
        assert found["agent_invocations"] == 2
    locks = [json.loads((attempt / "lock.json").read_text()) for attempt in demo.attempts()]
    assert all(lock["locked"]["budget"] for lock in locks), "part of the digest"


def test_a_budget_that_cannot_be_counted_says_so(demo):
    with ScriptedModel(by=lambda request: Text("42", tokens=NO_USAGE)) as model:
        profiles(demo, model)
        demo.task("t", run=ROUNDS, evaluator=JUDGE, roles=(ROLES,), more=FOUR)
        result = demo.pytest("datasets", "--max-tokens-per-attempt=10", "--max-tokens=20")
    result.assert_outcomes(passed=1)
    assert "budget_uncounted" in only(demo)["flags"]
    result.stdout.fnmatch_lines(
        [
            "budget warning: 1 attempt made calls that its own budget could not count in full",
            "budget: 0 of 20 tokens",
            "budget warning: the tokens of 4 calls could not be counted in full; more was spent*",
        ]
    )


def test_an_answer_that_was_refused_by_the_provider_has_used_nothing(demo):
    with ScriptedModel([HttpError(503, retry_after=0.01, times=1), Text("42")]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=60))
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        result = demo.pytest("datasets", "--max-tokens=2000")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["budget: 1050 of 2000 tokens"])
    assert "budget warning" not in result.stdout.str()


# -- the budget of a run ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "code"), [((), 1), (("--ageval-exit=verdict",), 9)], ids=["pytest", "verdict"]
)
def test_what_does_not_begin_is_not_run_and_no_success(demo, scratch, option, code):
    with ScriptedModel(by=lambda request: Text("42")) as model:
        profiles(demo, model)
        for name in "abcde":
            demo.task(name, run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        result = demo.pytest("datasets", f"--max-tokens={TOKENS + 1}", "--junitxml=j.xml", *option)
        assert len(model.requests) == 2
    result.assert_outcomes(passed=2, skipped=3)
    assert result.ret == code
    assert len(demo.attempts()) == 2, "nothing was opened for the others"
    result.stdout.fnmatch_lines(
        [
            "budget: 2100 of 1051 tokens",
            "3 attempts were not run: the budget is used up (--max-tokens: 2100 of 1051 tokens); run with: *",
        ]
    )
    skipped = [row.get("message") for row in ET.parse("j.xml").iter("skipped")]
    assert skipped == ["not run, the budget is used up: --max-tokens: 2100 of 1051 tokens"] * 3
    assert not list(scratch.glob("ageval-run_*")), "the ledger is gone with the run"


def test_an_attempt_that_is_under_way_is_an_error_and_not_a_fail(demo, prices):
    with ScriptedModel(by=lambda request: Text("a")) as model:
        profiles(demo, model)
        demo.task("a", run=ROUNDS, evaluator=JUDGE, roles=(ROLES,), more=FOUR)
        demo.task("b", run=ROUNDS, evaluator=JUDGE, roles=(ROLES,), more=FOUR)
        result = demo.pytest("datasets", prices, "--max-cost=0.003")
        assert len(model.requests) == 2
    result.assert_outcomes(errors=1, skipped=1)
    found = only(demo)
    assert (found["status"], found["score"]) == ("ERROR", None)
    assert found["error"]["title"] == "budget_exhausted"
    assert found["limit"] is None
    assert found["usage"]["prompt_tokens"] == 2000, "what was used is told all the same"
    result.stdout.fnmatch_lines(["*budget: $0.0040 of $0.0030*", "1 attempt was not run: *"])


def test_a_judge_is_stopped_too(demo):
    evaluator = """
        async def evaluate(inputs):
            await inputs["agent"].session("judge").invoke("GOLD: right?")
            return {"status": "PASS"}
    """
    with ScriptedModel(by=lambda request: Text("42")) as model:
        profiles(demo, model)
        demo.task("t", run=ASK, evaluator=evaluator, roles=(ROLES, "judge"), more=ONE)
        result = demo.pytest("datasets", "--max-tokens=1000")
        assert len(model.requests) == 1
    result.assert_outcomes(errors=1)
    error = only(demo)["error"]
    assert (error["phase"], error["title"]) == ("evaluate", "budget_exhausted")


def test_all_workers_share_the_budget(demo):
    """What is spent exceeds the budget by the calls that were under way, and by no more."""
    workers, budget = 2, 4 * TOKENS
    with ScriptedModel(by=lambda request: Text("42")) as model:
        profiles(demo, model)
        for number in range(12):
            demo.task(f"t{number:02}", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        result = demo.pytest("datasets", f"--max-tokens={budget}", "-n", str(workers))
        calls = len(model.requests)
    outcomes = result.parseoutcomes()
    assert 4 <= calls < 4 + workers
    assert outcomes["passed"] + outcomes.get("errors", 0) + outcomes["skipped"] == 12
    assert outcomes["passed"] == calls
    assert result.ret == 1
    assert re.search(rf"^budget: {calls * TOKENS} of {budget} tokens$", result.stdout.str(), re.MULTILINE)


# -- what is refused before anything starts --------------------------------------------------------


def test_a_budget_of_money_without_a_price_is_refused(demo):
    with ScriptedModel(by=lambda request: Text("42")) as model:
        profiles(demo, model)
        demo.task("t", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        result = demo.pytest("datasets", "--max-cost=1")
        assert not model.requests
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no_price: *no price of the model 'scripted' of the role 'solver'*"])
    assert demo.attempts() == []


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--max-cost=0", "--max-cost must be a number above 0, found 0"),
        ("--max-tokens=-5", "--max-tokens must be a number above 0, found -5"),
        ("--max-cost-per-attempt=nan", "--max-cost-per-attempt must be a number above 0, found nan"),
        ("--ageval-prices=nowhere.yaml", "--ageval-prices: there is no file *nowhere.yaml"),
    ],
)
def test_a_budget_that_cannot_be_meant_is_a_usage_error(demo, argument, words):
    demo.task("t", roles=(ROLES,))
    result = demo.pytest("datasets", "--agent=nop", argument)
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"*invalid_option: {words}*"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("format: ageval.prices/2\n", "*prices.yaml:1:/format*"),
        (TABLE.replace("input: 2", "inputs: 2"), "*prices.yaml:6:/models/0*input*"),
        (TABLE.replace("input: 2", "input: -2"), "*prices.yaml:6:/models/0/input*"),
        (TABLE.replace("2026-11-30", "today"), "*prices.yaml:3:/date*"),
    ],
)
def test_a_price_table_that_is_wrong_names_its_line(demo, prices, text, words):
    (demo.pytester.path / "prices.yaml").write_text(textwrap.dedent(text))
    demo.task("t", roles=(ROLES,))
    result = demo.pytest("datasets", "--agent=nop", prices)
    assert result.ret == 4
    result.stderr.fnmatch_lines([words])


def test_the_ini_file_and_the_environment_have_budgets(demo, monkeypatch):
    demo.pytester.makeini(f"[pytest]\nageval_max_tokens = {TOKENS}\nageval_prices = prices.yaml\n")
    (demo.pytester.path / "prices.yaml").write_text(TABLE)
    monkeypatch.setenv("AGEVAL_MAX_COST_PER_ATTEMPT", "0.5")
    with ScriptedModel(by=lambda request: Text("42")) as model:
        profiles(demo, model)
        demo.task("a", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        demo.task("b", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)
        demo.pytest("datasets").assert_outcomes(passed=1, skipped=1)
    lock = json.loads((demo.attempts()[0] / "lock.json").read_text())
    assert lock["locked"]["budget"] == {"max_cost_usd": 0.5}
    assert {"pointer": "/budget/max_cost_usd", "source": "env", "value": 0.5, "note": ""} in lock[
        "resolution"
    ]


# -- executors that make several calls in one invoke -----------------------------------------------

LOOPING = """
from ageval_executors.nop import NopExecutor
from pytest_ageval import AgentResult, Usage

CALL = Usage(prompt_tokens=90, completion_tokens=10, source="told")

class Looping(NopExecutor):
    '''Calls a model until it is refused; says then that its machinery failed, as some agents do.'''
    kind = "looping"
    async def invoke(self, prompt, **more):
        calls = 0
        while self.session.refuse_call() is None and calls < 50:
            calls += 1
            self.session.called(CALL)
        usage = Usage(prompt_tokens=90 * calls, completion_tokens=10 * calls, source="told")
        return AgentResult(
            text="42" if prompt == "good" else "", ok=False, usage=usage,
            error="HTTPError:429", status="crashed", infrastructure=True, transient=True,
        )

def pytest_ageval_executors():
    return {"looping": Looping}
"""


def looping(demo):
    demo.pytester.makeconftest(LOOPING)
    for name in ("bad", "good"):
        run = ASK.replace("What is 6 times 7?", name)
        demo.task(name, run=run, evaluator=JUDGE, roles=(ROLES,), more=ONE)


def test_a_call_within_an_invoke_is_refused_and_that_is_no_failure_of_the_agent(demo):
    looping(demo)
    demo.pytest("datasets", "--agent=looping", "--max-tokens-per-attempt=250").assert_outcomes(
        passed=1, failed=1
    )
    for found in demo.results():
        assert found["usage"]["prompt_tokens"] == 270, "three calls: the third one crosses the limit"
        assert (found["limit"], found["agent_status"]) == ("max_tokens", "limit")
        assert found["flags"] == []


def test_a_call_within_an_invoke_uses_up_the_runs_budget(demo):
    looping(demo)
    result = demo.pytest("datasets", "--agent=looping", "--max-tokens=250")
    result.assert_outcomes(errors=1, skipped=1)
    assert only(demo)["error"]["title"] == "budget_exhausted"
    result.stdout.fnmatch_lines(["budget: 300 of 250 tokens", "1 attempt was not run: *"])
