"""The mirror of a workspace that the host does not share: a local box that hides where its files are."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ageval_boxes.local import LocalBox
from pytest_ageval.attempt.mirror import Mirror, mirror_of, outermost
from pytest_ageval.box import BoxSpec


class Apart(LocalBox):
    """Its workspace cannot be reached from the host, as if it were far away."""

    downloads = 0

    def host_path(self, path: str) -> Path | None:  # type: ignore[override]
        return None

    async def download(self, source: str, dest: Path, *, service: str | None = None) -> None:
        self.downloads += 1
        await super().download(source, dest, service=service)


class Holder:
    """What a mirror needs of an attempt."""

    def __init__(self, box: LocalBox) -> None:
        self.raw_box = box
        self.mirror: Mirror | None = None
        self.facts: list[tuple[str, Any]] = []

    def fact(self, name: str, detail: Any = None) -> None:
        self.facts.append((name, detail))


Body = Callable[[Apart, Mirror, Holder], Awaitable[None]]


@pytest.fixture
def drive(tmp_path: Path) -> Callable[[Body], None]:
    def run(body: Body) -> None:
        async def main() -> None:
            spec = BoxSpec("local", "a", "t", tmp_path / "work", options={"isolation": "none"})
            box = Apart(spec)
            await box.start()
            try:
                holder = Holder(box)
                mirror = mirror_of(holder)  # type: ignore[arg-type]
                assert mirror is not None
                assert mirror_of(holder) is mirror  # type: ignore[arg-type]
                await body(box, mirror, holder)
            finally:
                await box.stop()

        asyncio.run(main())

    return run


async def sh(box: LocalBox, script: str) -> str:
    done = await box.exec(["sh", "-c", script])
    assert done.ok, done.stderr
    return done.stdout


def test_no_mirror_where_files_are_shared(tmp_path: Path) -> None:
    holder = Holder(LocalBox(BoxSpec("local", "a", "t", tmp_path / "work")))
    assert mirror_of(holder) is None  # type: ignore[arg-type]
    assert not (tmp_path / "work").exists()


def test_what_the_agent_does_arrives(drive: Callable[[Body], None]) -> None:
    async def body(box: Apart, mirror: Mirror, holder: Holder) -> None:
        await sh(box, "mkdir -p a/b; echo 1 > a/b/f; echo 1 > g; ln -s a/b/f l; mkdir e; chmod 755 g")
        await mirror.pull()
        root = mirror.directory
        assert (root / "a/b/f").read_text() == "1\n"
        assert os.access(root / "g", os.X_OK)
        assert os.readlink(root / "l") == "a/b/f"
        assert (root / "e").is_dir()
        # Same size, same second, and a file in place of a directory and the other way round.
        await sh(box, "echo 2 > a/b/f; rm -r e l; echo x > e; rm g; mkdir g; echo y > g/h")
        await mirror.pull()
        assert (root / "a/b/f").read_text() == "2\n"
        assert (root / "e").read_text() == "x\n"
        assert (root / "g/h").read_text() == "y\n"
        assert not (root / "l").is_symlink()

    drive(body)


def test_the_directory_itself_stays(drive: Callable[[Body], None]) -> None:
    """run.py may have it as its current directory."""

    async def body(box: Apart, mirror: Mirror, holder: Holder) -> None:
        before = mirror.directory.stat().st_ino
        await sh(box, "echo 1 > f")
        await mirror.pull()
        assert mirror.directory.stat().st_ino == before

    drive(body)


def test_what_the_script_does_arrives(drive: Callable[[Body], None]) -> None:
    async def body(box: Apart, mirror: Mirror, holder: Holder) -> None:
        await sh(box, "mkdir d; echo 1 > d/f; echo 1 > keep; echo 1 > g")
        await mirror.pull()
        root = mirror.directory
        (root / "d/f").write_text("2\n")
        (root / "new/deep").mkdir(parents=True)
        (root / "new/deep/file").write_text("n")
        (root / "g").unlink()
        (root / "run.sh").write_text("echo ran\n")
        (root / "run.sh").chmod(0o755)
        await sh(box, "echo box > d/other")
        await mirror.push()
        assert await sh(box, "cat d/f new/deep/file; ./run.sh; ls") == "2\nnran\nd\nkeep\nnew\nrun.sh\n"
        assert await sh(box, "cat d/other") == "box\n", "a changed file does not replace its directory"

    drive(body)


def test_the_script_wins(drive: Callable[[Body], None]) -> None:
    """On a path that both changed; everything else of both is kept."""

    async def body(box: Apart, mirror: Mirror, holder: Holder) -> None:
        await sh(box, "echo 1 > both; echo 1 > mine; echo 1 > theirs")
        await mirror.pull()
        root = mirror.directory
        (root / "both").write_text("script\n")
        (root / "mine").write_text("script\n")
        await sh(box, "echo agent > both; echo agent > theirs")
        await mirror.pull()
        found = {name: (root / name).read_text() for name in ("both", "mine", "theirs")}
        assert found == {"both": "script\n", "mine": "script\n", "theirs": "agent\n"}
        assert await sh(box, "cat both mine theirs") == "script\nscript\nagent\n"

    drive(body)


def test_changes_during_the_copy_are_not_lost(
    drive: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """run.py goes on while another session's invoke ends."""

    async def body(box: Apart, mirror: Mirror, holder: Holder) -> None:
        await sh(box, "echo 1 > f; echo 1 > g; mkdir d; echo 1 > d/h")
        await mirror.pull()
        download = box.download

        async def slow(source: str, dest: Path, *, service: str | None = None) -> None:
            await download(source, dest, service=service)
            (mirror.directory / "f").write_text("late\n")
            (mirror.directory / "new").write_text("late\n")
            (mirror.directory / "d/h").unlink()

        monkeypatch.setattr(box, "download", slow)
        await sh(box, "echo agent > g")
        await mirror.pull()
        assert (mirror.directory / "f").read_text() == "late\n"
        assert (mirror.directory / "g").read_text() == "agent\n"
        assert not (mirror.directory / "d/h").exists()
        await mirror.push()
        assert await sh(box, "cat f g new; ls d") == "late\nagent\nlate\n"

    drive(body)


