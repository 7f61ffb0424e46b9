"""Nothing that a script starts outlives it, and nothing else is touched."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from worker_bench import Bench, gone_within, is_running

from pytest_ageval.errors import AgevalError
from pytest_ageval.worker import processes
from pytest_ageval.worker.client import WorkerPool

#: Starts a process in a session of its own, by way of a parent that ends at once, and writes its pid.
ESCAPE = """
import os, subprocess, sys, time

def escape(environment=None, program="import time; time.sleep(300)"):
    code = f'''
import os, subprocess, sys
os.setsid()
child = subprocess.Popen([sys.executable, "-c", {program!r}], start_new_session=True)
open("escaped.tmp", "w").write(str(child.pid))
os.rename("escaped.tmp", "escaped")
'''
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    return int(open("escaped").read())
"""


@pytest.mark.parametrize("environment", ["None", "{}"])
def test_a_daemon_is_ended_and_reported(bench: Bench, environment: str) -> None:
    """Its stdout is ours, its session is not, its parent has gone; even its environment may be empty."""
    started = time.monotonic()
    outcome = bench.run(
        f"{ESCAPE}\ndef evaluate(inputs):\n    return {{'pid': escape({environment})}}\n", "evaluate"
    )
    assert outcome.status == "returned"
    assert time.monotonic() - started < 5
    assert len(outcome.leftovers) == 1
    assert outcome.leftovers[0].startswith(f"{outcome.value['pid']} ")
    assert "time.sleep(300)" in outcome.leftovers[0]
    assert not is_running(outcome.value["pid"])


def test_a_forked_daemon_is_ended_too(bench: Bench) -> None:
    """It never started a program, so its environment in /proc is the fork server's."""
    outcome = bench.run(
        """
        import os, time

        def evaluate(inputs):
            read, write = os.pipe()
            if (middle := os.fork()) == 0:
                os.setsid()
                if (pid := os.fork()) == 0:
                    time.sleep(300)
                os.write(write, str(pid).encode())
                os._exit(0)
            os.waitpid(middle, 0)
            return int(os.read(read, 100))
        """,
        "evaluate",
    )
    assert outcome.status == "returned"
    assert [text.split()[0] for text in outcome.leftovers] == [str(outcome.value)]
    assert not is_running(outcome.value)


def test_wait_does_not_wait_for_who_holds_the_streams(bench: Bench) -> None:
    started = time.monotonic()
    outcome = bench.run(
        """
        import subprocess

        def evaluate(inputs):
            subprocess.Popen(["sh", "-c", "trap '' TERM; echo started; sleep 300"], start_new_session=True)
            return {"status": "PASS"}
        """,
        "evaluate",
    )
    assert outcome.value == {"status": "PASS"}
    assert time.monotonic() - started < 3


def test_kill_ends_a_grandchild_that_ignores_sigterm(bench: Bench) -> None:
    spec = bench.spec(
        """
        import os, subprocess, time

        def run(ctx):
            loop = "trap '' TERM; while :; do date >> tick; sleep .05; done"
            subprocess.Popen(["bash", "-c", loop])
            os.execvp("sleep", ["sleep", "999"])
        """
    )

    async def body(pool: WorkerPool) -> None:
        worker = await pool.start(spec, bench.handler)
        await bench.until_written("tick")
        started = time.monotonic()
        leftovers = await worker.kill(grace=0.5)
        assert time.monotonic() - started < 2
        outcome = await worker.wait()
        assert (outcome.status, outcome.signal) == ("killed", signal.SIGTERM)
        assert outcome.error is not None
        assert outcome.error["title"] == "worker_killed"
        assert any("bash" in text for text in leftovers)
        size = (bench.workspace / "tick").stat().st_size
        await asyncio.sleep(0.3)
        assert (bench.workspace / "tick").stat().st_size == size

    bench.with_pool(body)


def test_kill_gives_a_script_the_grace_to_end_by_itself(bench: Bench) -> None:
    spec = bench.spec(
        """
        import signal, sys, time

        def run(ctx):
            def end(*args):
                open("ended", "w").write("in order")
                sys.exit(7)
            signal.signal(signal.SIGTERM, end)
            open("ready", "w").write("yes")
            time.sleep(300)
        """
    )

    async def body(pool: WorkerPool) -> None:
        worker = await pool.start(spec, bench.handler)
        await bench.until_written("ready")
        started = time.monotonic()
        assert await worker.kill(grace=20) == []
        assert time.monotonic() - started < 5
        outcome = await worker.wait()
        assert (outcome.status, outcome.exit_code) == ("killed", 7)
        assert (bench.workspace / "ended").read_text() == "in order"

    bench.with_pool(body)


def test_kill_ends_what_has_left_the_group_of_a_script_that_ignores_sigterm(bench: Bench) -> None:
    spec = bench.spec(
        ESCAPE
        + """
def run(ctx):
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    escape({}, "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(300)")
    open("ready", "w").write("yes")
    time.sleep(300)
"""
    )

    async def body(pool: WorkerPool) -> None:
        worker = await pool.start(spec, bench.handler)
        await bench.until_written("ready")
        escaped = int((bench.workspace / "escaped").read_text())
        assert is_running(escaped)
        leftovers = await worker.kill(grace=0.2)
        assert (await worker.wait()).signal == signal.SIGKILL
        assert not is_running(escaped)
        assert [text.split()[0] for text in leftovers] == [str(escaped)]

    bench.with_pool(body)


