"""Graders written with ``harbor-rewardkit``: criteria, and a judge whose model is scripted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import rewardkit_image
from docker_engine import needs_docker
from harbor_tasks import Tasks, title

from pytest_ageval.testing.scripted_model import ScriptedModel, Text, Tokens

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    needs_docker,
    pytest.mark.skipif(rewardkit_image.python() is None, reason="rewardkit needs Python 3.12 or newer"),
]

KEY = "judge-key-0123456789"
GOLD = "the answer is forty-two"
CHECKS = """
from rewardkit import criteria
criteria.file_contains("answer", "42", weight=3.0)
criteria.file_exists("notes", weight=1.0)
"""
JUDGE = f"""
[judge]
judge = "openai/gpt-5.5"
files = ["/app/answer"]
[[criterion]]
name = "clear"
description = "Does the file say that {GOLD}?"
type = "likert"
points = 5
"""
TOTAL = """
[[reward]]
name = "reward"
aggregation = "weighted-mean"
weights = { correctness = 1.0, quality = 1.0 }
"""
VERIFIER = """
[verifier]
{more}
[verifier.env]
OPENAI_API_KEY = "${{JUDGE_KEY}}"
OPENAI_BASE_URL = "${{JUDGE_URL}}"
"""


def write(tasks: Tasks, name: str, tag: str, more: str = "") -> None:
    tasks.write(
        name,
        "echo 42 > answer",
        VERIFIER.format(more=more),
        **{
            "environment/Dockerfile": f"FROM {tag}\n",
            "tests/test.sh": "rewardkit /tests\n",
            "tests/correctness/checks.py": CHECKS,
            "tests/quality/judge.toml": JUDGE,
            "tests/reward.toml": TOTAL,
        },
    )


@pytest.mark.timeout(600)
def test_criteria_and_a_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, tag = Tasks(tmp_path / "set"), rewardkit_image.image()
    write(tasks, "shared", tag)
    write(
        tasks, "separate", tag,
        'environment_mode = "separate"\nnetwork_mode = "allowlist"\nallowed_hosts = ["judge.example"]',
    )  # fmt: skip
    for root in (tasks.root / "shared", tasks.root / "separate"):
        text = (root / "task.toml").read_text()
        (root / "task.toml").write_text('artifacts = ["/app/answer"]\n' + text)
    answer = {"clear": {"score": 4, "reasoning": f"It says that {GOLD}."}}
    monkeypatch.setenv("JUDGE_KEY", KEY)
    judged = Text(json.dumps(answer), tokens=Tokens(input=120, output=30))
    with ScriptedModel([judged], after_end=judged) as model:
        monkeypatch.setenv("JUDGE_URL", model.base_url)
        results = tasks.run("--pass-threshold=0.7")
        requests = list(model.requests)
    assert {name: title(result) for name, result in results.items()} == {
        "shared": "PASS",
        "separate": "PASS",
    }, tasks.output
    assert len(requests) == 2
    assert all(GOLD in json.dumps(request.body) for request in requests)
    for name, result in results.items():
        metrics = result["metrics"]
        assert (metrics["correctness"], metrics["quality"]) == (0.75, 0.75)
        assert (result["score"], metrics["reward"]) == (0.75, 0.75)
        assert (metrics["judge_input_tokens"], metrics["judge_output_tokens"]) == (120, 30)
        evidence = tasks.evidence[name]
        step = json.loads((evidence / "evaluation" / "reward.json").read_text())["steps"][0]
        assert step["judges"]["models"] == ["openai/gpt-5.5"]
        kept = evidence / "evaluation" / "private" / "verifier" / "main"
        assert json.loads((kept / "reward-details.json").read_text())["quality"]["kind"] == "llm"
        # What a judge is told and what it says holds gold: nowhere but in the private evidence.
        holding = [
            path for path in evidence.rglob("*") if path.is_file() and GOLD.encode() in path.read_bytes()
        ]
        assert {path.relative_to(evidence).parts[:2] for path in holding} == {("evaluation", "private")}
        assert not any(KEY.encode() in path.read_bytes() for path in evidence.rglob("*") if path.is_file())
    assert GOLD not in re.sub(r"\s+", " ", tasks.output)


def test_a_judge_without_a_key_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JUDGE_KEY", "JUDGE_URL"):
        monkeypatch.delenv(name, raising=False)
    tasks = Tasks(tmp_path / "set")
    write(tasks, "keyless", "ageval-attempt:base")
    assert tasks.run() == {}
    assert "JUDGE_KEY (verifier.env.OPENAI_API_KEY); JUDGE_URL (verifier.env.OPENAI_BASE_URL)" in tasks.output