def test_nothing_is_copied_when_nothing_changed(drive: Callable[[Body], None]) -> None:
    async def body(box: Apart, mirror: Mirror, holder: Holder) -> None:
        await sh(box, "echo 1 > f")
        await mirror.pull()
        await mirror.push()
        await mirror.pull()
        assert box.downloads == 1
        await sh(box, "touch -r f t; echo 2 > f; touch -r t f; rm t")
        await mirror.pull()
        assert box.downloads == 2
        assert (mirror.directory / "f").read_text() == "2\n"

    drive(body)


def test_links_to_the_host_are_left_out(drive: Callable[[Body], None], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")

    async def body(box: Apart, mirror: Mirror, holder: Holder) -> None:
        await sh(box, f"ln -s {secret} answer; ln -s ../../.. up; echo 1 > f; ln -s f fine")
        await mirror.pull()
        assert sorted(path.name for path in mirror.directory.iterdir()) == ["f", "fine"]
        assert holder.facts == [("links_left_out_of_mirror", {"links": ["answer", "up"]})]
        # They are the box's: what is not in the mirror for that reason is not removed there.
        (mirror.directory / "g").write_text("g")
        await mirror.push()
        assert await sh(box, "ls") == "answer\nf\nfine\ng\nup\n"

    drive(body)


def test_a_workspace_that_is_gone(drive: Callable[[Body], None]) -> None:
    async def body(box: Apart, mirror: Mirror, holder: Holder) -> None:
        await sh(box, "echo 1 > f")
        await mirror.pull()
        await box.exec(["sh", "-c", 'rm -rf "$AGEVAL_WORKSPACE"'], cwd="/attempt/home")
        await mirror.pull()
        assert list(mirror.directory.iterdir()) == []

    drive(body)


def test_directories_without_permissions(drive: Callable[[Body], None]) -> None:
    async def body(box: Apart, mirror: Mirror, holder: Holder) -> None:
        await sh(box, "mkdir -p d/e; echo 1 > d/e/f; chmod 555 d/e d")
        await mirror.pull()
        (mirror.directory / "d/e/g").write_text("g")
        await mirror.push()
        await sh(box, "chmod 755 d d/e; rm -r d")
        await mirror.pull()
        assert list(mirror.directory.iterdir()) == []
        assert not (mirror.directory.parent / "host-workspace.new").exists()

    drive(body)


def test_outermost() -> None:
    assert list(outermost(["a", "a-b", "a/b", "a/b/c", "b/c", "b/d/e"])) == ["a", "a-b", "b/c", "b/d/e"]
