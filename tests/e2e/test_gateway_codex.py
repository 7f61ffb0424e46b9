"""The real Codex behind the model gateway: stopped by a budget, and answered from a recording."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ageval_boxes.local import LocalBox
from ageval_executors.acp import AcpExecutor
from pytest_ageval.box import BoxSpec
from pytest_ageval.executor import AgentResult, ModelSpec
from pytest_ageval.gateway.link import Link
from pytest_ageval.gateway.routes import Route, Upstream
from pytest_ageval.gateway.server import Gateway
from pytest_ageval.testing.scripted_model import ScriptedModel, Shell, Text, Write

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.docker_engine import needs_docker

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "executors"))
from acp_kit import Log, make_session

pytestmark = [
    pytest.mark.real_agent,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("npm") is None, reason="codex is installed with npm"),
]

QUICKSTART = Path(__file__).parents[2] / "datasets" / "quickstart"
SOLUTION = QUICKSTART / "tasks" / "fix-parser" / "solution" / "ini2json.py"
SCRIPT = [
    Shell("python3 -m unittest; ls -la; date; mktemp"),
    Write("ini2json.py", SOLUTION.read_text(encoding="utf-8")),
    Text("ini2json.py does all that FORMAT.md says now."),
]
KEY = "sk-real-0123456789abcdef"


def test_a_budget_ends_the_turn_at_once(tmp_path: Path) -> None:
    reasons: list[str | None] = [None]

    async def turn(model: ScriptedModel) -> tuple[AgentResult, Route, float]:
        gateway = Gateway()
        await gateway.start()
        box = LocalBox(BoxSpec(kind="local", attempt_id="att-1", task_id="t", work_dir=tmp_path / "box"))
        try:
            await box.start()
            refuse = lambda: reasons.pop(0) if reasons else "max_cost"  # noqa: E731
            route = Route(Upstream.of(model.base_url, KEY), refuse=refuse)
            gateway.add(route)
            where = await box.forward(gateway.port)
            assert where is not None
            model_spec = ModelSpec(id="gpt-5.5")
            base = route.base_url(where)
            session = make_session(box, Log(), {"entry": "codex"}, base_url=base, model=model_spec)
            await AcpExecutor.prepare(session)
            executor = AcpExecutor(session)
            link = Link(route=route)
            link.begin()
            try:
                await executor.open()
                started = time.monotonic()
                result = await link.judge(await executor.invoke("make a file"))
                took = time.monotonic() - started
            finally:
                await executor.close()
        finally:
            await box.stop()
            await gateway.close()
        return result, route, took

    with ScriptedModel([Shell("true"), Text("not reached")]) as model:
        result, route, took = asyncio.run(turn(model))
        assert len(model.requests) == 1
    assert (result.ok, result.status, result.infrastructure) == (False, "limit", False)
    assert "max_cost" in str(result.error)
    # It asks again as often as it is told to after a status that it does not know, which takes no time.
    outcomes = [call.outcome for call in route.calls]
    assert outcomes[:2] == ["ok", "refused"]
    assert len(outcomes) <= 4
    assert took < 30


def run(directory: Path, dataset: Path, *arguments: str, key: str | None = None) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    if key is not None:
        environment["OPENAI_API_KEY"] = key
    command = [sys.executable, "-m", "pytest", str(dataset), "-k", "fix-parser", "-p", "no:cacheprovider"]
    command += ["--agent", "codex", "--model", "gpt-5.5", "--ageval-dir", str(directory / "evidence")]
    done = subprocess.run(
        [*command, *arguments], cwd=directory, capture_output=True, text=True, timeout=600, env=environment
    )
    return done.returncode, done.stdout + done.stderr


def test_a_recorded_run_is_repeated_without_key_and_model(tmp_path: Path) -> None:
    tape, dataset = tmp_path / "tape", tmp_path / "quickstart"
    shutil.copytree(QUICKSTART, dataset)
    with ScriptedModel(SCRIPT) as model:
        url = model.base_url
        code, output = run(tmp_path, dataset, "--base-url", url, "--record", str(tape), key=KEY)
        assert code == 0, output
        assert {request.api_key for request in model.requests} == {KEY}
    recorded = {path: path.read_bytes() for path in tape.rglob("*.json")}
    assert len(recorded) == 3
    assert not any(KEY.encode() in text for text in recorded.values())

    # Nothing of the first run but the recording: no model, no key, another directory.
    code, output = run(tmp_path, dataset, "--base-url", url, "--replay", str(tape))
    assert code == 0, output
    results = [json.loads(path.read_text()) for path in (tmp_path / "evidence").rglob("result.json")]
    assert [row["status"] for row in results] == ["PASS", "PASS"]
    assert sorted("replayed" in row["flags"] for row in results) == [False, True]
    assert len({json.dumps(row["usage"]) for row in results}) == 1

    prompt = next((dataset / "tasks" / "fix-parser" / "prompts").iterdir())
    prompt.write_text(prompt.read_text().replace("several faults", "a dozen faults"))
    code, output = run(tmp_path, dataset, "--base-url", url, "--replay", str(tape))
    assert code == 1, output
    assert "1 error" in output
    assert "replay_miss" in output
    lines = output.splitlines()
    assert any(line.lstrip().startswith("-") and "several faults" in line for line in lines)
    assert any(line.lstrip().startswith("+") and "a dozen faults" in line for line in lines)
    assert {path: path.read_bytes() for path in tape.rglob("*.json")} == recorded


@pytest.mark.docker
@needs_docker
def test_in_a_container_that_reaches_nothing_but_the_gateway(tmp_path: Path) -> None:
    """The model is on this machine's loopback, which a container does not see."""
    look = "python3 -m unittest; env; cat /proc/*/environ | tr '\\0' '\\n'"
    with ScriptedModel([Shell(look), *SCRIPT[1:]]) as model:
        box = ("--box", "docker", "--box-option", "egress=llm")
        code, output = run(tmp_path, QUICKSTART, "--base-url", model.base_url, *box, key=KEY)
        assert code == 0, output
        assert {request.api_key for request in model.requests} == {KEY}
        assert "OPENAI_API_KEY=sk-ageval-" in str(model.requests[-1].results)
        assert KEY not in str([request.results for request in model.requests])
    (attempt,) = (tmp_path / "evidence" / "runs").iterdir()
    assert len((attempt / "agent" / "model-calls.jsonl").read_text().splitlines()) == 3
    found = json.loads((attempt / "result.json").read_text())["usage"]
    assert (found["prompt_tokens"], found["partial"]) == (3000, False)
    assert KEY.encode() not in b"".join(path.read_bytes() for path in attempt.rglob("*") if path.is_file())
