"""Archives that come out of a box are not trusted; nothing in one makes us write elsewhere."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from ageval_boxes._files import Budget
from ageval_boxes._remote_tar import read_archive, write_archive
from pytest_ageval.errors import BoxError


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", link: str = "", mode: int = 0o644
) -> tuple:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mode = kind, len(data), link, mode
    return info, data


ROOT = entry("./tree", tarfile.DIRTYPE, mode=0o755)


def unpack(tmp_path: Path, *entries: tuple, **limits: float) -> tuple[Path, list[str]]:
    archive = tmp_path / "archive"
    with tarfile.open(archive, "w") as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    dest = tmp_path / "out" / "tree"
    return dest, read_archive(archive, "tree", dest, Budget("too_much", **limits))


def everything_below(path: Path) -> set[str]:
    return {str(found.relative_to(path)) for found in path.rglob("*")}


@pytest.mark.parametrize(
    "name", ["../escaped", "/tmp/escaped-by-tar", "./tree/../../escaped", "./other/file", "./tree/no/parent"]
)
def test_names_that_lead_elsewhere_are_left_out(tmp_path: Path, name: str) -> None:
    dest, notes = unpack(tmp_path, ROOT, entry(name, data=b"bad"), entry("./tree/good", data=b"good"))
    assert everything_below(dest) == {"good"}
    assert len(notes) == 1
    assert everything_below(tmp_path) == {"archive", "out", "out/tree", "out/tree/good"}
    assert not Path("/tmp/escaped-by-tar").exists()


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    """A link first, then a file "below" it: the link is kept, the file is not."""
    victim = tmp_path / "victim"
    victim.mkdir()
    link = entry("./tree/link", tarfile.SYMTYPE, link=str(victim))
    dest, notes = unpack(tmp_path, ROOT, link, entry("./tree/link/file", data=b"bad"))
    assert os.readlink(dest / "link") == str(victim)
    assert list(victim.iterdir()) == []
    assert notes == ["./tree/link/file: not in a directory of the archive, left out"]


def test_no_file_is_written_over_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    link = entry("./tree/name", tarfile.SYMTYPE, link=str(victim))
    dest, notes = unpack(tmp_path, ROOT, link, entry("./tree/name", data=b"bad"))
    assert victim.read_text() == "as it was"
    assert (dest / "name").is_symlink()
    assert notes == ["./tree/name: comes twice, left out"]


def test_hard_links_become_copies_of_what_the_archive_holds(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    dest, notes = unpack(
        tmp_path,
        ROOT,
        entry("./tree/first", data=b"shared"),
        entry("./tree/second", tarfile.LNKTYPE, link="./tree/first"),
        entry("./tree/bad", tarfile.LNKTYPE, link=str(secret)),
    )
    assert everything_below(dest) == {"first", "second"}
    assert (dest / "second").read_bytes() == b"shared"
    assert len(notes) == 1


def test_devices_are_left_out(tmp_path: Path) -> None:
    dest, notes = unpack(
        tmp_path, ROOT, entry("./tree/dev", tarfile.CHRTYPE), entry("./tree/fifo", tarfile.FIFOTYPE)
    )
    assert everything_below(dest) == set()
    assert len(notes) == 2


@pytest.mark.parametrize("limits", [{"max_bytes": 10}, {"max_files": 2}], ids=["bytes", "files"])
def test_too_much_is_refused_and_leaves_what_was_there(tmp_path: Path, limits: dict[str, float]) -> None:
    old = tmp_path / "out" / "tree"
    old.mkdir(parents=True)
    (old / "old").touch()
    with pytest.raises(BoxError) as refused:
        unpack(tmp_path, ROOT, entry("./tree/a", data=b"123456"), entry("./tree/b", data=b"123456"), **limits)
    assert refused.value.title == "too_much"
    assert everything_below(tmp_path / "out") == {"tree", "tree/old"}


def test_no_setuid(tmp_path: Path) -> None:
    dest, _notes = unpack(tmp_path, ROOT, entry("./tree/tool", data=b"x", mode=0o4755))
    assert (dest / "tool").stat().st_mode & 0o7777 == 0o755


def test_garbage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(b"no archive" * 1000)
    with pytest.raises(BoxError) as refused:
        read_archive(tmp_path / "archive", "tree", tmp_path / "out", Budget("too_much"))
    assert refused.value.title == "environment_download_failed"


def test_special_source_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(BoxError) as refused:
        write_archive(tmp_path / "fifo", tmp_path / "archive")
    assert refused.value.title == "environment_upload_missing"
