"""A worker costs a fraction of what starting an interpreter costs."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from worker_bench import Bench

from pytest_ageval.worker.client import WorkerPool

TICK = os.sysconf("SC_CLK_TCK")
COUNT = 20


def server_and_workers(pid: int) -> float:
    """Seconds of processor time of the fork server and of the workers that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICK


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_a_worker_costs_less_than_half_of_a_fresh_interpreter(bench: Bench) -> None:
    spec = bench.spec(
        """
        async def run(ctx):
            async with ctx.agent.session("solver") as session:
                ctx.publish_json("answer", await session.invoke("hello"))
        """
    )

    async def body(pool: WorkerPool) -> float:
        await (await pool.start(spec, bench.handler)).wait()
        assert pool.server_pid is not None
        before = server_and_workers(pool.server_pid)
        for _ in range(COUNT):
            outcome = await (await pool.start(spec, bench.handler)).wait()
            assert outcome.cpu_seconds is not None
        return (server_and_workers(pool.server_pid) - before) / COUNT

    worker = bench.with_pool(body)
    before = _children()
    for _ in range(5):
        subprocess.run([sys.executable, "-c", "import asyncio"], check=True)
    fresh = (_children() - before) / 5
    assert worker < fresh / 2, (worker, fresh)
