"""What a trial of Harbor comes to: only a good reward is a verdict."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_ageval.imports.trials import Trial, TrialResult
from pytest_ageval.imports.verdict import Judged, judge

TIMEOUT = {"exception_type": "AgentTimeoutError", "exception_message": "after 5 s"}


def trial(rewards: Any = None, exception: dict[str, Any] | None = None, **more: Any) -> Trial:
    document = {
        "task_name": "org/t",
        "trial_name": "t__1234567",
        "agent_info": {"name": "codex"},
        "verifier_result": None if rewards is None else {"rewards": rewards},
        "exception_info": exception,
        **more,
    }
    return Trial(Path("t__1234567"), msgspec.convert(document, TrialResult))


def judged(rewards: Any = None, exception: dict[str, Any] | None = None, **more: Any) -> Judged:
    return judge(trial(rewards, exception, **more), reward_key=None, threshold=None)


@pytest.mark.parametrize(
    ("rewards", "status", "score"),
    [
        ({"reward": 1}, "PASS", 1.0),
        ({"reward": 0.99}, "FAIL", 0.99),
        ({"reward": 0.0, "lines": 1.0}, "FAIL", 0.0),
        ({"only": 1.0}, "PASS", 1.0),
    ],
)
def test_a_reward_decides(rewards: Any, status: str, score: float) -> None:
    found = judged(rewards)
    assert (found.status, found.score, found.error) == (status, score, None)
    assert found.rewards == rewards


@pytest.mark.parametrize(
    ("rewards", "title"),
    [
        (None, "reward_missing"),
        ({}, "reward_missing"),
        ({"reward": 17.0}, "reward_out_of_range"),
        ({"reward": -3.0}, "reward_out_of_range"),
        ({"reward": math.nan}, "reward_invalid"),
        ({"reward": "1"}, "reward_invalid"),
        ({"reward": True}, "reward_invalid"),
        ({"a": 1.0, "b": 1.0}, "reward_ambiguous"),
    ],
)
def test_what_is_no_reward_is_no_verdict(rewards: Any, title: str) -> None:
    found = judged(rewards)
    assert (found.status, found.score, found.rewards) == ("ERROR", None, {})
    assert found.error is not None
    assert (found.error["title"], found.error["phase"]) == (title, "evaluate")


def test_key_and_threshold() -> None:
    two = trial({"a": 0.7, "b": 0.1})
    assert judge(two, reward_key="a", threshold=0.7).status == "PASS"
    assert judge(two, reward_key="b", threshold=0.7).status == "FAIL"
    missing = judge(two, reward_key="c", threshold=None)
    assert missing.error is not None
    assert missing.error["title"] == "reward_key_missing"


@pytest.mark.parametrize(
    ("kind", "phase"),
    [
        ("HealthcheckError", "environment"),
        ("AgentSetupTimeoutError", "environment"),
        ("RewardFileNotFoundError", "evaluate"),
        ("VerifierTimeoutError", "evaluate"),
        ("ApiRateLimitError", "run"),
        ("SomethingNew", "run"),
    ],
)
def test_an_exception_is_an_error_whatever_the_reward(kind: str, phase: str) -> None:
    info = {"exception_type": kind, "exception_message": "why", "exception_traceback": "x" * 9000 + "end"}
    found = judged({"reward": 1.0}, info)
    assert (found.status, found.score) == ("ERROR", None)
    assert found.error is not None
    assert (found.error["title"], found.error["phase"], found.error["message"]) == (kind, phase, "why")
    assert found.error["detail"].endswith("end")
    assert len(found.error["detail"]) == 8000


@pytest.mark.parametrize(
    ("kind", "status", "limit"),
    [
        ("AgentTimeoutError", "timeout", "wall_time_seconds"),
        ("NonZeroAgentExitCodeError", "crashed", None),
        ("AgentSafetyRefusalError", "refused", None),
        ("ContextWindowExceededError", "limit", "context_window"),
    ],
)
def test_the_work_of_an_agent_that_ended_badly_is_judged(kind: str, status: str, limit: str | None) -> None:
    found = judged({"reward": 1.0}, {"exception_type": kind})
    assert (found.status, found.agent_status, found.limit) == ("PASS", status, limit)
    assert judged(None, {"exception_type": kind}).error == {"phase": "run", "title": kind, "message": ""}


def test_harbors_own_word_that_a_reward_does_not_count_counts() -> None:
    info = {**TIMEOUT, "policy": {"has_valid_reward": False}}
    found = judged({"reward": 1.0}, info)
    assert found.status == "ERROR"
    assert found.error is not None
    assert found.error["title"] == "AgentTimeoutError"


def test_an_error_of_a_step_is_one_of_the_trial() -> None:
    steps = [
        {"step_name": "a", "verifier_result": {"rewards": {"reward": 1.0}}, "exception_info": TIMEOUT},
        {"step_name": "b", "exception_info": {"exception_type": "VerifierTimeoutError"}},
    ]
    found = judged({"reward": 0.5}, step_results=steps)
    assert found.error is not None
    assert found.error["title"] == "VerifierTimeoutError"
    steps[1] = {"step_name": "b", "verifier_result": {"rewards": {"reward": 0.0}}}
    found = judged({"reward": 0.5}, step_results=steps)
    assert (found.status, found.score, found.limit) == ("FAIL", 0.5, "wall_time_seconds")
    assert [(row["id"], row["status"]) for row in found.checks] == [("a", "pass"), ("b", "fail")]
