"""Tar streams that come out of a box: whatever they hold, nothing outside of the destination changes."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from ageval_boxes._files import Budget
from ageval_boxes._tar import pack, unpack
from pytest_ageval.errors import BoxError


def stream(*members: tuple[str, str, bytes | str]) -> io.BytesIO:
    """A tar stream of (name, kind, contents or target)."""
    out = io.BytesIO()
    kinds = {
        "dir": tarfile.DIRTYPE,
        "link": tarfile.SYMTYPE,
        "hard": tarfile.LNKTYPE,
        "fifo": tarfile.FIFOTYPE,
    }
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type = kinds.get(kind, tarfile.REGTYPE)
            member.mode = 0o4755
            if isinstance(content, str):
                member.linkname = content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    out.seek(0)
    return out


def budget(**limits: float) -> Budget:
    return Budget("environment_download_too_large", **limits)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.mkdir()
    (path / "file").write_text("untouched")
    return path


def untouched(victim: Path) -> bool:
    return [path.name for path in victim.iterdir()] == ["file"] and (
        victim / "file"
    ).read_text() == "untouched"


@pytest.mark.parametrize("name", ["../victim/file", "x/../../victim/file", "/x", "y", "x/../x/f", ".."])
def test_names_that_lead_out(tmp_path: Path, victim: Path, name: str) -> None:
    with pytest.raises(BoxError):
        unpack(stream(("x", "dir", b""), (name, "file", b"bad")), "x", tmp_path / "dest", budget())
    assert untouched(victim)
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]


def test_writing_through_a_link(tmp_path: Path, victim: Path) -> None:
    """A link, then a file below its name: the file wins, and the link is not followed."""
    found = stream(
        ("x", "dir", b""),
        ("x/l", "link", str(victim)),
        ("x/l/file", "file", b"bad"),
        ("x/m", "link", str(victim / "file")),
        ("x/m", "file", b"bad"),
    )
    assert unpack(found, "x", tmp_path / "dest", budget())
    assert untouched(victim)
    assert (tmp_path / "dest/l/file").read_bytes() == b"bad"
    assert not (tmp_path / "dest/l").is_symlink()


@pytest.mark.parametrize(
    "target", ["../victim/file", "/etc/passwd", "x/l", "x/nothing", "x/../../victim/file"]
)
def test_second_names_of_files_outside(tmp_path: Path, victim: Path, target: str) -> None:
    notes = budget()
    found = stream(("x", "dir", b""), ("x/l", "link", str(victim / "file")), ("x/h", "hard", target))
    unpack(found, "x", tmp_path / "dest", notes)
    assert not (tmp_path / "dest/h").exists()
    assert len(notes.notes) == 1


def test_second_names_of_files_inside_are_copies(tmp_path: Path) -> None:
    unpack(
        stream(("x", "dir", b""), ("x/f", "file", b"c"), ("x/h", "hard", "x/f")),
        "x",
        tmp_path / "d",
        budget(),
    )
    assert (tmp_path / "d/h").read_bytes() == b"c"
    assert (tmp_path / "d/h").stat().st_nlink == 1


def test_no_setuid_and_no_special_files(tmp_path: Path) -> None:
    notes = budget()
    unpack(stream(("x", "dir", b""), ("x/f", "file", b"c"), ("x/p", "fifo", "")), "x", tmp_path / "d", notes)
    assert oct((tmp_path / "d/f").stat().st_mode)[-4:] == "0755"
    assert not (tmp_path / "d/p").exists()
    assert notes.notes == ["x/p: a special file, left out"]


def test_too_much(tmp_path: Path) -> None:
    many = [(f"x/{number}", "file", b"12345678") for number in range(20)]
    for limit in ({"max_bytes": 100}, {"max_files": 10}):
        with pytest.raises(BoxError) as refused:
            unpack(stream(("x", "dir", b""), *many), "x", tmp_path / "dest", budget(**limit))
        assert refused.value.title == "environment_download_too_large"
    deep = "x" + "/d" * 200
    with pytest.raises(BoxError):
        unpack(stream((deep, "dir", b"")), "x", tmp_path / "dest", budget())
    assert list(tmp_path.iterdir()) == []


def test_half_a_stream(tmp_path: Path) -> None:
    whole = stream(("x", "dir", b""), ("x/f", "file", os.urandom(100_000))).getvalue()
    (tmp_path / "dest").write_text("before")
    with pytest.raises((tarfile.TarError, OSError)):
        unpack(io.BytesIO(whole[:50_000]), "x", tmp_path / "dest", budget())
    assert (tmp_path / "dest").read_text() == "before"


def test_pack_leaves_special_files_out(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    os.mkfifo(tree / "pipe")
    (tree / "f").write_text("c")
    out = io.BytesIO()
    assert pack(tree, "x", out) == ["x/pipe: a special file, left out"]
    out.seek(0)
    assert unpack(out, "x", tmp_path / "back", budget())
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["f"]
