"""Copying into and out of a directory that someone hostile may change."""

import os
import stat
from pathlib import Path, PurePosixPath

import pytest

from ageval_boxes._files import DEPTH, Budget, get, parent_of, put, remove_tree
from pytest_ageval.box import BoundedStream, clip
from pytest_ageval.errors import BoxError


@pytest.fixture
def box(tmp_path: Path) -> Path:
    (tmp_path / "box" / "workspace").mkdir(parents=True)
    return tmp_path / "box"


def upload(box: Path, source: Path, path: str) -> list[str]:
    return put(box, box.parent / "staging", source, PurePosixPath(path), "/attempt")


def download(box: Path, path: str, dest: Path, **limits: float) -> list[str]:
    budget = Budget("environment_download_too_large", **limits)
    return get(box, PurePosixPath(path), dest, "/attempt", budget)


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("../artifacts", "artifacts/f"),
        ("/attempt/artifacts", "artifacts/f"),
        ("./x/../../artifacts", "artifacts/f"),
        ("again", "artifacts/f"),
    ],
)
def test_links_inside_the_box_are_followed(box: Path, link: str, target: str) -> None:
    (box / "artifacts").mkdir()
    (box / "workspace" / "x").mkdir()
    (box / "workspace" / "again").symlink_to("/attempt/workspace/../artifacts")
    (box / "workspace" / "way").symlink_to(link)
    (box.parent / "f").write_text("through")
    upload(box, box.parent / "f", "/attempt/workspace/way/f")
    assert (box / target).read_text() == "through"


@pytest.mark.parametrize("link", ["/etc", "../../..", "/attempt/../etc", "/attempted", "self"])
def test_links_out_of_the_box_are_refused(box: Path, link: str) -> None:
    (box / "workspace" / "self").symlink_to("self")
    (box / "workspace" / "way").symlink_to(link)
    with pytest.raises(BoxError) as refused, parent_of(box, PurePosixPath("/attempt/workspace/way/f")):
        pass
    assert refused.value.title == "environment_path_invalid"


def test_a_file_in_the_way_is_not_a_directory(box: Path) -> None:
    (box / "workspace" / "file").touch()
    (box.parent / "f").touch()
    with pytest.raises(BoxError, match="'file' is not a directory"):
        upload(box, box.parent / "f", "/attempt/workspace/file/f")


def test_names_that_are_not_utf8_survive(box: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    name = os.fsdecode(b"caf\xe9")
    (tree / name).write_text("x")
    upload(box, tree, "/attempt/workspace/tree")
    download(box, "/attempt/workspace/tree", tmp_path / "back")
    assert os.listdir(os.fsencode(tmp_path / "back")) == [b"caf\xe9"]


def test_setuid_and_the_like_do_not_come_out(box: Path, tmp_path: Path) -> None:
    (box / "workspace" / "f").touch()
    (box / "workspace" / "f").chmod(0o6755)
    download(box, "/attempt/workspace/f", tmp_path / "f")
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o755


def test_times_are_kept(box: Path, tmp_path: Path) -> None:
    (box / "workspace" / "f").touch()
    os.utime(box / "workspace" / "f", (1, 1_000_000_000))
    download(box, "/attempt/workspace/f", tmp_path / "f")
    assert (tmp_path / "f").stat().st_mtime == 1_000_000_000


def test_directories_that_nobody_may_write_to_arrive(box: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner" / "f").touch()
    (tree / "inner").chmod(0o555)
    tree.chmod(0o555)
    upload(box, tree, "/attempt/workspace/tree")
    upload(box, tree, "/attempt/workspace/tree")
    download(box, "/attempt/workspace/tree", tmp_path / "back")
    for root in (box / "workspace" / "tree", tmp_path / "back"):
        assert stat.S_IMODE(root.stat().st_mode) == 0o555
        assert stat.S_IMODE((root / "inner").stat().st_mode) == 0o555
        assert (root / "inner" / "f").exists()


def test_the_whole_box_can_be_downloaded(box: Path, tmp_path: Path) -> None:
    (box / "workspace" / "f").write_text("x")
    download(box, "/attempt", tmp_path / "all")
    assert (tmp_path / "all" / "workspace" / "f").read_text() == "x"


def test_deep_nesting_is_refused_and_leaves_nothing(box: Path, tmp_path: Path) -> None:
    deep = box / "workspace" / Path(*["d"] * (DEPTH + 2))
    deep.mkdir(parents=True)
    with pytest.raises(BoxError, match="nested too deeply"):
        download(box, "/attempt/workspace", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["box"]


def test_sizes_are_counted_while_copying(box: Path, tmp_path: Path) -> None:
    (box / "workspace" / "f").write_bytes(b"x" * 1000)
    download(box, "/attempt/workspace/f", tmp_path / "f", max_bytes=1000)
    with pytest.raises(BoxError, match="environment_download_too_large: more bytes"):
        download(box, "/attempt/workspace/f", tmp_path / "g", max_bytes=999)


def test_a_file_that_is_too_large_is_refused_before_it_is_copied(box: Path, tmp_path: Path) -> None:
    """A file of holes costs its writer nothing, and its copy all of the disk."""
    with (box / "workspace" / "f").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(BoxError, match="more bytes") as error:
        download(box, "/attempt/workspace", tmp_path / "copy", max_bytes=4 * 1024**3)
    assert error.value.title == "environment_download_too_large"
    assert sum(p.stat().st_blocks for p in tmp_path.rglob("*") if p.is_file()) < 100


def test_an_upload_of_a_device_is_refused(box: Path) -> None:
    with pytest.raises(BoxError, match="neither a file nor a directory"):
        upload(box, Path("/dev/null"), "/attempt/workspace/null")


def test_remove_tree_removes_anything(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "locked" / "inner").mkdir(parents=True)
    (top / "locked" / "inner" / "f").touch()
    (top / "link").symlink_to(tmp_path)
    (top / "locked" / "inner").chmod(0)
    (top / "locked").chmod(0o555)
    top.chmod(0)
    remove_tree(top)
    assert [path.name for path in tmp_path.iterdir()] == []
    remove_tree(top)


def test_remove_tree_is_not_afraid_of_depth(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("directory", dir_fd=fd)
        inner = os.open("directory", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    remove_tree(top)
    assert not top.exists()


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize("total", [0, 10, 63, 64, 65, 1000])
def test_a_bounded_stream_says_what_clip_says(size: int, total: int) -> None:
    data = bytes(33 + number % 90 for number in range(total))
    stream = BoundedStream(64)
    for start in range(0, total, size):
        stream.feed(data[start : start + size])
    assert stream.text() == clip(data, 64)
