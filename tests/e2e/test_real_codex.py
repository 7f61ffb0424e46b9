"""The real Codex, installed from npm, against a scripted model: a file appears in the workspace."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest
from ageval_executors.acp import AcpExecutor

from pytest_ageval.box import WORKSPACE
from pytest_ageval.executor import AgentResult, ModelSpec
from pytest_ageval.testing.scripted_model import HttpError, ScriptedModel, Shell, Text

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "executors"))
from acp_kit import Log, local_box, make_session

pytestmark = [
    pytest.mark.real_agent,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node") is None, reason="Codex is installed with npm"),
]


def turn(work: Path, model: ScriptedModel, log: Log, prompt: str = "make a file") -> AgentResult:
    async def run() -> AgentResult:
        async with local_box(work, "auto") as box:
            session = make_session(
                box,
                log,
                {"entry": "codex"},
                base_url=model.base_url,
                model=ModelSpec(id="gpt-5.5"),
            )
            await AcpExecutor.prepare(session)
            executor = AcpExecutor(session)
            try:
                await executor.open()
                result = await executor.invoke(prompt)
            finally:
                await executor.close()
            await box.download(WORKSPACE, work / "workspace")
            return result

    return asyncio.run(run())


def test_codex_works_in_the_workspace(tmp_path: Path) -> None:
    log = Log()
    with ScriptedModel([Shell("echo hello > made.txt"), Text("all done")]) as model:
        result = turn(tmp_path, model, log)

    assert result.ok, result.error
    assert result.text == "all done"
    assert (tmp_path / "workspace" / "made.txt").read_text() == "hello\n"
    assert log.of_kind("tool")
    assert not result.repeatable
    assert result.usage.unavailable == "not_reported"
    assert result.metadata["usage_raw"]["usage_update"]["used"] > 0


def test_a_provider_that_fails_is_not_an_answer(tmp_path: Path) -> None:
    log = Log()
    with ScriptedModel([HttpError(400)] * 10) as model:
        result = turn(tmp_path, model, log)

    assert not result.ok
    assert result.infrastructure
    assert not result.transient
    assert "scripted error" in str(result.error)