def test_nothing_else_is_touched(bench: Bench) -> None:
    """Neither another worker of the same attempt, nor a process with the same variables."""
    sleeper = subprocess.Popen(["sleep", "300"], env={**os.environ, "AGEVAL_ATTEMPT_ID": "attempt_1"})
    other = Bench(bench.root / "other")
    waiting = other.spec("import time\ndef run(ctx):\n    time.sleep(300)\n")
    ending = bench.spec(f"{ESCAPE}\ndef run(ctx):\n    escape()\n")

    async def body(pool: WorkerPool) -> None:
        first = await pool.start(waiting, other.handler)
        second = await pool.start(ending, bench.handler)
        assert len((await second.wait()).leftovers) == 1
        assert is_running(first.pid)
        await second.kill()
        assert is_running(first.pid)
        assert sleeper.poll() is None

    try:
        bench.with_pool(body)
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_after_its_result_a_script_has_a_few_seconds_to_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_ageval.worker.running.SETTLE_SECONDS", 0.3)
    started = time.monotonic()
    outcome = bench.run(
        """
        import threading, time

        def evaluate(inputs):
            threading.Thread(target=time.sleep, args=(300,)).start()
            return {"status": "PASS"}
        """,
        "evaluate",
    )
    assert (outcome.status, outcome.value) == ("returned", {"status": "PASS"})
    assert time.monotonic() - started < 10


def test_the_end_of_the_process_does_not_change_a_result(bench: Bench) -> None:
    outcome = bench.run(
        "import atexit, os\ndef evaluate(inputs):\n    atexit.register(os._exit, 9)\n    return {}\n",
        "evaluate",
    )
    assert (outcome.status, outcome.value, outcome.exit_code) == ("returned", {}, 9)


def test_an_error_of_the_handler_ends_the_worker_and_comes_out_of_wait(bench: Bench) -> None:
    async def refuse(op: str, payload: dict[str, Any]) -> dict[str, Any]:
        raise AgevalError("session_alignment_mismatch", "the log says otherwise")

    source = """
        async def run(ctx):
            try:
                await ctx.agent.session("solver").invoke("hello")
            finally:
                open("went_on", "w").write("yes")
        """
    with pytest.raises(AgevalError, match="the log says otherwise"):
        bench.run(source, handler=refuse)
    assert not (bench.workspace / "went_on").exists()


def test_a_reply_that_is_not_json_is_the_parents_error(bench: Bench) -> None:
    async def wrong(op: str, payload: dict[str, Any]) -> dict[str, Any]:
        return {"ok": {1, 2}}

    with pytest.raises(TypeError, match="set"):
        bench.run("async def run(ctx):\n    await ctx.agent.session('s').invoke('hello')\n", handler=wrong)


def test_a_handler_is_cancelled_when_its_script_ends(bench: Bench) -> None:
    cancelled = []

    async def slow(op: str, payload: dict[str, Any]) -> dict[str, Any]:
        if op != "invoke":
            return {"ok": True}
        try:
            (bench.workspace / "asked").write_text("yes")
            await asyncio.sleep(300)
        except asyncio.CancelledError:
            cancelled.append(payload["prompt"])
            raise
        raise AssertionError

    outcome = bench.run(
        """
        import asyncio, os

        async def run(ctx):
            asyncio.create_task(ctx.agent.session("s").invoke("hello"))
            while not os.path.exists("asked"):
                await asyncio.sleep(0.01)
            os._exit(4)
        """,
        handler=slow,
    )
    assert (outcome.status, outcome.exit_code) == ("exited", 4)
    assert cancelled == ["hello"]


# -- the fork server and the parent --------------------------------------------------------------


def test_when_the_fork_server_dies_its_workers_are_lost_and_the_next_one_runs(bench: Bench) -> None:
    lost = bench.spec(f"{ESCAPE}\ndef run(ctx):\n    escape()\n    time.sleep(300)\n")
    next_one = Bench(bench.root / "next")

    async def body(pool: WorkerPool) -> None:
        worker = await pool.start(lost, bench.handler)
        escaped = int(await bench.until_written("escaped"))
        assert pool.server_pid is not None
        os.kill(pool.server_pid, signal.SIGKILL)
        outcome = await worker.wait()
        assert outcome.status == "lost"
        assert outcome.error is not None
        assert outcome.error["title"] == "worker_lost"
        assert not is_running(worker.pid)
        assert not is_running(escaped)
        spec = next_one.spec("def evaluate(inputs): return {'status': 'PASS'}", "evaluate")
        assert (await (await pool.start(spec, next_one.handler)).wait()).value == {"status": "PASS"}

    bench.with_pool(body)


