"""Money that is spent stays spent: the budget of a session that goes on with a suite run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_ageval.suite import SuiteLayout
from pytest_ageval.testing.scripted_model import Delay, ScriptedModel, Text, When

from .attempt_kit import ASK, JUDGE, ONE, PROFILES, ROLES
from .interrupt_kit import start, until
from .suite_kit import statuses, suite_roots

if TYPE_CHECKING:
    from .conftest import DataSet

pytestmark = pytest.mark.usefixtures("key")

#: Tokens of an answer of the scripted model.
TOKENS = 1050
WORKERS = pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])


def answering(demo: DataSet, model: ScriptedModel, *names: str) -> None:
    demo.profiles(PROFILES.format(url=model.base_url, stall=0))
    for name in names:
        demo.task(name, run=ASK, evaluator=JUDGE, roles=(ROLES,), more=ONE)


def spent(demo: DataSet) -> int:
    (root,) = suite_roots(demo)
    found: int = json.loads(SuiteLayout(root).spent.read_text())["tokens"]
    return found


def budgets(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("budget:")]


@WORKERS
def test_what_earlier_sessions_spent_counts(demo: DataSet, workers: tuple[str, ...]) -> None:
    with ScriptedModel(by=lambda request: Text("42")) as model:
        answering(demo, model, "a", "b", "c", "d")
        demo.pytest("datasets/demo/tasks/a").assert_outcomes(passed=1)  # without a budget
        assert spent(demo) == TOKENS
        one = demo.pytest("--resume", "--max-tokens", str(TOKENS + 1), "-k", "a[ or b[")
        one.assert_outcomes(passed=2, deselected=2)
        words = f"budget: {2 * TOKENS} of {TOKENS + 1} tokens ({TOKENS} tokens of it by earlier sessions)"
        assert budgets(one) == [words]
        none = demo.pytest("--resume", "--max-tokens", str(2 * TOKENS), *workers)
        none.assert_outcomes(passed=2, skipped=2)
        assert none.ret == 1
        none.stdout.fnmatch_lines(["2 attempts were not run: the budget is used up (--max-tokens: 2100 of *"])
        # Attempts that are replaced have cost what they have cost.
        again = demo.pytest("--resume", "--replace", "--max-tokens", str(4 * TOKENS), "-k", "a[ or b[")
        again.assert_outcomes(passed=2, deselected=2)
        assert spent(demo) == 4 * TOKENS
        more = demo.pytest("--resume", "--max-tokens", str(6 * TOKENS), *workers)
        more.assert_outcomes(passed=4)
        assert len(model.requests) == 6
    assert spent(demo) == 6 * TOKENS


def test_reused_results_cost_nothing(demo: DataSet) -> None:
    with ScriptedModel(by=lambda request: Text("42")) as model:
        answering(demo, model, "a", "b")
        demo.pytest("datasets/demo/tasks/a").assert_outcomes(passed=1)
        second = demo.pytest("--reuse", "--max-tokens", "1")
        second.assert_outcomes(passed=2)
        assert budgets(second) == [f"budget: {TOKENS} of 1 tokens"]


ROUNDS = """
async def run(ctx):
    session = ctx.agent.session("solver")
    for turn in range(3):
        reply = await session.invoke(f"question {turn}")
    ctx.publish_json("reply", {"text": reply["text"], "ok": True, "error": None})
"""


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=30)


def test_a_killed_attempt_has_spent_what_was_answered(demo: DataSet) -> None:
    """To the call: two answers before SIGKILL, none of them is paid again when the attempt goes on."""
    last = When("question 2", [Delay(5.0), Text("42"), Text("42")])
    with ScriptedModel([last, When("question", [Text("42"), Text("42")])]) as model:
        demo.profiles(PROFILES.format(url=model.base_url, stall=0))
        more = ONE + "limits: {agent_invocations: 3}\n"
        demo.task("t", run=ROUNDS, evaluator=JUDGE, roles=(ROLES,), more=more)
        process = start(demo, "--max-tokens", "100000")
        assert until(lambda: any("question 2" in request.prompt for request in model.requests), 60)
        kill(process)
        assert spent(demo) == 2 * TOKENS
        result = demo.pytest("--resume", "--max-tokens", "100000")
        result.assert_outcomes(passed=1)
        words = f"budget: {3 * TOKENS} of 100000 tokens ({2 * TOKENS} tokens of it by earlier sessions)"
        assert budgets(result) == [words]
        assert len(model.requests) == 4
    assert spent(demo) == 3 * TOKENS
    assert statuses(demo) == {"t": "PASS"}


def test_a_record_without_an_account_is_counted_by_its_rows(demo: DataSet) -> None:
    with ScriptedModel(by=lambda request: Text("42")) as model:
        answering(demo, model, "a", "b")
        demo.pytest("datasets/demo/tasks/a").assert_outcomes(passed=1)
        (root,) = suite_roots(demo)
        account: Path = SuiteLayout(root).spent
        for text in (None, '{"tokens": '):
            account.unlink()
            if text is not None:
                account.write_text(text)
            result = demo.pytest("--resume", "--max-tokens", str(TOKENS))
            result.assert_outcomes(passed=1, skipped=1)
            assert budgets(result) == [
                f"budget: {TOKENS} of {TOKENS} tokens ({TOKENS} tokens of it by earlier sessions)"
            ]
            account.touch()
