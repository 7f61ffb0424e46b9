"""What holds for every worker, forked from the warm server or started as a new interpreter."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from worker_bench import Bench, gone_within, is_running

from pytest_ageval.errors import AgevalError
from pytest_ageval.worker import client, processes, view
from pytest_ageval.worker.client import WorkerOutcome, WorkerPool

STARTS = ("fork", "spawn")

both = pytest.mark.parametrize("start", STARTS)

#: What a process can know of itself.
SURVEY = """
import gc, locale, os, random, resource, signal, socket, sys, threading

def evaluate(inputs):
    os.umask(mask := os.umask(0))
    numbers = sorted(signal.valid_signals())
    return {
        "environ": sorted(os.environ),
        "in /proc": sorted(line.partition("=")[0] for line in open("/proc/self/environ").read().split("\\0")),
        "cwd": os.getcwd(),
        "argv": sys.argv,
        "path": sys.path,
        "main": sorted(vars(sys.modules["__main__"])),
        "flags": repr(sys.flags),
        "executable": sys.executable,
        "descriptors": {
            name: os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
            for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")
        },
        "inheritable": [os.get_inheritable(number) for number in range(4)],
        "leader": os.getpid() == os.getsid(0) == os.getpgid(0),
        "handlers": [repr(signal.getsignal(number)).partition(" at 0x")[0] for number in numbers],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "wakeup": signal.set_wakeup_fd(-1),
        "umask": mask,
        "limits": {
            name: resource.getrlimit(getattr(resource, name))
            for name in dir(resource) if name.startswith("RLIMIT_")
        },
        "threads": threading.active_count(),
        "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
        "timeout": socket.getdefaulttimeout(),
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() == 0],
        "streams": [
            [one.encoding, one.errors, one.line_buffering, one.write_through]
            for one in (sys.stdout, sys.stderr)
        ],
        "stdin": sys.stdin.read(),
        "locale": locale.setlocale(locale.LC_ALL),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
    }
