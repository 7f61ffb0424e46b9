"""`Box.forward`: a port of this machine's loopback, reached from within each kind of box."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.docker_engine import needs_docker, on_engine
from support.sshd import MISSING, sshd

from ageval_boxes.docker_box import DockerBox
from ageval_boxes.local import LocalBox
from pytest_ageval.box import Box, BoxSpec

needs_sshd = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

#: Sends 300 kB and shows how much of it came back.
CLIENT = """
import socket, sys, threading
host, port = sys.argv[1].rsplit(":", 1)
with socket.create_connection((host, int(port)), 10) as s:
    s.settimeout(20)
    data = b"x" * 300_000
    threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR))).start()
    total = 0
    while got := s.recv(65536):
        total += len(got)
print(total)
"""


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """A port of the loopback that gives back what it gets."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def drive(box: Box, body: Callable[[int], Awaitable[None]]) -> None:
    async def main() -> None:
        async with echo() as port:
            try:
                await box.start()
                await body(port)
            finally:
                await box.stop()

    asyncio.run(asyncio.wait_for(main(), 90))


async def reached(box: Box, where: str) -> str:
    done = await box.exec([*box.python_command(), "-c", CLIENT, where], timeout=60)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def spec(kind: str, work: Path, options: dict[str, Any], **more: Any) -> BoxSpec:
    labels = {"ageval.run": f"forward-{os.getpid()}", "ageval.attempt": work.parent.name}
    return BoxSpec(kind, "a1", "t", work, options=options, labels=labels, **more)


@pytest.mark.parametrize("isolation", ["auto", "none"])
def test_local(tmp_path: Path, isolation: str) -> None:
    box = LocalBox(spec("local", tmp_path / "w", {"isolation": isolation}))

    async def body(port: int) -> None:
        where = await box.forward(port)
        assert where is not None
        assert await reached(box, where) == "300000"

    drive(box, body)


@pytest.mark.docker
@needs_docker
def test_docker(tmp_path: Path) -> None:
    box = DockerBox(spec("docker", tmp_path / "w", {}))
    other = DockerBox(spec("docker", tmp_path / "o", {}))

    async def body(port: int) -> None:
        where = await box.forward(port)
        assert where is not None
        assert not where.startswith(("127.", "0.0.0.0"))
        assert await reached(box, where) == "300000"
        assert await box.forward(port) == where
        # This machine's own loopback stays out of reach, and the relay is for this container alone.
        assert "refused" in await reached(box, f"127.0.0.1:{port}")
        try:
            await other.start()
            assert await reached(other, where) == "0" or "Reset" in await reached(other, where)
        finally:
            await other.stop()
        host, _, number = where.rpartition(":")
        await box.stop()
        with pytest.raises(OSError):
            await asyncio.open_connection(host, int(number))

    drive(box, body)


@pytest.mark.docker
@needs_docker
def test_docker_without_another_way_out(tmp_path: Path) -> None:
    options = {"egress": "llm"}
    urls = ["http://192.0.2.1:9/v1"]
    box = DockerBox(spec("docker", tmp_path / "w", options, model_urls=urls, gateway=True))

    async def body(port: int) -> None:
        where = await box.forward(port)
        assert where is not None
        assert await reached(box, where) == "300000"
        said = await box.exec(["curl", "-sS", "-m", "5", urls[0]])
        assert "is not on the list" in said.stdout

    drive(box, body)
    assert on_engine(f"ageval.box={box.handle()['id']}") == []


@pytest.mark.docker
@needs_docker
def test_docker_without_a_network(tmp_path: Path) -> None:
    box = DockerBox(spec("docker", tmp_path / "w", {"network": "none"}))

    async def body(port: int) -> None:
        assert await box.forward(port) is None

    drive(box, body)


@pytest.mark.ssh
@needs_sshd
def test_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ageval_boxes.ssh import SshBox

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with sshd(tmp_path / "sshd") as server:
        box, second = (SshBox(spec("ssh", tmp_path / name, server.options)) for name in "ab")

        async def body(port: int) -> None:
            where = await box.forward(port)
            assert where is not None
            assert where != f"127.0.0.1:{port}"
            found = await asyncio.gather(*(reached(box, where) for _ in range(5)))
            assert found == ["300000"] * 5
            try:
                await second.start()
                assert await second.forward(port) == where
            finally:
                await second.stop()

        drive(box, body)


@pytest.mark.ssh
@needs_sshd
def test_ssh_whose_server_forwards_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ageval_boxes.ssh import SshBox

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with sshd(tmp_path / "sshd", AllowTcpForwarding="no") as server:
        box = SshBox(spec("ssh", tmp_path / "a", server.options))

        async def body(port: int) -> None:
            assert await box.forward(port) is None

        drive(box, body)
