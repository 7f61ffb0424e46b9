"""What bubblewrap adds: nothing of the operator's is in reach, and no process gets away."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ageval_boxes import _bubblewrap
from ageval_boxes.local import LocalBox
from pytest_ageval.box import EVALUATION, WORKSPACE, BoxSpec
from pytest_ageval.errors import BoxError

pytestmark = pytest.mark.skipif(_bubblewrap.unusable() is not None, reason=str(_bubblewrap.unusable()))


def make_box(tmp_path: Path, hidden: list[Path] | None = None, **options: object) -> LocalBox:
    return LocalBox(
        BoxSpec(
            kind="local",
            attempt_id="a1",
            task_id="t",
            work_dir=tmp_path / "work",
            options={"isolation": "bwrap", **options},
            hidden=hidden or [],
        )
    )


def drive(box: LocalBox, body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            await box.start()
            await body()
        finally:
            await box.stop()

    asyncio.run(main())


def test_gold_is_nowhere_in_the_box(tmp_path: Path) -> None:
    gold = tmp_path / "dataset" / "evaluation" / "expected-7c1d.json"
    gold.parent.mkdir(parents=True)
    gold.touch()
    box = make_box(tmp_path, [tmp_path / "dataset"])

    async def body() -> None:
        find = ["find", "/", "-name", gold.name, "-not", "-path", "/proc/*"]
        assert (await box.exec(find)).stdout == ""
        # Nor by the roots of the other processes in the box.
        roots = await box.exec(["sh", "-c", f"cat /proc/*/root{gold}; ls -d /proc/[0-9]*/root{gold}"])
        assert roots.stdout == ""
        await box.upload(gold.parent, EVALUATION)
        assert (await box.exec(find)).stdout == f"{EVALUATION}/{gold.name}\n"

    drive(box, body)


def test_hidden_directories_below_exposed_ones_are_empty(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    evidence = repository / "evidence" / "earlier"
    evidence.mkdir(parents=True)
    (evidence / "answer").write_text("42")
    (repository / "tool").write_text("a tool")
    (repository / "notes").write_text("hidden file")
    hidden = [repository / "evidence", repository / "notes", repository / "not-there"]
    box = make_box(tmp_path, hidden, expose=[str(repository)])

    async def body() -> None:
        assert (await box.exec(["cat", f"{repository}/tool"])).stdout == "a tool"
        assert (await box.exec(["ls", "-A", f"{repository}/evidence"])).stdout == ""
        assert (await box.exec(["cat", f"{repository}/notes"])).stdout == ""
        assert not (await box.exec(["touch", f"{repository}/evidence/x"])).ok
        assert not (await box.exec(["touch", f"{repository}/x"])).ok
        assert not (await box.exec(["umount", f"{repository}/evidence"])).ok

    drive(box, body)
    assert (evidence / "answer").read_text() == "42"


def test_hidden_paths_cannot_be_exposed(tmp_path: Path) -> None:
    (tmp_path / "dataset" / "inner").mkdir(parents=True)
    (tmp_path / "alias").symlink_to(tmp_path / "dataset")
    box = make_box(tmp_path, [tmp_path / "dataset"])

    async def body() -> None:
        for path in ("dataset", "dataset/inner", "alias/inner", "not-there"):
            with pytest.raises(BoxError, match="environment_expose_invalid"):
                box.expose(tmp_path / path)

    drive(box, body)


def test_a_runtime_can_be_exposed_later(tmp_path: Path) -> None:
    runtime = tmp_path / "cache" / "agent-1.0"
    (runtime / "bin").mkdir(parents=True)
    (runtime / "bin" / "agent").write_text("#!/bin/sh\necho agent 1.0\n")
    (runtime / "bin" / "agent").chmod(0o755)
    (tmp_path / "cache" / "other").touch()
    box = make_box(tmp_path)

    async def body() -> None:
        program = str(runtime / "bin" / "agent")
        assert (await box.exec([program])).exit_code == 127
        box.expose(runtime)
        assert (await box.exec([program])).stdout == "agent 1.0\n"
        assert (await box.exec(["ls", str(runtime.parent)])).stdout == "agent-1.0\n"

    drive(box, body)


def test_the_host_is_read_only(tmp_path: Path) -> None:
    box = make_box(tmp_path)

    async def body() -> None:
        for path in ("/x", "/usr/x", "/etc/x", "/usr/bin/x"):
            done = await box.exec(["sh", "-c", f"echo x > {path}"])
            assert not done.ok, path
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/irq", "/etc/passwd"):
            # Only asked, never tried: a box that fails this test would change the machine.
            assert not (await box.exec(["test", "-w", path])).ok, path
        for path in ("/tmp/x", "/var/tmp/y", "/dev/shm/x", "/attempt/home/x"):
            assert (await box.exec(["sh", "-c", f"echo x > {path}"])).ok, path
        # One /tmp for all commands of the box, and none of the host's.
        assert {"x", "y"} <= set((await box.exec(["ls", "/tmp"])).stdout.split())

    drive(box, body)
    assert not Path("/usr/x").exists()


def test_the_operators_home_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    for name in (".ssh/id_ed25519", ".codex/auth.json", ".local/share/key", ".local/bin/tool"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("secret")
    (home / ".local" / "lib").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{home}/.local/bin:{os.environ['PATH']}")
    box = make_box(tmp_path)

    async def body() -> None:
        found = await box.exec(["find", str(home), "-type", "f"])
        assert found.stdout == f"{home}/.local/bin/tool\n"
        assert (await box.exec(["sh", "-c", "echo $HOME; cd; pwd"])).stdout == "/attempt/home\n" * 2

    drive(box, body)


def test_environment_holds_nothing_of_the_operators(tmp_path: Path) -> None:
    box = make_box(tmp_path)

    async def body() -> None:
        found = (await box.exec(["env"], env={"GIVEN": "1"})).stdout
        names = {line.partition("=")[0] for line in found.splitlines()}
        assert names == {
            "PATH", "LANG", "HOME", "TMPDIR", "PWD", "GIVEN", "AGEVAL_BOX_COOKIE", "AGEVAL_WORKSPACE",
            "AGEVAL_ARTIFACTS", "AGEVAL_EVALUATION", "AGEVAL_ATTEMPT_ID",
        }  # fmt: skip

    drive(box, body)


def test_linker_variables_reach_the_command_only(tmp_path: Path) -> None:
    box = make_box(tmp_path)

    async def body() -> None:
        done = await box.exec(["sh", "-c", "echo $LD_LIBRARY_PATH"], env={"LD_LIBRARY_PATH": "/a/b"})
        assert (done.stdout, done.stderr) == ("/a/b\n", "")

    drive(box, body)


def test_only_processes_of_the_box_are_seen(tmp_path: Path) -> None:
    box = make_box(tmp_path)

    async def body() -> None:
        assert (await box.exec(["sh", "-c", "setsid sleep 98765 > /dev/null 2>&1 &"])).ok
        seen = (await box.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])).stdout
        assert "sleep 98765" in seen, "commands of one box see each other"
        assert "pytest" not in seen
        assert not (await box.exec(["kill", "-0", str(os.getpid())])).ok

    drive(box, body)


def test_git_finds_no_repository_above(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    box = make_box(tmp_path)

    async def body() -> None:
        done = await box.exec(["git", "-C", WORKSPACE, "rev-parse", "--show-toplevel"])
        assert done.exit_code != 0

    drive(box, body)


def test_root_has_no_power_over_the_machine(tmp_path: Path) -> None:
    box = make_box(tmp_path)

    async def body() -> None:
        status = (await box.exec(["cat", "/proc/self/status"])).stdout
        held = int(status.split("CapEff:")[1].split()[0], 16)
        # CAP_DAC_READ_SEARCH, NET_ADMIN, NET_RAW, SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, MKNOD
        for number in (2, 12, 13, 16, 17, 19, 21, 27):
            assert not held >> number & 1, number
        assert not (await box.exec(["mount", "-t", "tmpfs", "none", "/attempt/home"])).ok
        # What an installer does as root works.
        if os.geteuid() == 0:
            assert (await box.exec(["sh", "-c", "touch f && chown 1000:1000 f"])).ok

    drive(box, body)


def test_killing_everyone_leaves_a_box_that_works(tmp_path: Path) -> None:
    box = make_box(tmp_path)

    async def body() -> None:
        await box.exec(["sh", "-c", "setsid sleep 100 > /dev/null 2>&1 &"])
        assert (await box.exec(["sh", "-c", "kill -9 -1; kill -9 $$"])).exit_code == 137
        assert (await box.exec(["echo", "still here"])).stdout == "still here\n"

    drive(box, body)


def test_daemons_are_reaped(tmp_path: Path) -> None:
    box = make_box(tmp_path)

    async def body() -> None:
        await box.exec(["sh", "-c", "for i in 1 2 3 4 5; do (setsid true &) ; done; sleep 0.3"])
        states = await box.exec(["sh", "-c", "grep -h State: /proc/[0-9]*/status"])
        assert "Z" not in states.stdout, states.stdout

    drive(box, body)


def test_a_process_that_scrubs_its_environment_does_not_get_away(tmp_path: Path) -> None:
    box = make_box(tmp_path)

    async def body() -> None:
        escape = "(env -i /usr/bin/setsid /bin/sleep 4242 > /dev/null 2>&1 &); sleep 100"
        assert (await box.exec(["sh", "-c", escape], timeout=1)).timed_out
        seen = (await box.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])).stdout
        assert "sleep 4242" not in seen.replace("/bin/sleep 4242 > ", "")

    drive(box, body)


def test_everything_dies_with_the_box(tmp_path: Path) -> None:
    box = make_box(tmp_path)
    seconds = 4_000_000 + os.getpid()

    async def body() -> None:
        await box.exec(
            ["sh", "-c", f"for i in 1 2 3; do setsid sleep {seconds} > /dev/null 2>&1 & done; sleep 0.2"]
        )
        assert len(sleeping(seconds)) == 3
        begun = time.monotonic()
        await box.stop()
        assert time.monotonic() - begun < 2

    drive(box, body)
    assert sleeping(seconds) == []
    assert not (tmp_path / "work").exists()


def test_everything_dies_with_us(tmp_path: Path) -> None:
    """A worker that is killed takes its boxes' processes with it."""
    seconds = 5_000_000 + os.getpid()
    script = f"""
import asyncio, os, signal
from pathlib import Path
from ageval_boxes.local import LocalBox
from pytest_ageval.box import BoxSpec

async def main():
    box = LocalBox(BoxSpec("local", "a", "t", Path({str(tmp_path / "work")!r})))
    await box.start()
    await box.exec(["sh", "-c", "setsid sleep {seconds} > /dev/null 2>&1 &"])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""

    async def main() -> int:
        import sys

        worker = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
        return await worker.wait()

    assert asyncio.run(main()) == -9
    deadline = time.monotonic() + 3
    while sleeping(seconds) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert sleeping(seconds) == []


def sleeping(seconds: int) -> list[int]:
    """The processes on the whole machine that sleep for `seconds`."""
    wanted = b"sleep\0%d\0" % seconds
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == wanted:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_describe() -> None:
    assert LocalBox.describe({}) == "local (bubblewrap)"
    assert LocalBox.describe({"isolation": "none"}) == "local (no isolation)"
