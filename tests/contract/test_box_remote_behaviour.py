"""What boxes in a vendor's cloud do beyond the contract: time, refusals, sandboxes that vanish, leftovers."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import jail
import pytest
from clouds import RUN, Cloud, opened, with_box

from pytest_ageval.box import WORKSPACE, Box
from pytest_ageval.errors import BoxError
from pytest_ageval.registry import Registry

pytestmark = pytest.mark.skipif(jail.unusable() is not None, reason=str(jail.unusable()))


@pytest.fixture(scope="module", params=["e2b", "daytona"])
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    with opened(request.param) as found:
        yield found


# -- time ------------------------------------------------------------------------------------------


def test_sandbox_outlives_its_time_while_it_is_used(cloud: Cloud, tmp_path: Path) -> None:
    """Two seconds of life are put off again and again during a command of five."""

    async def body(box: Box) -> None:
        assert (await box.exec(["sh", "-c", "sleep 5; echo done"])).stdout == "done\n"

    with_box(cloud.box(tmp_path, options={"timeout_seconds": 2}), body)


def test_sandbox_ends_when_nobody_extends_its_time(cloud: Cloud, tmp_path: Path) -> None:
    """What the test above relies on: the server does end a sandbox whose time is up."""

    async def body(box: Box) -> None:
        for task in list(box._background):  # type: ignore[attr-defined]
            task.cancel()
        with pytest.raises(BoxError) as lost:
            await box.exec(["sleep", "20"])
        assert lost.value.title == "environment_sandbox_gone"

    with_box(cloud.box(tmp_path, options={"timeout_seconds": 2}), body)


def test_exit_code_124_of_a_command_is_no_timeout(cloud: Cloud, tmp_path: Path) -> None:
    """Only the box's own clock makes a result `timed_out`."""

    async def body(box: Box) -> None:
        done = await box.exec(["timeout", "0.2", "sleep", "5"], timeout=20)
        assert (done.exit_code, done.timed_out) == (124, False)

    with_box(cloud.box(tmp_path), body)


def test_long_arguments(cloud: Cloud, tmp_path: Path) -> None:
    """A command line longer than one argument may be goes by a file; what cannot be sent is refused."""
    words = ["x" * 100_000, "y" * 100_000]

    async def body(box: Box) -> None:
        done = await box.exec(
            ["sh", "-c", "echo ${#1} ${#2} ${#GIVEN}", "sh", *words], env={"GIVEN": words[0]}
        )
        assert done.stdout == "100000 100000 100000\n"
        transport = await box.attach_stdio(["sh", "-c", "echo ${#1}", "sh", words[0]])
        assert await transport.read() == b"100000\n"
        await transport.terminate()
        with pytest.raises(BoxError) as refused:
            await box.exec(["echo", "\ud800"])
        assert refused.value.title == "environment_exec_invalid"
        assert (await box.exec(["printf", "%s", "\udcff"])).stdout == "\N{REPLACEMENT CHARACTER}"

    with_box(cloud.box(tmp_path), body)


def test_background_process_survives_its_command(cloud: Cloud, tmp_path: Path) -> None:
    """A server that a command leaves with the command's streams goes on until the box is quiesced."""

    async def body(box: Box) -> None:
        script = "(while :; do echo noise; echo . >> ticks; sleep 0.1; done) & exit 0"
        begun = time.monotonic()
        assert (await box.exec(["sh", "-c", script])).ok
        assert time.monotonic() - begun < 10, "its noise does not hold us"
        await asyncio.sleep(1)
        before = int((await box.exec(["sh", "-c", "wc -l < ticks"])).stdout)
        await asyncio.sleep(0.5)
        assert int((await box.exec(["sh", "-c", "wc -l < ticks"])).stdout) > before
        assert await box.quiesce()
        assert await box.quiesce() == []

    with_box(cloud.box(tmp_path), body)


# -- refusals --------------------------------------------------------------------------------------


