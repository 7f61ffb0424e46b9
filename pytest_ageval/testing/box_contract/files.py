"""The box contract: copying in and out."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from pytest_ageval.box import (
    EVALUATION,
    WORKSPACE,
    Box,
    BoxSpec,
)
from pytest_ageval.errors import BoxError
from pytest_ageval.testing.box_contract.base import (
    Drive,
    Hooks,
    reason,
)


class Files(Hooks):
    """Copying in and out."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        """A directory with one of everything that a copy must keep."""
        tree = tmp_path / "tree"
        (tree / "empty directory").mkdir(parents=True)
        (tree / "deep" / "er").mkdir(parents=True)
        (tree / "deep" / "er" / "binary").write_bytes(bytes(range(256)) * 100)
        (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (tree / "run.sh").chmod(0o755)
        (tree / "private").write_text("p")
        (tree / "private").chmod(0o600)
        (tree / "no bytes").touch()
        (tree / "żółć 漢字 🎉").write_text("unicode")
        (tree / "line\nbreak 'quote' \"double\" $x *").write_text("odd")
        (tree / "-dash").write_text("dash")
        (tree / "link").symlink_to("deep/er/binary")
        (tree / "dangling").symlink_to("/no/such/place")
        (tree / "link to directory").symlink_to("deep")
        (tree / "deep").chmod(0o750)
        return tree

    @staticmethod
    def listing(root: Path) -> dict[str, tuple[str, int, bytes | str]]:
        """Everything below `root`: kind, mode, and contents or target."""
        found: dict[str, tuple[str, int, bytes | str]] = {}
        for path in sorted(root.rglob("*")):
            mode = stat.S_IMODE(path.lstat().st_mode)
            name = str(path.relative_to(root))
            if path.is_symlink():
                found[name] = ("link", 0, str(path.readlink()))
            elif path.is_dir():
                found[name] = ("directory", mode, "")
            else:
                found[name] = ("file", mode, path.read_bytes())
        return found

    def test_tree_comes_back_as_it_was(self, drive: Drive, tree: Path, tmp_path: Path) -> None:
        """Up and down again: contents, modes, links as links, empty directories, any name."""

        async def body(box: Box) -> None:
            await box.upload(tree, f"{WORKSPACE}/a new/place")
            await box.download(f"{WORKSPACE}/a new/place", tmp_path / "back" / "again")

        drive(body)
        assert self.listing(tmp_path / "back" / "again") == self.listing(tree)

    def test_uploaded_program_runs(self, drive: Drive, tree: Path) -> None:
        """The executable bit arrives: an uploaded script can be run."""

        async def body(box: Box) -> None:
            await box.upload(tree / "run.sh", f"{WORKSPACE}/bin/run.sh")
            assert (await box.exec(["./bin/run.sh"])).stdout == "ran\n"

        drive(body)

    def test_upload_replaces(self, drive: Drive, tree: Path) -> None:
        """A tree replaces what was there, also a file; a file replaces a file and a directory."""

        async def body(box: Box) -> None:
            await box.exec(["sh", "-c", "mkdir -p place/old; touch place/old/file file; mkdir -p dir/x"])
            await box.upload(tree, f"{WORKSPACE}/place")
            assert not (await box.exec(["test", "-e", "place/old"])).ok
            assert (await box.exec(["test", "-x", "place/run.sh"])).ok
            await box.upload(tree, f"{WORKSPACE}/file")
            assert (await box.exec(["test", "-d", "file/deep"])).ok
            for name in ("place/private", "dir"):
                await box.upload(tree / "run.sh", f"{WORKSPACE}/{name}")
                assert (await box.exec([f"./{name}"])).stdout == "ran\n"

        drive(body)

    def test_download_replaces(self, drive: Drive, tmp_path: Path) -> None:
        """A download replaces what was at the destination, file or tree."""
        dest = tmp_path / "dest"
        (dest / "old").mkdir(parents=True)

        async def body(box: Box) -> None:
            await box.exec(["sh", "-c", "mkdir d; echo 1 > d/f; echo 2 > file"])
            await box.download(f"{WORKSPACE}/d", dest)
            assert self.listing(dest).keys() == {"f"}
            await box.download(f"{WORKSPACE}/file", dest)
            assert dest.read_text() == "2\n"

        drive(body)

    def test_missing_sources(self, drive: Drive, tmp_path: Path) -> None:
        """``environment_upload_missing`` and ``environment_download_missing``, and nothing is created."""

        async def body(box: Box) -> None:
            with pytest.raises(BoxError) as refused:
                await box.upload(tmp_path / "nothing", f"{WORKSPACE}/nothing")
            assert reason(refused) == "environment_upload_missing"
            with pytest.raises(BoxError) as refused:
                await box.download(f"{WORKSPACE}/nothing/at/all", tmp_path / "out")
            assert reason(refused) == "environment_download_missing"
            assert not (tmp_path / "out").exists()

        drive(body)

    @pytest.mark.parametrize("path", ["/etc/passwd", "workspace/x", f"{WORKSPACE}/../../etc/x", "/attempted"])
    def test_paths_outside_are_refused(self, drive: Drive, tmp_path: Path, path: str) -> None:
        """Uploads to and downloads from a path not below ``/attempt``: ``environment_path_invalid``."""
        source = tmp_path / "source"
        source.write_text("x")

        async def body(box: Box) -> None:
            with pytest.raises(BoxError) as refused:
                await box.upload(source, path)
            assert reason(refused) == "environment_path_invalid"
            with pytest.raises(BoxError) as refused:
                await box.download(path, tmp_path / "out")
            assert reason(refused) == "environment_path_invalid"

        drive(body)

    def test_links_do_not_lead_out_of_the_box(self, drive: Drive, tmp_path: Path) -> None:
        """Links that the agent made lead neither a download nor an upload to a file of the host."""
        secret = tmp_path / "host" / "secret"
        secret.parent.mkdir()
        secret.write_text("HOST-SECRET")

        async def body(box: Box) -> None:
            script = 'ln -s "$1" file; ln -s "$(dirname "$1")" directory; ln -s "../../../../../$1" up'
            assert (await box.exec(["sh", "-c", script, "sh", str(secret)])).ok
            await box.download(WORKSPACE, tmp_path / "out")
            for name in ("file", "up", "directory/secret"):
                await self._try_download(box, f"{WORKSPACE}/{name}", tmp_path / "one")
            source = tmp_path / "source"
            source.write_text("overwritten")
            for name in ("directory/secret", "directory/new", "file"):
                await self._try_upload(box, source, f"{WORKSPACE}/{name}")

        drive(body)
        assert secret.read_text() == "HOST-SECRET"
        assert [path.name for path in secret.parent.iterdir()] == ["secret"]
        for path in (tmp_path / "out").iterdir():
            assert path.is_symlink(), f"{path} was followed"

    @staticmethod
    async def _try_download(box: Box, path: str, dest: Path) -> None:
        try:
            await box.download(path, dest)
        except BoxError:
            return
        assert dest.is_symlink() or dest.read_text() != "HOST-SECRET"  # noqa: ASYNC240

    @staticmethod
    async def _try_upload(box: Box, source: Path, path: str) -> None:
        try:
            await box.upload(source, path)
        except BoxError:
            return

    def test_special_files_do_not_block(self, drive: Drive, tmp_path: Path) -> None:
        """A FIFO among the artifacts is left out; the rest arrives."""

        async def body(box: Box) -> None:
            assert (await box.exec(["sh", "-c", "mkfifo pipe; echo x > file"])).ok
            await asyncio.wait_for(box.download(WORKSPACE, tmp_path / "out"), 30)

        drive(body)
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["file"]

    def test_gold_appears_when_uploaded(self, drive: Drive, spec: BoxSpec) -> None:
        """Before the upload of gold there is no evaluation directory and, isolated, no way to the host's."""
        assert spec.dataset_root is not None
        gold = next(spec.dataset_root.rglob("expected.json"))

        async def body(box: Box) -> None:
            inside = box.visible_path(f"{EVALUATION}/expected.json")
            assert not (await box.exec(["test", "-e", inside])).ok
            if self.isolated:
                assert "THE-GOLD" not in (await box.exec(["cat", str(gold)])).stdout
            await box.upload(gold.parent, EVALUATION)
            assert (await box.exec(["cat", inside])).stdout == "THE-GOLD"

        drive(body)

    def test_host_path_is_the_same_file(self, drive: Drive) -> None:
        """Where `host_path` gives a path, it leads to the file that the box sees."""

        async def body(box: Box) -> None:
            path = box.host_path(f"{WORKSPACE}/shared")
            if path is None:
                return
            await box.exec(["sh", "-c", "echo from the box > shared"])
            assert path.read_text() == "from the box\n"

        drive(body)

    def test_heavy_file(self, drive: Drive, tmp_path: Path) -> None:
        """50 MB go up and come down unchanged."""
        big = tmp_path / "big"
        big.write_bytes(os.urandom(1024 * 1024) * 50)

        async def body(box: Box) -> None:
            await box.upload(big, f"{WORKSPACE}/big")
            await box.download(f"{WORKSPACE}/big", tmp_path / "back")

        drive(body)
        assert (tmp_path / "back").read_bytes() == big.read_bytes()
