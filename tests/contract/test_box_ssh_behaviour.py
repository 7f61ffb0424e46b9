"""The ssh box beyond the contract: who may be trusted, connections that break, what is left behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("paramiko")

from support.sshd import MISSING, Sshd, sshd

from ageval_boxes import _ssh_connection, _ssh_leftovers
from ageval_boxes.ssh import SshBox
from pytest_ageval.box import WORKSPACE, BoxSpec
from pytest_ageval.errors import BoxError

pytestmark = [pytest.mark.ssh, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server(shared: Sshd) -> Iterator[Sshd]:
    yield shared
    assert shared.roots() == []


def spec(server: Sshd, directory: Path, **options: Any) -> BoxSpec:
    given = {name: value for name, value in {**server.options, **options}.items() if value is not None}
    return BoxSpec(
        kind="ssh",
        attempt_id="attempt",
        task_id="t",
        work_dir=directory / "work",
        options=given,
        labels={"ageval.run": f"run-{directory.name}", "ageval.attempt": "attempt"},
    )


def drive(box: SshBox, body: Callable[[SshBox], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            await box.start()
            await body(box)
        finally:
            await box.stop()

    asyncio.run(asyncio.wait_for(main(), 60))


def refused(box: SshBox) -> BoxError:
    with pytest.raises(BoxError) as found:
        asyncio.run(box.preflight())
    return found.value


def alive(marker: str) -> bool:
    """A process whose command line is exactly `marker` runs on this machine."""
    wanted = marker.replace(" ", "\0").encode() + b"\0"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == wanted:
                return True
        except OSError:
            continue
    return False


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not true within {seconds} seconds"
        time.sleep(0.05)


# -- trust -----------------------------------------------------------------------------------------


def test_unknown_host_key_is_refused(server: Sshd, tmp_path: Path) -> None:
    error = refused(SshBox(spec(server, tmp_path, known_hosts=str(tmp_path / "empty"))))
    assert error.title == "environment_host_key_refused"
    assert "SHA256:" in error.message


def test_changed_host_key_is_refused(server: Sshd, tmp_path: Path) -> None:
    other = (server.directory / "user.pub").read_text().split()[1]
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{server.port} ssh-ed25519 {other}\n")
    error = refused(SshBox(spec(server, tmp_path, known_hosts=str(known))))
    assert error.title == "environment_host_key_refused"
    assert "another host key" in error.message


def test_host_key_by_option(server: Sshd, tmp_path: Path) -> None:
    """As a line or as a fingerprint; `known_hosts` is then not read."""
    line = (server.directory / "host.pub").read_text().strip()
    command = ["ssh-keygen", "-lf", str(server.directory / "host.pub")]
    fingerprint = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1]
    for host_key in (line, fingerprint):
        asyncio.run(SshBox(spec(server, tmp_path, known_hosts="/nowhere", host_key=host_key)).preflight())
    wrong = (server.directory / "user.pub").read_text().strip()
    for host_key in (wrong, fingerprint[:-4] + "AAAA"):
        error = refused(SshBox(spec(server, tmp_path, known_hosts=None, host_key=host_key)))
        assert error.title == "environment_host_key_refused"


def test_refused_login(server: Sshd, tmp_path: Path) -> None:
    error = refused(SshBox(spec(server, tmp_path, key_file=str(server.directory / "host"))))
    assert error.title == "environment_login_refused"


def test_key_by_variable(server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = SshBox(spec(server, tmp_path, key_file=None, key_env="CONTRACT_SSH_KEY"))
    assert "CONTRACT_SSH_KEY" in refused(box).message
    monkeypatch.setenv("CONTRACT_SSH_KEY", str(server.directory / "user"))
    asyncio.run(box.preflight())


def test_nobody_listens(server: Sshd, tmp_path: Path) -> None:
    error = refused(SshBox(spec(server, tmp_path, port=1)))
    assert error.title == "environment_start_failed"
    assert "127.0.0.1:1" in error.message


# -- commands --------------------------------------------------------------------------------------


def test_variables_are_on_no_command_line(server: Sshd, tmp_path: Path) -> None:
    """Every user of the host can read command lines; keys of agents are variables."""

    async def body(box: SshBox) -> None:
        script = 'cat /proc/[0-9]*/cmdline; printf %s "$SECRET" | wc -c'
        done = await box.exec(["sh", "-c", script], env={"SECRET": "sk-on-a-command-line"})
        assert done.stdout.endswith("20\n")
        assert "sk-on-a-command-line" not in done.stdout

    drive(SshBox(spec(server, tmp_path)), body)


def test_builtins_of_the_shell_are_not_commands(server: Sshd, tmp_path: Path) -> None:
    async def body(box: SshBox) -> None:
        assert (await box.exec(["eval", "exit 0"])).exit_code == 127
        assert (await box.exec(["A=b"])).exit_code == 127

    drive(SshBox(spec(server, tmp_path)), body)


def test_both_streams_beyond_the_window(server: Sshd, tmp_path: Path) -> None:
    async def body(box: SshBox) -> None:
        script = (
            "for i in 1 2 3 4 5 6 7 8 9 10; do head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; done"
        )
        done = await box.exec(["sh", "-c", script], timeout=30)
        assert (done.exit_code, done.truncated, done.timed_out) == (0, True, False)

    drive(SshBox(spec(server, tmp_path)), body)


def test_timeout_when_the_streams_are_closed(server: Sshd, tmp_path: Path) -> None:
    async def body(box: SshBox) -> None:
        script = "exec >/dev/null 2>&1 </dev/null; exec sleep 1234.5"
        done = await box.exec(["sh", "-c", script], timeout=1)
        assert done.timed_out
        assert not alive("sleep 1234.5")

    drive(SshBox(spec(server, tmp_path)), body)


@pytest.mark.parametrize("most", [1, 3])
def test_few_sessions_on_a_connection(tmp_path: Path, most: int) -> None:
    """A server that allows fewer sessions than its default: further connections are opened."""
    with sshd(tmp_path / "sshd", MaxSessions=str(most), MaxStartups="100") as server:

        async def body(box: SshBox) -> None:
            done = await asyncio.gather(*(box.exec(["sh", "-c", f"sleep 0.5; echo {n}"]) for n in range(6)))
            assert [found.stdout for found in done] == [f"{n}\n" for n in range(6)]

        drive(SshBox(spec(server, tmp_path)), body)
        assert server.roots() == []


# -- connections that break ------------------------------------------------------------------------


def test_cut_connection_is_an_error_and_the_command_is_ended(server: Sshd, tmp_path: Path) -> None:
    async def body(box: SshBox) -> None:
        command = asyncio.ensure_future(box.exec(["sleep", "1234.6"]))
        await asyncio.sleep(0.5)
        assert alive("sleep 1234.6")
        server.cut()
        with pytest.raises(BoxError) as found:
            await command
        assert found.value.title == "environment_connection_lost"
        # The host can be reached again: the command is ended, and the box can be used.
        await asyncio.to_thread(until, lambda: not alive("sleep 1234.6"))
        assert (await box.exec(["echo", "again"])).stdout == "again\n"

    drive(SshBox(spec(server, tmp_path)), body)


def test_cut_connection_of_an_attached_process(server: Sshd, tmp_path: Path) -> None:
    async def body(box: SshBox) -> None:
        transport = await box.attach_stdio(["cat"])
        await transport.write(b"x")
        assert await transport.read() == b"x"
        server.cut()
        assert await asyncio.wait_for(transport.read(), 10) == b""
        with pytest.raises(BrokenPipeError):
            await transport.write(b"y")
        with pytest.raises(BoxError) as found:
            await transport.wait(10)
        assert found.value.title == "environment_connection_lost"

    drive(SshBox(spec(server, tmp_path)), body)


def test_stop_after_a_cut(server: Sshd, tmp_path: Path) -> None:
    """`stop` makes a new connection, and is quick."""

    async def main() -> None:
        box = SshBox(spec(server, tmp_path))
        await box.start()
        await box.exec(["sh", "-c", "setsid sleep 1234.7 > /dev/null 2>&1 &"])
        server.cut()
        begun = time.monotonic()
        await box.stop()
        assert time.monotonic() - begun < 3

    asyncio.run(main())
    assert not alive("sleep 1234.7")


def test_host_out_of_reach_at_the_end(tmp_path: Path, cache: Path) -> None:
    """The box is noted, and removed when another box is opened on the host."""
    directory = tmp_path / "sshd"
    with sshd(directory) as server:

        async def first() -> None:
            box = SshBox(spec(server, tmp_path / "one"))
            await box.start()
            await box.exec(["sh", "-c", "setsid sleep 1234.8 > /dev/null 2>&1 &"])
            server.stop()
            with pytest.raises(BoxError) as found:
                await box.stop()
            assert found.value.title == "environment_stop_failed"
            assert "pytest-ageval clean" in found.value.message

        asyncio.run(first())
        assert alive("sleep 1234.8")
        assert len(server.roots()) == 1
    with sshd(directory, port=server.port) as again:

        async def second(box: SshBox) -> None:
            assert len(again.roots()) == 1
            (warning,) = box.warnings
            assert "ssh box of attempt" in warning
            assert "(1 processes)" in warning

        drive(SshBox(spec(again, tmp_path / "two")), second)
        assert again.roots() == []
    assert not alive("sleep 1234.8")
    assert list((cache / "pytest-ageval" / "ssh").iterdir()) == []


# -- what a killed parent leaves -------------------------------------------------------------------

PARENT = """
import asyncio, sys
from pathlib import Path
from ageval_boxes.ssh import SshBox
from pytest_ageval.box import BoxSpec