def test_a_start_survives_the_death_of_the_fork_server(bench: Bench) -> None:
    spec = bench.spec("def evaluate(inputs): return 1", "evaluate")

    async def body(pool: WorkerPool) -> None:
        await (await pool.start(spec, bench.handler)).wait()
        assert pool.server_pid is not None
        os.kill(pool.server_pid, signal.SIGKILL)
        # Not yet noticed: the next start finds out.
        assert (await (await pool.start(spec, bench.handler)).wait()).value == 1

    bench.with_pool(body)


def test_closing_the_pool_ends_everything(bench: Bench) -> None:
    spec = bench.spec(f"{ESCAPE}\ndef run(ctx):\n    escape()\n    time.sleep(300)\n")

    async def body(pool: WorkerPool) -> None:
        worker = await pool.start(spec, bench.handler)
        escaped = int(await bench.until_written("escaped"))
        await pool.close()
        assert (await worker.wait()).status == "killed"
        assert not is_running(worker.pid)
        assert not is_running(escaped)
        with pytest.raises(AgevalError, match="closed"):
            await pool.start(spec, bench.handler)

    bench.with_pool(body)


def test_a_worker_cannot_outlive_a_killed_parent(bench: Bench) -> None:
    bench.spec(f"{ESCAPE}\ndef run(ctx):\n    escape()\n    time.sleep(300)\n")
    parent = textwrap.dedent(
        f"""
        import asyncio, sys
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from worker_bench import Bench
        from pytest_ageval.worker.client import WorkerPool

        async def main():
            bench = Bench(Path({str(bench.root)!r}))
            pool = WorkerPool()
            worker = await pool.start(bench.spec(None), bench.handler)
            await bench.until_written("escaped")
            print(worker.pid, pool.server_pid, flush=True)
            await worker.wait()

        asyncio.run(main())
        """
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        worker, server = map(int, process.stdout.readline().split())
        escaped = int((bench.workspace / "escaped").read_text())
        assert all(map(is_running, [worker, server, escaped]))
        process.kill()
    assert all(gone_within(pid, 2) for pid in (worker, server, escaped))


def test_fifty_at_once(bench: Bench) -> None:
    benches = [Bench(bench.root / str(number)) for number in range(50)]
    source = """
        async def run(ctx):
            async with ctx.agent.session("solver") as session:
                ctx.publish_json("answer", await session.invoke(str(ctx.params["number"])))
        """

    async def one(pool: WorkerPool, number: int) -> str:
        spec = benches[number].spec(source, params={"number": number})
        worker = await pool.start(spec, benches[number].handler)
        outcome = await worker.wait()
        assert outcome.status == "returned", outcome
        return (benches[number].artifacts / "answer.json").read_text()

    async def body(pool: WorkerPool) -> list[str]:
        return await asyncio.gather(*(one(pool, number) for number in range(50)))

    texts = bench.with_pool(body)
    assert all(f'"text":"{number}"' in text for number, text in enumerate(texts))


def test_signal_handlers_of_the_parent_stay(bench: Bench) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)]
    bench.value("def evaluate(inputs): return 1")
    assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)]


# -- processes.py --------------------------------------------------------------------------------


def test_kill_tree_ends_roots_what_is_below_them_and_what_carries_the_cookie() -> None:
    environment = {**os.environ, "A_COOKIE": "of this test"}
    marked = subprocess.Popen(["sleep", "300"], env=environment, start_new_session=True)
    stubborn = subprocess.Popen(["bash", "-c", "sleep 300 & trap '' TERM; echo $!; wait; sleep 9"], stdout=-1)
    bystander = subprocess.Popen(["sleep", "300"])
    try:
        assert stubborn.stdout is not None
        below = int(stubborn.stdout.readline())
        while not (found := processes.find_by_cookie("A_COOKIE", "of this test")):
            time.sleep(0.01)  # it is just starting its program
        assert found == [marked.pid]
        assert below in processes.descendants(os.getpid())
        killed = processes.kill_tree([stubborn.pid], cookie=("A_COOKIE", "of this test"), grace=1)
        assert str(stubborn.pid) in [text.split()[0] for text in killed]
        assert str(below) not in [text.split()[0] for text in killed]
        assert not any(map(is_running, [marked.pid, stubborn.pid, below]))
        assert bystander.poll() is None
    finally:
        for process in (marked, stubborn, bystander):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def test_a_pid_that_somebody_else_has_by_now_is_not_signalled() -> None:
    with subprocess.Popen(["sleep", "300"]) as process:
        found = processes.find(process.pid)
        assert found is not None
        processes.send(processes.Process(found.pid, found.start - 1), signal.SIGKILL)
        assert process.poll() is None
        processes.send(found, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert processes.find(process.pid) is None


def test_children_without_the_kernels_list(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "300"]) as process:
        assert process.pid in processes.children(os.getpid())
        read = processes._read
        monkeypatch.setattr(processes, "_read", lambda path: b"" if "children" in path else read(path))
        monkeypatch.setattr(processes, "_has_children_file", lambda: False)
        assert process.pid in processes.children(os.getpid())
        process.kill()
