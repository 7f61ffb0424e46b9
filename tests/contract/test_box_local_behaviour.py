"""What the local box promises beyond the contract: services, limits, leftovers, warnings."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ageval_boxes import _bubblewrap
from ageval_boxes.local import LocalBox, default_work_parent
from pytest_ageval.box import ARTIFACTS, WORKSPACE, BoxSpec
from pytest_ageval.errors import BoxError

WORKING = ["none"] if _bubblewrap.unusable() else ["bwrap", "none"]


@pytest.fixture(params=WORKING)
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make_spec(work: Path, isolation: str = "none", **more: Any) -> BoxSpec:
    options = {"isolation": isolation, **more.pop("options", {})}
    return BoxSpec("local", "a1", "t", work, options=options, **more)


def drive(box: LocalBox, body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            await box.start()
            await body()
        finally:
            await box.stop()

    asyncio.run(main())


def test_a_service_outlives_its_command_and_its_agent_when_kept(tmp_path: Path, isolation: str) -> None:
    """`background: keep`: what has detached itself is still there for the evaluator."""
    box = LocalBox(make_spec(tmp_path / "w", isolation, options={"background": "keep"}))

    async def body() -> None:
        serve = "nohup sh -c 'while :; do date +%N > beat; sleep 0.1; done' > /dev/null 2>&1 &"
        agent = await box.attach_stdio(["sh", "-c", f"({serve}); sleep 1000 & cat"])
        await asyncio.sleep(0.5)
        await agent.terminate(grace=0.2)
        killed = await box.quiesce()
        assert not any("beat" in name for name in killed)
        assert any("beat" in note for note in box.warnings)
        before = (await box.exec(["cat", "beat"])).stdout
        await asyncio.sleep(0.4)
        assert (await box.exec(["cat", "beat"])).stdout != before

    drive(box, body)


def test_quiesce_names_and_ends_attached_processes(tmp_path: Path, isolation: str) -> None:
    for background in ("kill", "keep"):
        box = LocalBox(make_spec(tmp_path / background, isolation, options={"background": background}))

        async def body(box: LocalBox = box) -> None:
            agent = await box.attach_stdio(["sh", "-c", "sleep 1000 & echo up; cat"])
            assert await agent.read() == b"up\n"
            killed = await box.quiesce()
            assert any("sleep 1000" in name for name in killed), killed
            assert await agent.wait(5) is not None
            assert await agent.read() == b""

        drive(box, body)


def test_a_missing_program_to_attach_to_says_so(tmp_path: Path, isolation: str) -> None:
    box = LocalBox(make_spec(tmp_path / "w", isolation))

    async def body() -> None:
        agent = await box.attach_stdio(["no-such-agent"])
        assert await agent.wait(5) == 127
        complaint = b""
        while data := await agent.read_stderr():
            complaint += data
        assert b"no-such-agent" in complaint

    drive(box, body)


def test_a_script_without_interpreter_line_runs(tmp_path: Path, isolation: str) -> None:
    box = LocalBox(make_spec(tmp_path / "w", isolation))

    async def body() -> None:
        await box.exec(["sh", "-c", "echo 'echo plain $1' > s; chmod +x s"])
        assert (await box.exec(["./s", "x y"])).stdout == "plain x y\n"

    drive(box, body)


def test_python_of_the_box_is_ours(tmp_path: Path, isolation: str) -> None:
    box = LocalBox(make_spec(tmp_path / "w", isolation))

    async def body() -> None:
        done = await box.exec([*box.python_command(), "-c", "import sys; print(sys.version)"])
        assert done.stdout.strip() == sys.version

    drive(box, body)


def test_downloads_are_bounded(tmp_path: Path, isolation: str) -> None:
    box = LocalBox(make_spec(tmp_path / "w", isolation))
    box.download_bytes, box.download_files = 1_000_000, 50

    async def body() -> None:
        await box.exec(["sh", "-c", "mkdir many big; truncate -s 1T big/f; cd many; seq 100 | xargs touch"])
        for name in ("many", "big"):
            with pytest.raises(BoxError, match="environment_download_too_large"):
                await box.download(f"{WORKSPACE}/{name}", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    drive(box, body)
    assert [path.name for path in tmp_path.iterdir()] == []


def test_special_files_are_noted(tmp_path: Path) -> None:
    box = LocalBox(make_spec(tmp_path / "w"))

    async def body() -> None:
        await box.exec(["sh", "-c", "mkfifo pipe"], cwd=ARTIFACTS)
        await box.download(ARTIFACTS, tmp_path / "out")
        assert box.warnings == [f"download of {ARTIFACTS}/pipe: a special file, left out"]

    drive(box, body)


def test_resources_that_are_not_enforced_are_noted(tmp_path: Path) -> None:
    box = LocalBox(make_spec(tmp_path / "w", resources={"memory_mb": 512, "cpus": 1, "other": 1}))

    async def body() -> None:
        assert box.warnings == ["local boxes do not enforce cpus, memory_mb"]

    drive(box, body)


def test_a_work_directory_is_used_once(tmp_path: Path) -> None:
    first, second = (LocalBox(make_spec(tmp_path / "w")) for _ in range(2))

    async def body() -> None:
        with pytest.raises(BoxError, match="environment_start_failed"):
            await second.start()
        await second.stop()
        assert (await first.exec(["true"])).ok, "the second box removed the first one's files"

    drive(first, body)


def test_kept_files_stay(tmp_path: Path, isolation: str) -> None:
    box = LocalBox(make_spec(tmp_path / "w", isolation))

    async def body() -> None:
        await box.exec(["touch", "kept"])
        path = box.host_path(f"{WORKSPACE}/kept")
        await box.stop(delete=False)
        assert path.exists()
        await box.stop()
        assert not path.exists()

    drive(box, body)


def test_unusable_bubblewrap_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`isolation: bwrap` never goes on without; `auto` does and says so."""
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "bwrap"
    fake.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    _bubblewrap.unusable.cache_clear()
    try:
        with pytest.raises(BoxError, match="No permissions") as refused:
            asyncio.run(LocalBox(make_spec(tmp_path / "w", "bwrap")).preflight())
        assert refused.value.title == "environment_preflight_failed"
        assert LocalBox.describe({"isolation": "auto"}) == "local (no isolation)"
        box = LocalBox(make_spec(tmp_path / "w", "auto"))

        async def body() -> None:
            assert (await box.exec(["pwd"])).stdout == f"{tmp_path}/w/box/workspace\n"

        drive(box, body)
    finally:
        _bubblewrap.unusable.cache_clear()


