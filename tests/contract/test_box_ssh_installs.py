"""Agents' npm packages are installed once for a host, by whichever box comes first."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("paramiko")

from support.sshd import MISSING, Sshd, sshd

from ageval_boxes.ssh import SshBox
from ageval_executors.acp import install
from ageval_executors.acp.entries import ENTRIES
from pytest_ageval.box import BoxSpec
from pytest_ageval.errors import ExecutorError

pytestmark = [pytest.mark.ssh, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]

CODEX = ENTRIES["codex"]
NAME = install.install_name(CODEX, install.platform_name(platform.machine()), 24)
# Plays npm; takes long enough for others to come in between.
NPM = """#!/bin/sh
echo call >> "{log}"
[ ! -e "{log}.fails" ] || {{ echo "npm error 404 no such package"; exit 7; }}
[ ! -e "{log}.hangs" ] || sleep 1000
sleep 1
mkdir -p node_modules/x
"""


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "node").write_text("#!/bin/sh\necho v24.1.0\n")
    (tools / "npm").write_text(NPM.format(log=tools / "log"))
    for path in tools.iterdir():
        path.chmod(0o755)
    return tools


@pytest.fixture
def server(tmp_path: Path, tools: Path) -> Iterator[Sshd]:
    variables = f"SHLVL=5 XDG_CACHE_HOME={tmp_path / 'remote'} PATH={tools}:/usr/local/bin:/usr/bin:/bin"
    with sshd(tmp_path / "sshd", SetEnv=variables) as running:
        yield running
        assert running.roots() == []


def agents(tmp_path: Path) -> Path:
    return tmp_path / "remote" / "pytest-ageval" / "boxes" / "host-1" / "agents"


async def use(
    server: Sshd, work: Path, *, may_install: bool = True, cache: bool = True, timeout: float = 60
) -> str:
    """Have the agent installed in a box of its own; where it is."""
    options = {**server.options, "cache": cache}
    box = SshBox(BoxSpec("ssh", work.name, "t", work, options=options, labels={"ageval.attempt": work.name}))
    try:
        await box.start()
        found = await asyncio.wait_for(
            install.install_in_box(CODEX, box, None, may_install=may_install), timeout
        )
        assert (await box.exec(["test", "-d", f"{found.directory}/node_modules/x"])).ok
        return found.directory
    finally:
        await box.stop()


def calls(tools: Path) -> int:
    return len((tools / "log").read_text().splitlines())


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_boxes_at_once_and_later_share_one_install(server: Sshd, tools: Path, tmp_path: Path) -> None:
    async def main() -> None:
        found = await asyncio.gather(*(use(server, tmp_path / f"w{number}") for number in range(4)))
        assert set(found) == {str(agents(tmp_path) / NAME)}
        assert await use(server, tmp_path / "later", may_install=False) == found[0]

    asyncio.run(main())
    assert calls(tools) == 1
    assert [path.name for path in agents(tmp_path).iterdir()] == [NAME]
    document = json.loads((agents(tmp_path) / NAME / install.MARKER).read_text())
    assert document["dependencies"] == dict(CODEX.packages)


def test_another_node_has_another_install(server: Sshd, tools: Path, tmp_path: Path) -> None:
    first = asyncio.run(use(server, tmp_path / "w1"))
    (tools / "node").write_text("#!/bin/sh\necho v22.9.0\n")
    assert asyncio.run(use(server, tmp_path / "w2")) != first
    assert calls(tools) == 2


def test_without_the_cache_each_box_has_its_own(server: Sshd, tools: Path, tmp_path: Path) -> None:
    for number in range(2):
        found = asyncio.run(use(server, tmp_path / f"w{number}", cache=False))
        assert "/box/home/" in found
    assert calls(tools) == 2
    assert not agents(tmp_path).exists()


def test_an_install_that_fails_leaves_nothing(server: Sshd, tools: Path, tmp_path: Path) -> None:
    (tools / "log.fails").touch()
    with pytest.raises(ExecutorError) as caught:
        asyncio.run(use(server, tmp_path / "w1"))
    assert caught.value.title == "acp_runtime_install_failed"
    assert "npm error 404" in str(caught.value.detail)
    assert list(agents(tmp_path).iterdir()) == []
    (tools / "log.fails").unlink()
    asyncio.run(use(server, tmp_path / "w2"))


def test_the_lock_of_a_killed_install_is_not_waited_for_long(
    server: Sshd, tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "STALE_SECONDS", 4)
    (tools / "log.hangs").touch()

    async def killed() -> None:
        with pytest.raises(TimeoutError):
            await use(server, tmp_path / "w1", timeout=3)

    asyncio.run(killed())
    assert (agents(tmp_path) / f".{NAME}.lock").is_dir(), "what is killed cleans nothing up"
    (tools / "log.hangs").unlink()
    begun = time.monotonic()
    asyncio.run(use(server, tmp_path / "w2"))
    assert time.monotonic() - begun > 3
    assert calls(tools) == 2
    left = sorted(path.name for path in agents(tmp_path).iterdir())
    assert left[-1] == NAME
    assert [name for name in left if name.endswith(".lock")] == []
    # A torn install is removed by one that comes an hour later.
    (torn,) = [path for path in agents(tmp_path).iterdir() if path.name.endswith(".part")]
    os.utime(torn, (time.time() - 7200,) * 2)
    subprocess.run(["rm", "-rf", str(agents(tmp_path) / NAME)], check=True)
    asyncio.run(use(server, tmp_path / "w3"))
    assert [path.name for path in agents(tmp_path).iterdir()] == [NAME]


def test_an_install_that_lives_is_waited_for(
    server: Sshd, tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than a lock without a sign of life would be respected."""
    monkeypatch.setattr(install, "STALE_SECONDS", 3)
    text = (tools / "npm").read_text()
    (tools / "npm").write_text(text.replace("sleep 1\n", "sleep 7\n"))

    async def main() -> None:
        await asyncio.gather(*(use(server, tmp_path / f"w{number}") for number in range(2)))

    asyncio.run(main())
    assert calls(tools) == 1
