"""A new agent for every turn: what is the same, what is new, what is left."""

from __future__ import annotations

import asyncio

import pytest
from acp_kit import Log, agent_options, local_box, make_session

from ageval_executors.acp_oneshot import AcpOneshotExecutor
from pytest_ageval.errors import ExecutorError


def run(tmp_path, work, options, **more):
    async def main():
        async with local_box(tmp_path) as box:
            executor = AcpOneshotExecutor(make_session(box, Log(), options, api_key="k", **more))
            await executor.open()
            try:
                return await asyncio.wait_for(work(executor, box), 60)
            finally:
                await executor.close()

    return asyncio.run(main())


async def processes(box) -> str:
    return (
        await box.exec(["sh", "-c", "ps ax -o args | grep '[r]aw_agent.py' | grep -c oneshot"])
    ).stdout.strip()


def test_each_turn_has_a_process_and_a_directory_of_logs(tmp_path):
    options = agent_options("tools", "oneshot")

    async def work(executor, box):
        results = [await executor.invoke("hello") for _ in range(2)]
        return results, await processes(box)

    raw = tmp_path / "raw"
    results, left = run(tmp_path, work, options, raw_dir=raw)
    assert [result.ok for result in results] == [True, True], results
    assert left == "0"
    assert sorted(path.name for path in raw.iterdir()) == ["turn-1", "turn-2"]


def test_agent_that_does_not_start_fails_the_turn_and_not_the_session(tmp_path):
    async def work(executor, box):
        return [await executor.invoke("hello") for _ in range(2)]

    first, second = run(tmp_path, work, {"command": ["false"]})
    assert (first.ok, first.infrastructure, first.repeatable) == (False, True, True)
    assert first.error.startswith("acp_")
    assert second.error == first.error


def test_cancel_while_the_agent_starts(tmp_path):
    async def work(executor, box):
        turn = asyncio.create_task(executor.invoke("hello"))
        await asyncio.sleep(0.5)
        await executor.cancel()
        return await turn

    result = run(tmp_path, work, {"command": ["sleep", "60"]})
    assert (result.ok, result.status, result.infrastructure) == (False, "cancelled", False)


def test_what_every_turn_would_refuse_is_refused_at_once(tmp_path):
    async def work(executor, box):
        raise AssertionError("it was opened")

    with pytest.raises(ExecutorError) as caught:
        run(tmp_path, work, {"entry": "codex", "runtime": "/nowhere"}, api_key_name="K")
    assert caught.value.title == "acp_runtime_missing"