CRASHING = """
import asyncio, os, signal, sys
from pathlib import Path
from ageval_boxes.local import LocalBox
from pytest_ageval.box import BoxSpec

async def main():
    work, isolation, seconds, end = sys.argv[1:]
    labels = {"ageval.run": "run-7", "ageval.attempt": "a1"}
    box = LocalBox(BoxSpec("local", "a1", "t", Path(work), options={"isolation": isolation}, labels=labels))
    await box.start()
    await box.exec(["sh", "-c", f"mkdir -m 000 locked; setsid sleep {seconds} > /dev/null 2>&1 & sleep 0.2"])
    print("up", flush=True)
    if end == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def crash(work: Path, isolation: str, seconds: int, end: str = "crash") -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", CRASHING, str(work), isolation, str(seconds), end]
    worker = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"up\n"
    return worker


def runs(seconds: int) -> bool:
    wanted = b"sleep\0%d\0" % seconds
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == wanted:
                return True
        except OSError:
            continue
    return False


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A parent of work directories of our own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return default_work_parent()


def test_reap_removes_what_a_crashed_worker_left(parent: Path, isolation: str) -> None:
    seconds = 6_000_000 + os.getpid()
    worker = crash(parent / "run-7" / "a1", isolation, seconds)
    worker.communicate()
    assert (parent / "run-7" / "a1" / "box").is_dir()
    (left,) = LocalBox.leftovers({"ageval.run": "run-7"})
    assert (left.kind, left.where) == ("local", str(parent / "run-7" / "a1"))
    assert left.labels["ageval.run"] == "run-7"
    assert not left.alive_owner
    assert left.age_seconds is not None
    assert 0 <= left.age_seconds < 600
    assert LocalBox.leftovers({"ageval.run": "another"}) == []
    assert LocalBox.reap({"ageval.run": "another"}) == []
    (removed,) = LocalBox.reap({"ageval.run": "run-7"})
    assert "a1" in removed
    assert not runs(seconds)
    assert list(parent.iterdir()) == []


def test_reap_spares_boxes_of_living_workers(parent: Path) -> None:
    seconds = 7_000_000 + os.getpid()
    worker = crash(parent / "run-7" / "a1", "none", seconds, end="live")
    assert [(left.where, left.alive_owner) for left in LocalBox.leftovers({})] == [
        (str(parent / "run-7" / "a1"), True)
    ]
    assert LocalBox.reap({}) == []
    assert runs(seconds)
    assert (parent / "run-7" / "a1").exists()
    worker.kill()
    worker.communicate()
    assert len(LocalBox.reap({})) == 1
    assert not runs(seconds)


def test_reap_after_a_reboot_kills_nobody(parent: Path) -> None:
    seconds = 8_000_000 + os.getpid()
    work = parent / "run-7" / "a1"
    worker = crash(work, "none", seconds)
    worker.communicate()
    note = json.loads((work / "box.json").read_text())
    (work / "box.json").write_text(json.dumps({**note, "boot_id": "another-boot"}))
    assert len(LocalBox.reap({})) == 1
    assert not work.exists()
    assert runs(seconds), "a process id means nothing after a reboot"
    subprocess.run(["pkill", "-KILL", "-f", f"^sleep {seconds}$"], check=True)


def test_reap_ignores_what_is_not_a_box(parent: Path, tmp_path: Path) -> None:
    (parent / "run" / "odd").mkdir(parents=True)
    (parent / "run" / "odd" / "box.json").write_text("not json")
    (parent / "run" / "list").mkdir()
    (parent / "run" / "list" / "box.json").write_text("[1]")
    (parent / "link").symlink_to(tmp_path)
    assert LocalBox.reap({}) == []
    assert (parent / "run" / "odd" / "box.json").exists()


def test_the_parent_must_be_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    parent = default_work_parent()
    parent.chmod(0o777)
    assert default_work_parent().stat().st_mode & 0o777 == 0o700
    parent.rmdir()
    parent.symlink_to(tmp_path)
    box = LocalBox(make_spec(parent / "run" / "a1"))
    with pytest.raises(BoxError, match="not a directory of yours"):
        asyncio.run(box.start())
    assert not (tmp_path / "run").exists()


def test_a_command_costs_little(tmp_path: Path, isolation: str) -> None:
    """At most a few milliseconds of our own processor time for each command."""
    box = LocalBox(make_spec(tmp_path / "w", isolation))

    async def body() -> None:
        await box.exec(["true"])
        begun = time.process_time()
        for _ in range(30):
            await box.exec(["true"])
        assert (time.process_time() - begun) / 30 < 0.006

    drive(box, body)


def test_no_descriptor_is_left_open(tmp_path: Path, isolation: str) -> None:
    box = LocalBox(make_spec(tmp_path / "w", isolation))

    async def main() -> None:
        before = len(os.listdir("/proc/self/fd"))
        await box.start()
        await box.exec(["sh", "-c", "echo x; setsid sleep 100 &"])
        agent = await box.attach_stdio(["cat"])
        assert await agent.wait(0.05) is None
        await box.quiesce()
        await box.exec(["sleep", "100"], timeout=0.1)
        await box.attach_stdio(["cat"])
        await box.stop()
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(main())