"""


def run(bench: Bench, start: str, source: str | None, **more: Any) -> WorkerOutcome:
    return bench.run(source, "evaluate", start=start, **more)


def value(bench: Bench, start: str, source: str | None, **more: Any) -> Any:
    found = run(bench, start, source, **more)
    assert found.status == "returned", found
    return found.value


def test_the_two_starts_give_the_same_process(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "sk-not-for-tasks")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    old = os.umask(0o027)
    opened = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(opened, True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        found = {start: value(bench, start, SURVEY, env={"COLOUR": "blue"}) for start in STARTS}
    finally:
        os.umask(old)
        os.close(opened)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    one = found["fork"]
    # Frozen objects are those of the server.
    assert one["collector"].pop() is False
    assert found["spawn"]["collector"].pop() is True
    assert one == found["spawn"]
    assert one["umask"] == 0o027
    assert one["limits"]["RLIMIT_NOFILE"][0] == 512
    assert one["limits"]["RLIMIT_CORE"][0] == 0
    assert one["leader"]
    assert one["cwd"] == str(bench.workspace)
    assert one["argv"] == [str(bench.task / "evaluator.py")]
    assert set(one["descriptors"]) - {"0", "1", "2", "3"} <= {"4"}  # 4 is the listing's own
    assert one["inheritable"] == [True, True, True, False]
    assert one["blocked"] == []
    assert one["wakeup"] == -1
    assert (one["threads"], one["children"], one["stdin"]) == (1, "", "")
    assert "A_SECRET" not in one["environ"] + one["in /proc"]


@pytest.mark.skipif(view.unusable() is not None, reason="user namespaces cannot be used")
def test_contained_scripts_see_the_same(bench: Bench) -> None:
    bench.write("evaluation/gold.txt", "gold")
    source = """
        import os

        def evaluate(inputs):
            try:
                open("/etc/written-by-a-test", "w")
            except OSError as error:
                refused = error.strerror
            places = ("/", "/tmp", "/home", "/root", "/run", "/dev", "evaluation")
            found = {place: sorted(os.listdir(place)) for place in places if os.path.isdir(place)}
            own = ("Cap", "NoNewPrivs", "Seccomp")
            status = [line for line in open("/proc/self/status") if line.startswith(own)]
            return [refused, found, status, open("/proc/self/uid_map").read()]
        """
    one, other = (value(bench, start, source, contained=True) for start in STARTS)
    assert one == other
    assert one[0] == "Read-only file system"


@both
def test_what_one_script_changes_does_not_reach_the_next(bench: Bench, start: str) -> None:
    spoiler = bench.spec(
        """
        import builtins, json, logging, os, random, sys, tempfile, warnings
        import lib

        lib.STATE.append(1)
        json.dumps = None
        builtins.open = None
        sys.path.append("/spoiled")
        sys.setrecursionlimit(77)
        os.environ["SPOILED"] = "1"
        os.chdir("/")
        os.umask(0)
        logging.getLogger().addHandler(logging.NullHandler())
        logging.disable(logging.CRITICAL)
        random.seed(1)
        tempfile.tempdir = "/spoiled"
        warnings.simplefilter("ignore")
        os.nice(5)

        def evaluate(inputs):
            return 1
        """,
        "evaluate",
        start=start,
    )
    bench.write("lib.py", "STATE = []")
    other = Bench(bench.root / "other")
    other.write("lib.py", "STATE = ['of the other']")
    looker = other.spec(
        """
        import json, logging, os, random, sys, tempfile, warnings
        import lib

        def evaluate(inputs):
            os.umask(mask := os.umask(0))
            logging.getLogger().warning("heard")
            return {
                "state": lib.STATE,
                "json": json.dumps([1]),
                "read": len(open("/dev/null").read()),
                "path": [path for path in sys.path if "spoiled" in path],
                "limit": sys.getrecursionlimit() > 500,
                "environ": "SPOILED" in os.environ,
                "cwd": os.getcwd(),
                "mask": mask != 0,
                "logging": logging.getLogger().handlers == [],
                "temporary": tempfile.gettempdir() != "/spoiled",
                "filters": ("ignore", None, Warning, None, 0) not in warnings.filters,
                "nice": os.nice(0),
                "random": random.random(),
            }
        """,
        "evaluate",
        start=start,
    )

    async def three(pool: WorkerPool) -> list[Any]:
        await (await pool.start(spoiler, bench.handler)).wait()
        return [(await (await pool.start(looker, other.handler)).wait()) for _ in range(2)]

    outcomes = bench.with_pool(three)
    first, second = (outcome.value for outcome in outcomes)
    assert first.pop("random") != second.pop("random")
    assert first == second
    assert first == {
        "state": ["of the other"],
        "json": "[1]",
        "read": 0,
        "path": [],
        "limit": True,
        "environ": False,
        "cwd": str(other.workspace),
        "mask": True,
        "logging": True,
        "temporary": True,
        "filters": True,
        "nice": os.nice(0),
    }
    assert "heard" in outcomes[0].stderr_tail


def test_a_fault_is_told_the_same(bench: Bench) -> None:
    source = """
        import json, sys

        def deeper(x):
            try:
                return json.loads(x)
            except ValueError as error:
                raise KeyError("no such thing") from error

        def evaluate(inputs):
            print("before", flush=True)
            sys.stderr.write("words\\n")
            return deeper("{")
        """
    found = [run(bench, start, source) for start in STARTS]
    assert found[0].error == found[1].error
    assert found[0].error is not None
    assert "raise KeyError" in str(found[0].error["traceback"])
    assert [(one.status, one.exit_code, one.stdout_tail, one.stderr_tail) for one in found] == [
        ("raised", 1, "before\n", "words\n")
    ] * 2


@both
@pytest.mark.parametrize(
    ("ending", "status", "code", "number"),
    [
        ("return 1", "returned", 0, None),
        ("raise ValueError('x')", "raised", 1, None),
        ("sys.exit(3)", "exited", 3, None),
        ("os._exit(4)", "exited", 4, None),
        ("os.kill(os.getpid(), signal.SIGUSR1)", "killed", None, signal.SIGUSR1),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "killed", None, signal.SIGSEGV),
        ("os.kill(os.getpid(), signal.SIGINT)", "raised", 1, None),
    ],
)
def test_ends(bench: Bench, start: str, ending: str, status: str, code: int, number: int) -> None:
    source = f"import os, signal, sys, time\ndef evaluate(inputs):\n    {ending}\n    time.sleep(5)\n"
    found = run(bench, start, source)
    assert (found.status, found.exit_code, found.signal) == (status, code, number)


@both
def test_output_of_all_writers_stands_in_order(bench: Bench, start: str) -> None:
    source = """
        import os, subprocess, sys

        def evaluate(inputs):
            for number in range(20):
                print("python", number)
                os.write(1, f"bytes {number}\\n".encode())
                subprocess.run(["echo", "child", str(number)], check=True)
            sys.stdout.write("no newline at the end")
        """
    found = run(bench, start, source)
    lines = [f"{who} {number}" for number in range(20) for who in ("python", "bytes", "child")]
    assert found.stdout_tail.splitlines() == [*lines, "no newline at the end"]


@both
def test_much_output_is_bounded(bench: Bench, start: str) -> None:
    source = """
        def evaluate(inputs):
            for number in range(20):
                print("x" * 1_000_000)
            print("the end")
        """
    found = run(bench, start, source)
    assert len(found.stdout_tail) < 20_000
    assert found.stdout_tail.endswith("the end\n")
    assert (bench.root / "box" / "stdout.txt").stat().st_size < 1_100_000


@both
def test_processor_time_is_reported_with_that_of_children(bench: Bench, start: str) -> None:
    source = """
        import subprocess, sys, time

        BURN = "import time; end = time.process_time() + 0.3\\nwhile time.process_time() < end: pass"

        def evaluate(inputs):
            exec(BURN, {})
            subprocess.run([sys.executable, "-c", BURN], check=True)
        """
    found = run(bench, start, source)
    assert found.cpu_seconds is not None
    assert 0.6 <= found.cpu_seconds < 1.5


@both
def test_a_kill_reaches_grandchildren(bench: Bench, start: str) -> None:
    spec = bench.spec(
        """
        import os, subprocess, sys, time

        HIDDEN = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(300)"

        def run(ctx):
            plain = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 300 & wait"])
            argv = [sys.executable, "-c", HIDDEN]
            hidden = subprocess.Popen(argv, env={}, stdout=subprocess.PIPE, text=True)
            found = [os.getpid(), plain.pid, int(hidden.stdout.readline())]
            open("pids.tmp", "w").write(" ".join(map(str, found)))
            os.rename("pids.tmp", "pids")
            time.sleep(300)
        """,
        start=start,
    )

    async def body(pool: WorkerPool) -> list[int]:
        worker = await pool.start(spec, bench.handler)
        pids = [int(word) for word in (await bench.until_written("pids", worker)).split()]
        assert all(map(is_running, pids))
        assert pids[0] == worker.pid
        began = time.monotonic()
        await worker.kill(grace=0.3)
        assert time.monotonic() - began < 3
        assert (await worker.wait()).status == "killed"
        assert not any(map(is_running, pids))
        return pids

    bench.with_pool(body)


@both
def test_fifty_at_once(bench: Bench, start: str) -> None:
    benches = [Bench(bench.root / str(number)) for number in range(50)]
    source = """
        import os

        async def run(ctx):
            print(ctx.params["number"])
            async with ctx.agent.session("solver") as session:
                answer = (await session.invoke(str(ctx.params["number"])))["text"]
            ctx.publish_json("answer", [answer, os.getcwd(), os.environ["COLOUR"]])
        """

    async def one(pool: WorkerPool, number: int) -> None:
        mine = benches[number]
        spec = mine.spec(source, params={"number": number}, env={"COLOUR": f"c{number}"}, start=start)
        worker = await pool.start(spec, mine.handler)
        outcome = await worker.wait()
        assert (outcome.status, outcome.stdout_tail) == ("returned", f"{number}\n"), outcome
        answer = json.loads((mine.artifacts / "answer.json").read_text())
        assert answer == [str(number), str(mine.workspace), f"c{number}"]

    async def body(pool: WorkerPool) -> None:
        await asyncio.gather(*(one(pool, number) for number in range(50)))

    bench.with_pool(body)


@both
def test_closing_ends_the_server_and_its_workers(bench: Bench, start: str) -> None:
    spec = bench.spec("import time\ndef run(ctx): time.sleep(300)", start=start)

    async def body(pool: WorkerPool) -> list[int]:
        worker = await pool.start(spec, bench.handler)
        assert pool.server_pid is not None
        return [worker.pid, pool.server_pid]

    assert all(gone_within(pid, 2) for pid in bench.with_pool(body))


# -- what happens when forking does not work ----------------------------------------------------


def test_without_a_warm_server_scripts_are_spawned(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot even load what it should share: each start says why, and after three none is tried."""
    monkeypatch.setattr(client, "_BOOT", client._BOOT.replace("main(*", "import child_of_nobody\nmain(*"))
    original = client._command
    monkeypatch.setattr(client, "_command", lambda control, start: original_of(start, original, control))
    servers: list[str] = []

    def original_of(start: client.Start, command: Any, control: int) -> Any:
        servers.append(start)
        words = command(control, start)
        return [word.replace("import child_of_nobody\n", "") for word in words] if start == "spawn" else words

    spec = bench.spec("def evaluate(inputs): return 5", "evaluate")

    async def body(pool: WorkerPool) -> list[str | None]:
        faults = []
        for _ in range(5):
            worker = await pool.start(spec, bench.handler)
            assert (await worker.wait()).value == 5
            faults.append(worker.fault)
        return faults

    faults = bench.with_pool(body)
    assert all("No module named 'child_of_nobody'" in str(fault) for fault in faults[:3])
    assert faults[3:] == ["3 servers in a row could not fork a worker"] * 2
    assert servers == ["fork", "spawn", "fork", "fork"]


