"""Copies of the ssh box when the connection breaks in the middle: they go on where they were."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("paramiko")

from support.sshd import MISSING, Sshd, sshd
from support.tcp_proxy import Proxy, proxy

from ageval_boxes import _ssh_copies
from ageval_boxes.ssh import SshBox
from pytest_ageval.box import WORKSPACE, BoxSpec
from pytest_ageval.errors import BoxError

pytestmark = [pytest.mark.ssh, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]

MB = 1024 * 1024
SIZE = 24 * MB


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running
        assert running.roots() == []


@pytest.fixture
def wire(server: Sshd) -> Iterator[Proxy]:
    with proxy(server.port) as running:
        yield running


@pytest.fixture
def box(server: Sshd, wire: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshBox:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    key = (server.directory / "host.pub").read_text().strip()
    options = {**server.options, "port": wire.port, "host_key": key}
    return SshBox(
        BoxSpec("ssh", "a", "t", tmp_path / "work", options=options, labels={"ageval.attempt": "a"})
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three files of which the middle one is large."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a first").write_text("first")
    (tree / "b").write_bytes(os.urandom(SIZE))
    (tree / "c").symlink_to("b")
    (tree / "d").write_text("last")
    return tree


def drive(box: SshBox, body: Callable[[], Awaitable[Any]]) -> None:
    async def main() -> None:
        try:
            await box.start()
            await body()
        finally:
            await box.stop()

    asyncio.run(asyncio.wait_for(main(), 60))


def same(one: Path, other: Path) -> bool:
    names = sorted(path.name for path in one.iterdir())
    return names == sorted(path.name for path in other.iterdir()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


def test_an_upload_goes_on_where_it_was(box: SshBox, wire: Proxy, tree: Path) -> None:
    async def body() -> None:
        sent = wire.counts["up"]
        wire.cuts["up"] = [sent + SIZE * 2 // 3]
        await box.upload(tree, f"{WORKSPACE}/x")
        assert wire.cuts["up"] == [], "it was cut"
        assert wire.counts["up"] - sent < SIZE * 1.25, "not from the beginning"
        assert wire.connections == 2
        assert same(Path(box.visible_path(f"{WORKSPACE}/x")), tree)
        staging = Path(box.visible_path(WORKSPACE)).parents[1] / "staging"
        assert list(staging.iterdir()) == []

    drive(box, body)


def test_a_download_goes_on_where_it_was(box: SshBox, wire: Proxy, tree: Path, tmp_path: Path) -> None:
    async def body() -> None:
        shutil.copytree(tree, box.visible_path(f"{WORKSPACE}/x"), symlinks=True)
        come = wire.counts["down"]
        wire.cuts["down"] = [come + SIZE * 2 // 3]
        await box.download(f"{WORKSPACE}/x", tmp_path / "back")
        assert wire.cuts["down"] == [], "it was cut"
        assert wire.counts["down"] - come < SIZE * 1.25, "not from the beginning"
        assert wire.connections == 2
        assert same(tmp_path / "back", tree)

    drive(box, body)


def test_a_download_whose_acknowledgement_finds_no_way_out_goes_on(
    box: SshBox, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paramiko raises EOFError from `recv`, what was read is gone, and the connection passes for alive."""
    import paramiko

    receive, come, broken = paramiko.Channel.recv, 0, 0

    def recv(channel: paramiko.Channel, size: int) -> bytes:
        nonlocal come, broken
        data = receive(channel, size)
        come += len(data)
        if come > SIZE // 2 and not broken:
            broken = len(data)
            raise EOFError
        return data

    async def body() -> None:
        shutil.copytree(tree, box.visible_path(f"{WORKSPACE}/x"), symlinks=True)
        monkeypatch.setattr(paramiko.Channel, "recv", recv)
        await box.download(f"{WORKSPACE}/x", tmp_path / "back")
        assert broken, "it was broken"
        assert same(tmp_path / "back", tree)

    drive(box, body)


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_second_cut_is_an_error(box: SshBox, wire: Proxy, tree: Path, tmp_path: Path, way: str) -> None:
    """Nothing is replaced, nothing stays, and the box goes on."""

    async def body() -> None:
        place = Path(box.visible_path(f"{WORKSPACE}/x"))
        assert (await box.exec(["sh", "-c", f"mkdir x; head -c {SIZE} /dev/urandom > x/b"])).ok
        done = wire.counts[way]
        wire.cuts[way] = [done + SIZE // 3, done + SIZE * 2 // 3]
        with pytest.raises(BoxError) as found:
            if way == "up":
                await box.upload(tree, f"{WORKSPACE}/x")
            else:
                await box.download(f"{WORKSPACE}/x", tmp_path / "back")
        assert found.value.title == "environment_connection_lost"
        assert (await box.exec(["ls", "x"])).stdout == "b\n"
        assert not (tmp_path / "back").exists()
        assert [name for name in os.listdir(tmp_path) if "back" in name] == []
        staging = place.parents[2] / "staging"
        assert list(staging.iterdir()) == []

    drive(box, body)


def test_an_upload_whose_source_changed_begins_anew(
    box: SshBox, wire: Proxy, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digests of what had arrived differ: it is not glued to something else."""
    pack = _ssh_copies.pack
    times = []

    def changing(source: Path, name: str, out: Any) -> list[str]:
        if times:
            (tree / "a first").write_text("other")
        times.append(1)
        return pack(source, name, out)

    monkeypatch.setattr(_ssh_copies, "pack", changing)

    async def body() -> None:
        wire.cuts["up"] = [wire.counts["up"] + SIZE // 2]
        await box.upload(tree, f"{WORKSPACE}/x")
        assert same(Path(box.visible_path(f"{WORKSPACE}/x")), tree)

    drive(box, body)
    assert len(times) == 3


def test_a_download_that_changed_meanwhile_is_refused(
    box: SshBox, wire: Proxy, tree: Path, tmp_path: Path
) -> None:
    async def body() -> None:
        place = Path(box.visible_path(f"{WORKSPACE}/x"))
        shutil.copytree(tree, place, symlinks=True)
        cut = wire.cut

        def change_and_cut() -> None:
            wire.cut = cut  # type: ignore[method-assign]
            (place / "b").write_bytes(os.urandom(SIZE))
            cut()

        wire.cut = change_and_cut  # type: ignore[method-assign]
        wire.cuts["down"] = [wire.counts["down"] + SIZE // 2]
        with pytest.raises(BoxError) as found:
            await box.download(f"{WORKSPACE}/x", tmp_path / "back")
        assert found.value.title == "environment_download_failed"
        assert "changed" in found.value.message
        assert not (tmp_path / "back").exists()

    drive(box, body)


def test_a_small_upload_is_sent_again(box: SshBox, wire: Proxy, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(os.urandom(4 * MB))

    async def body() -> None:
        wire.cuts["up"] = [wire.counts["up"] + 2 * MB]
        await box.upload(small, f"{WORKSPACE}/small")
        assert wire.cuts["up"] == []
        await box.download(f"{WORKSPACE}/small", tmp_path / "back")

    drive(box, body)
    assert (tmp_path / "back").read_bytes() == small.read_bytes()
