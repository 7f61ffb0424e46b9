"""The real Codex, installed from npm, against a scripted model: a file appears in the workspace."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from ageval_boxes.local import LocalBox
from ageval_executors.acp import AcpExecutor
from pytest_ageval.box import WORKSPACE, BoxSpec
from pytest_ageval.executor import AgentResult, ModelSpec
from pytest_ageval.testing.scripted_model import HttpError, ScriptedModel, Shell, Text

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "executors"))
from acp_kit import Log, make_session

pytestmark = [
    pytest.mark.real_agent,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node") is None, reason="Codex is installed with npm"),
]


class PlainBox(LocalBox):
    """A local box that cannot show files of the host, as a remote one: the agent is installed inside."""

    expose = None  # type: ignore[assignment]


def turn(
    work: Path, model: ScriptedModel, log: Log, cls: type[LocalBox] = LocalBox, name: str = "gpt-5.5"
) -> AgentResult:
    async def run() -> AgentResult:
        box = cls(BoxSpec(kind="local", attempt_id="att-1", task_id="t", work_dir=work / "box"))
        try:
            await box.start()
            session = make_session(
                box,
                log,
                {"entry": "codex"},
                base_url=model.base_url,
                model=ModelSpec(id=name),
            )
            await AcpExecutor.prepare(session)
            executor = AcpExecutor(session)
            try:
                await executor.open()
                result = await executor.invoke("make a file")
            finally:
                await executor.close()
            await box.download(WORKSPACE, work / "workspace")
        finally:
            await box.stop()
        return result

    return asyncio.run(run())


@pytest.mark.parametrize("cls", [LocalBox, PlainBox])
def test_codex_works_in_the_workspace(tmp_path: Path, cls: type[LocalBox]) -> None:
    log = Log()
    with ScriptedModel([Shell("echo hello > made.txt"), Text("all done")]) as model:
        result = turn(tmp_path, model, log, cls)

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


def test_the_adapters_own_remarks_are_not_the_answer(tmp_path: Path) -> None:
    log = Log()
    with ScriptedModel([Text("all done")]) as model:
        result = turn(tmp_path, model, log, name="a-model-that-codex-does-not-know")

    assert result.text == "all done"
    assert [event for event in log.of_kind("opaque") if event.get("notice")]