def test_a_server_that_does_not_answer_is_left_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers go on when it does; new ones are spawned, and then forked by a new server."""
    monkeypatch.setitem(client._SILENT_SECONDS, "fork", 2.0)
    waiting = bench.spec(
        """
        import os, time

        def run(ctx):
            open("here", "w").write("1")
            while not os.path.exists("go"):
                time.sleep(0.01)
        """
    )
    other = Bench(bench.root / "other")
    quick = other.spec("def evaluate(inputs): return 5", "evaluate")

    async def body(pool: WorkerPool) -> None:
        first = await pool.start(waiting, bench.handler)
        await bench.until_written("here")
        silent = pool.server_pid
        assert silent is not None
        os.kill(silent, signal.SIGSTOP)
        try:
            worker = await pool.start(quick, other.handler)
            assert (await worker.wait()).value == 5
            assert "did not answer" in str(worker.fault)
            again = await pool.start(quick, other.handler)
            assert (await again.wait()).value == 5
            assert again.fault is None
            assert pool.server_pid != silent
        finally:
            os.kill(silent, signal.SIGCONT)
        (bench.workspace / "go").touch()
        assert (await first.wait()).status == "returned"
        # What it started late found nobody, and ended.
        deadline = time.monotonic() + 5
        while processes.children(silent):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)

    bench.with_pool(body)


def test_no_server_at_all_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_command", lambda control, start: ["/bin/false"])
    with pytest.raises(AgevalError, match="worker_start_failed"):
        bench.run("def evaluate(inputs): return 5", "evaluate")


def test_killed_in_the_middle_of_many_starts(bench: Bench) -> None:
    """The server dies again and again while scripts start: none is run twice, each one ends."""
    benches = [Bench(bench.root / str(number)) for number in range(12)]
    source = "def run(ctx):\n    open('ran', 'a').write('x')\n"

    async def one(pool: WorkerPool, number: int) -> str:
        spec = benches[number].spec(source)
        worker = await pool.start(spec, benches[number].handler)
        return (await worker.wait()).status

    async def body(pool: WorkerPool) -> list[str]:
        work = asyncio.gather(*(one(pool, number) for number in range(12)))
        for _ in range(2):
            await asyncio.sleep(0.05)
            if (server := pool._servers.get("fork")) is not None and not server.lost:
                os.kill(server.pid, signal.SIGKILL)
        return await work

    statuses = bench.with_pool(body)
    assert set(statuses) <= {"returned", "lost"}
    for mine, status in zip(benches, statuses, strict=True):
        ran = Path(mine.workspace, "ran")
        text = ran.read_text() if ran.exists() else ""
        assert text in (("x",) if status == "returned" else ("", "x"))