def test_create_is_refused(cloud: Cloud, tmp_path: Path) -> None:
    """The vendor's words are in the error, `stop` works, and nothing is left."""
    cloud.fail_create(500, 500, 500, 500, 500)
    box = cloud.box(tmp_path)

    async def main() -> None:
        with pytest.raises(BoxError) as refused:
            await box.start()
        assert refused.value.title == "environment_start_failed"
        assert "so the test wants it" in refused.value.message
        cloud.fail_create()
        await box.stop()

    asyncio.run(main())
    assert cloud.server.sandboxes == {}
    assert not (tmp_path / "work").exists()


def test_create_is_repeated_when_the_vendor_is_busy(tmp_path: Path, cloud: Cloud) -> None:
    """Too many requests: the library waits as it was told and asks again."""
    if cloud.kind != "e2b":
        pytest.skip("Daytona's library does not repeat")
    cloud.fail_create(429, 503)

    async def body(box: Box) -> None:
        assert (await box.exec(["true"])).ok

    with_box(cloud.box(tmp_path), body)
    assert cloud.server.faults["/v2/sandboxes"] == []


def test_missing_key(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the variable is in the refusal; nothing is looked for without it."""
    monkeypatch.delenv(cloud.key_name)
    box = cloud.box(tmp_path)
    with pytest.raises(BoxError, match=cloud.key_name) as refused:
        asyncio.run(box.preflight())
    assert refused.value.title == "environment_preflight_failed"
    assert box.reap({"ageval.run": RUN}) == []


def test_missing_library(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that brings it is in the refusal."""
    monkeypatch.setitem(sys.modules, cloud.kind, None)
    with pytest.raises(BoxError, match=rf"pytest-ageval\[{cloud.kind}\]") as refused:
        asyncio.run(cloud.box(tmp_path).preflight())
    assert refused.value.title == "environment_preflight_failed"


def test_looking_a_kind_up_imports_no_library(cloud: Cloud) -> None:
    """``--box`` looks the class up when a task is locked; the vendor's library comes with the box."""
    code = f"import sys; from pytest_ageval.registry import Registry; Registry().box({cloud.kind!r}); "
    code += f"sys.exit({cloud.kind!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_attempt_belongs_to_the_user_of_commands(cloud: Cloud, tmp_path: Path) -> None:
    """E2B's usual user may not write to "/": the superuser makes the directory and gives it away."""

    async def body(box: Box) -> None:
        done = await box.exec(["sh", "-c", "id -u; stat -c %u /attempt /attempt/workspace"])
        user, *owners = done.stdout.split()
        assert owners == [user, user]
        if cloud.kind == "e2b" and os.geteuid() == 0:
            assert user == "1000"

    with_box(cloud.box(tmp_path), body)


# -- sandboxes that vanish -------------------------------------------------------------------------


def test_sandbox_vanishes_during_a_command(cloud: Cloud, tmp_path: Path) -> None:
    """No exit code and no timeout, but an error that says so; `stop` works."""

    async def body(box: Box) -> None:
        command = asyncio.ensure_future(box.exec(["sleep", "30"], timeout=25))
        await asyncio.sleep(1)
        begun = time.monotonic()
        await asyncio.to_thread(cloud.kill, box)
        with pytest.raises(BoxError) as lost:
            await command
        assert lost.value.title == "environment_sandbox_gone"
        assert time.monotonic() - begun < 10

    with_box(cloud.box(tmp_path), body)


def test_sandbox_vanishes_between_commands(cloud: Cloud, tmp_path: Path) -> None:
    """Whatever is asked of it next fails with the same title."""
    source = tmp_path / "source"
    source.write_text("x")

    async def body(box: Box) -> None:
        await asyncio.to_thread(cloud.kill, box)
        uses: list[Callable[[], Awaitable[object]]] = [
            lambda: box.exec(["true"]),
            lambda: box.upload(source, f"{WORKSPACE}/source"),
            lambda: box.download(WORKSPACE, tmp_path / "out"),
            lambda: box.attach_stdio(["cat"]),
            lambda: box.quiesce(),
        ]
        for use in uses:
            with pytest.raises(BoxError) as lost:
                await use()
            assert lost.value.title == "environment_sandbox_gone"

    with_box(cloud.box(tmp_path), body)


def test_sandbox_vanishes_under_an_attached_process(cloud: Cloud, tmp_path: Path) -> None:
    """Reading and waiting fail; neither is taken for an end of file or an exit code."""

    async def body(box: Box) -> None:
        transport = await box.attach_stdio(["cat"])
        await transport.write(b"line\n")
        assert await transport.read() == b"line\n"
        reading = asyncio.ensure_future(transport.read())
        await asyncio.to_thread(cloud.kill, box)
        for use in (reading, transport.wait()):
            with pytest.raises(BoxError) as lost:
                await asyncio.wait_for(use, 20)
            assert lost.value.title == "environment_sandbox_gone"

    with_box(cloud.box(tmp_path), body)


def test_supervisor_is_killed(cloud: Cloud, tmp_path: Path) -> None:
    """A command that kills all it can reach has no exit code that we could know; the box goes on."""

    async def body(box: Box) -> None:
        with pytest.raises(BoxError) as lost:
            await box.exec(["sh", "-c", "kill -9 -1"], timeout=20)
        assert lost.value.title == "environment_exec_lost"
        assert (await box.exec(["echo", "on"])).stdout == "on\n"

    with_box(cloud.box(tmp_path), body)


# -- leftovers and secrets -------------------------------------------------------------------------

ABANDON = """
import asyncio, os, pathlib, sys
from pytest_ageval.box import BoxSpec
from pytest_ageval.registry import Registry
kind, options, labels, work = sys.argv[1], eval(sys.argv[2]), eval(sys.argv[3]), pathlib.Path(sys.argv[4])
spec = BoxSpec(kind=kind, attempt_id="a", task_id="t", work_dir=work, options=options, labels=labels)
async def main():
    await Registry().box(kind)(spec).start()
    os._exit(0)
asyncio.run(main())
"""


def test_reap_removes_what_a_dead_process_left(cloud: Cloud, tmp_path: Path) -> None:
    """A sandbox whose owner died is deleted, that of a run with other labels is not."""
    options = cloud.options
    for run in ("dead", "other"):
        labels = {"ageval.run": run, "ageval.attempt": f"attempt-of-{run}"}
        words = [cloud.kind, repr(options), repr(labels), str(tmp_path / run)]
        subprocess.run([sys.executable, "-c", ABANDON, *words], check=True, timeout=60)
    cls = Registry().box(cloud.kind)
    assert len(cloud.server.sandboxes) == 2
    (line,) = cls.reap({"ageval.run": "dead"})
    assert "attempt-of-dead" in line
    assert cls.reap({"ageval.run": "dead"}) == []
    assert len(cloud.server.sandboxes) == 1
    assert len(cls.reap({"ageval.run": "other"})) == 1


def test_reap_spares_the_living(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox of another living process, or of another machine, is left alone."""
    from ageval_boxes import _remote_owner

    host, boot, pid, start = _remote_owner.owner().split("/")
    parent = _remote_owner.read_proc(os.getppid())
    assert parent is not None
    for owner in (
        f"{host}/{boot}/{os.getppid()}/{parent.start}",
        f"elsewhere/{boot}/{pid}/{start}",
        "nonsense",
    ):
        assert not _remote_owner.left_behind({_remote_owner.OWNER: owner})
    for owner in (f"{host}/earlier/{pid}/{start}", f"{host}/{boot}/{os.getppid()}/1"):
        assert _remote_owner.left_behind({_remote_owner.OWNER: owner})


def test_key_stays_here(cloud: Cloud, tmp_path: Path) -> None:
    """The account's key is neither in the box nor in what is recorded of it."""
    key = os.environ[cloud.key_name]

    async def body(box: Box) -> None:
        assert key not in json.dumps(box.handle())
        script = "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'"
        found = (await box.exec(["sh", "-c", script])).stdout
        assert "AGEVAL_WORKSPACE" in found
        assert key not in found

    with_box(cloud.box(tmp_path), body)