async def main():
    options = {options!r}
    box = SshBox(BoxSpec("ssh", "a", "t", Path({work!r}), options=options, labels={labels!r}))
    await box.start()
    await box.exec(["sh", "-c", "setsid sleep 1234.9 > /dev/null 2>&1 &"])
    await box.attach_stdio(["sleep", "1235.1"])
    print("ready", flush=True)
    await asyncio.sleep(100)

asyncio.run(main())
"""


def test_reap_after_the_parent_was_killed(server: Sshd, tmp_path: Path) -> None:
    labels = {"ageval.run": "killed", "ageval.worker": "gw0", "ageval.attempt": "a"}
    code = PARENT.format(options=server.options, work=str(tmp_path / "work"), labels=labels)
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout as said:
        assert said.readline() == b"ready\n"
    try:
        assert SshBox.reap({"ageval.run": "killed"}) == [], "its owner lives"
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    # What reads from the connection may have ended with it already.
    assert alive("sleep 1234.9")
    assert SshBox.reap({"ageval.run": "another"}) == []
    (removed,) = SshBox.reap({"ageval.run": "killed", "ageval.worker": "gw0"})
    assert "ssh box of a: " in removed
    assert not alive("sleep 1234.9")
    assert not alive("sleep 1235.1")
    assert server.roots() == []
    assert SshBox.reap({"ageval.run": "killed"}) == []


def test_kept_box(server: Sshd, tmp_path: Path) -> None:
    """`stop(delete=False)` leaves the files on the host, ends the processes, and forgets the box."""

    async def main() -> Path:
        box = SshBox(spec(server, tmp_path))
        await box.start()
        await box.exec(["sh", "-c", "echo kept > file; setsid sleep 1235.2 > /dev/null 2>&1 &"])
        await box.stop(delete=False)
        return Path(box.visible_path(WORKSPACE))

    workspace = asyncio.run(main())
    assert (workspace / "file").read_text() == "kept\n"
    assert not alive("sleep 1235.2")
    assert list(_ssh_leftovers.notes()) == []
    subprocess.run(["rm", "-rf", str(workspace.parents[1])], check=True)


def test_boxes_share_a_connection(server: Sshd, tmp_path: Path) -> None:
    async def main() -> None:
        boxes = [SshBox(spec(server, tmp_path / str(number))) for number in range(3)]
        for box in boxes:
            await box.start()
        for box in boxes:
            await box.stop()

    at = _ssh_connection.host(SshBox(spec(server, tmp_path)).address)
    at.close()
    asyncio.run(main())
    assert len(at._connections) == 1


# -- containers ------------------------------------------------------------------------------------

IMAGE = "ageval-attempt:base"


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True, timeout=60).stdout


needs_image = pytest.mark.skipif(
    shutil.which("docker") is None
    or subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, check=False).returncode
    != 0,
    reason=f"needs a docker engine with the image {IMAGE}",
)


@pytest.mark.docker
@needs_image
def test_container_has_limits_and_labels_and_goes(server: Sshd, tmp_path: Path) -> None:
    given = replace(spec(server, tmp_path, image=IMAGE), resources={"memory_mb": 64, "cpus": 1})

    async def body(box: SshBox) -> None:
        assert box.warnings == []
        name = box.handle()["root"]
        memory = await asyncio.to_thread(docker, "inspect", "-f", "{{.HostConfig.Memory}}", name)
        assert int(memory) == 64 * 1024 * 1024
        label = '{{index .Config.Labels "ageval.run"}}'
        assert (
            await asyncio.to_thread(docker, "inspect", "-f", label, name)
        ).strip() == f"run-{tmp_path.name}"
        assert (await box.exec(["cat", str(server.directory / "user")])).exit_code != 0, "the host's files"

    box = SshBox(given)
    drive(box, body)
    assert docker("ps", "-aq", "--filter", f"label=ageval.run=run-{tmp_path.name}") == ""


@pytest.mark.docker
@needs_image
def test_container_of_a_killed_parent_is_reaped(server: Sshd, tmp_path: Path) -> None:
    labels = {"ageval.run": f"killed-{tmp_path.name}", "ageval.attempt": "a"}
    options = {**server.options, "image": IMAGE}
    code = PARENT.format(options=options, work=str(tmp_path / "work"), labels=labels)
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout as said:
        assert said.readline() == b"ready\n"
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    (removed,) = SshBox.reap(labels)
    assert "(a container)" in removed
    assert docker("ps", "-aq", "--filter", f"label=ageval.run={labels['ageval.run']}") == ""


@pytest.mark.docker
@needs_image
def test_image_that_does_not_exist(server: Sshd, tmp_path: Path) -> None:
    """The engine's own words."""

    async def main() -> None:
        box = SshBox(spec(server, tmp_path, image="localhost:1/no/such:image"))
        with pytest.raises(BoxError) as found:
            await box.start()
        assert found.value.title == "environment_start_failed"
        assert "localhost:1" in found.value.message
        await box.stop()

    asyncio.run(main())
    assert list(_ssh_leftovers.notes()) == []
