"""Frames: large ones, out of order, and refused ones; and the bounds of the streams."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from worker_bench import Bench

from pytest_ageval.worker import protocol
from pytest_ageval.worker.output import KEPT_LIMIT, OutputFile


def test_twenty_megabytes_go_there_and_back(bench: Bench) -> None:
    value = bench.value(
        """
        import asyncio

        async def evaluate(inputs):
            prompt = "ä" * 10_000_000
            reply = await inputs["agent"].session("judge").invoke(prompt)
            return {"same": reply["text"] == prompt, "text": reply["text"]}
        """
    )
    assert value["same"] is True
    assert len(value["text"].encode()) == 20_000_000


def test_a_prompt_that_is_too_large_is_refused_and_the_session_goes_on(bench: Bench) -> None:
    value = bench.value(
        """
        async def evaluate(inputs):
            session = inputs["agent"].session("judge")
            big = await session.invoke("a" * (64 * 1024 * 1024))
            small = await session.invoke("a")
            return [big["ok"], big["error"], small["text"]]
        """
    )
    assert value[0] is False
    assert value[1].startswith("frame_too_large: 6710")
    assert value[2] == "a"


def test_a_reply_or_a_result_that_is_too_large_is_refused(bench: Bench) -> None:
    async def handler(op: str, payload: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, "text": "a" * protocol.FRAME_LIMIT if op == "invoke" else ""}

    value = bench.value(
        """
        async def evaluate(inputs):
            reply = await inputs["agent"].session("judge").invoke("hello")
            return [reply["ok"], reply["error"]]
        """,
        handler=handler,
    )
    assert value[0] is False
    assert value[1].startswith("frame_too_large")
    outcome = bench.run("def evaluate(inputs): return 'a' * (64 * 1024 * 1024)", "evaluate")
    assert outcome.error is not None
    assert outcome.error["title"] == "result_too_large"


def test_replies_come_in_any_order(bench: Bench) -> None:
    first_may_go = asyncio.Event()

    async def handler(op: str, payload: dict[str, Any]) -> dict[str, Any]:
        if op == "invoke" and payload["prompt"] == "first":
            await first_may_go.wait()
        elif op == "close":
            first_may_go.set()
        return {"ok": True, "text": payload.get("prompt")}

    value = bench.value(
        """
        import asyncio

        async def evaluate(inputs):
            order = []
            async def ask(prompt):
                async with inputs["agent"].session("judge") as session:
                    await session.invoke(prompt)
                    order.append(prompt)
            await asyncio.gather(ask("first"), ask("second"))
            return order
        """,
        handler=handler,
    )
    assert value == ["second", "first"]


def test_an_invoke_that_is_given_up_is_cancelled_and_the_session_goes_on(bench: Bench) -> None:
    cancelled = asyncio.Event()
    seen = []

    async def handler(op: str, payload: dict[str, Any]) -> dict[str, Any]:
        seen.append(op)
        if op == "cancel":
            assert payload["request_id"] == "req_sess_judge_default_main_1_turn_1"
            cancelled.set()
        if op == "invoke" and payload["prompt"] == "slow":
            await cancelled.wait()
        return {"ok": True, "text": payload.get("prompt", "")}

    value = bench.value(
        """
        import asyncio

        async def evaluate(inputs):
            async with inputs["agent"].session("judge") as session:
                try:
                    await asyncio.wait_for(session.invoke("slow"), 0.1)
                except TimeoutError:
                    return (await session.invoke("quick"))["text"]
        """,
        handler=handler,
    )
    assert value == "quick"
    assert seen == ["open", "invoke", "cancel", "invoke", "close"]


@pytest.mark.parametrize(
    "frame", ["b'\\xff\\xff\\xff\\xff'", "b'\\x00\\x00\\x00\\x01x'", "b'\\x00\\x00\\x00\\x02[]'"]
)
def test_nonsense_on_the_socket_is_an_error_of_the_script(bench: Bench, frame: str) -> None:
    outcome = bench.run(
        f"import os\ndef evaluate(inputs):\n    os.write(3, {frame})\n    return 1\n", "evaluate"
    )
    assert outcome.status == "raised"
    assert outcome.error is not None
    assert outcome.error["title"] == "worker_protocol"


def test_a_flood_does_not_block_and_is_kept_bounded(bench: Bench) -> None:
    outcome = bench.run(
        """
        import sys

        def evaluate(inputs):
            print("the head", file=sys.stderr)
            for _ in range(500):
                sys.stderr.write("x" * 10_000)
            print("\\nthe tail", file=sys.stderr)
            print("\\udcff and \\ud800 are no characters")
            return 1
        """,
        "evaluate",
    )
    assert outcome.value == 1
    assert outcome.stderr_tail.startswith("the head\nxxx")
    assert outcome.stderr_tail.endswith("xxx\nthe tail\n")
    assert len(outcome.stderr_tail) < 20_000
    kept = bench.root / "box" / "stderr.txt"
    assert kept.stat().st_size < KEPT_LIMIT + 100
    assert "bytes left out" in kept.read_text()
    assert outcome.stdout_tail == "\\udcff and \\ud800 are no characters\n"


def test_a_file_that_grows_is_cut_while_it_is_written(tmp_path: Path) -> None:
    output = OutputFile(tmp_path / "out")
    descriptor = output.open()
    try:
        os.write(descriptor, b"head" + b"x" * 5_000_000)
        output.bound(1_000_000)
        assert output.size() < 1_000_100
        os.write(descriptor, b"after")
        output.bound(1_000_100)
        text = (tmp_path / "out").read_text()
    finally:
        os.close(descriptor)
    assert text.startswith("headxxx")
    assert text.endswith("xxxafter")
    assert "[... 4000004 bytes left out ...]" in text


def test_frames_keep_what_utf8_cannot() -> None:
    frame = {"text": "\ud83d and é", "number": float("inf")}
    data = protocol.encode(frame)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert protocol.decode(data[4:]) == frame
    with pytest.raises(ValueError, match="nested too deeply"):
        protocol.decode(b'{"a":' + b"[" * 200_000)
