"""Streams of files: what arrives is what was sent, or nothing."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from pytest_ageval.across.packing import Broken, Spool, below, pack, unpack_in_place_of, unpack_trusted
from pytest_ageval.across.places import Places
from pytest_ageval.across.shipping import Intake, Shipper


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    directory = tmp_path / "here" / "runs" / "attempt_1"
    (directory / "evaluation" / "private").mkdir(parents=True)
    (directory / "evaluation" / "private").chmod(0o700)
    (directory / "evaluation" / "private" / "gold").write_bytes(b"x" * 700_000)
    (directory / "result.json").write_text("{}")
    (directory / "run.sh").touch(mode=0o755)
    (directory / "latest").symlink_to("result.json")
    return directory


def spooled(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def shapes(directory: Path) -> dict[str, tuple[int, bytes | str | None]]:
    return {
        name: (
            path.lstat().st_mode,
            str(path.readlink()) if path.is_symlink() else None if path.is_dir() else path.read_bytes(),
        )
        for path, name in below(directory)
    }


def test_a_tree_comes_back_as_it_was(attempt: Path, tmp_path: Path) -> None:
    chunks: list[bytes] = []
    digest, count = pack(below(attempt), chunks.append)
    spool = Spool(tmp_path / "spool")
    for chunk in chunks:
        spool.write(chunk)
    spool.finish(digest)
    unpack_trusted(spool.path, tmp_path / "copy")
    unpack_in_place_of(spool.path, tmp_path / "evidence")
    assert count == 6
    assert len(chunks) > 2
    assert shapes(tmp_path / "copy") == shapes(attempt)
    assert shapes(tmp_path / "evidence") == shapes(attempt)


def test_a_file_that_grows_while_it_is_read_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"a" * 10)
    chunks: list[bytes] = []
    entries = [(log, "log")]
    sizes = [0]
    real = tarfile.TarFile.gettarinfo

    def grows(self: tarfile.TarFile, *args: object, **more: object) -> tarfile.TarInfo:
        info = real(self, *args, **more)  # type: ignore[arg-type]
        log.write_bytes(b"a" * sizes[0])
        return info

    for sizes[0] in (20, 5):
        chunks.clear()
        log.write_bytes(b"a" * 10)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tarfile.TarFile, "gettarinfo", grows)
            pack(entries, chunks.append)
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
            found = tar.extractfile("log")
            assert found is not None
            assert len(found.read()) == 10


class Wire:
    """What a `Shipper` sends, for an `Intake`."""

    def __init__(self, attempt: Path, base: str = "/nowhere") -> None:
        self.messages: list[tuple[str, object]] = []
        Shipper(self.messages.append, Places(base)).ship(attempt)


def intake(root: Path) -> tuple[Intake, list[str], list[Path]]:
    problems: list[str] = []
    arrived: list[Path] = []
    return Intake(lambda: [root], problems.append, arrived.append), problems, arrived


def test_evidence_arrives_where_the_controller_has_it(attempt: Path, tmp_path: Path) -> None:
    base = str(tmp_path / "here")
    (attempt / "summary.json").write_text(f'{{"path": "{attempt}/log"}}')
    there = Path("/runs/attempt_1")
    messages = Wire(attempt, base).messages
    assert messages[0] == ("ship", str(there))
    root = tmp_path / "evidence"
    target = root / "runs" / "attempt_1"
    target.mkdir(parents=True)
    (target / "old").touch()
    taker, problems, arrived = intake(root)
    for word, value in [("ship", str(target)), *messages[1:]]:
        taker.take(word, value)
    assert problems == []
    assert arrived == [target]
    assert sorted(path.name for path in root.rglob("*") if path.name.startswith(".")) == []
    assert not (target / "old").exists()
    assert (target / "summary.json").read_text() == f'{{"path": "{there}/log"}}'
    del shapes(target)["summary.json"]
    assert shapes(target)["evaluation/private/gold"] == shapes(attempt)["evaluation/private/gold"]


@pytest.mark.parametrize("what", ["a chunk is missing", "a chunk is another one", "it is cut off"])
def test_what_is_not_whole_does_not_exist(attempt: Path, tmp_path: Path, what: str) -> None:
    root = tmp_path / "evidence"
    target = root / "runs" / "attempt_1"
    first, *rest = Wire(attempt).messages
    if what == "a chunk is missing":
        del rest[1]
    elif what == "a chunk is another one":
        rest[1] = ("data", b"!" * len(rest[1][1]))  # type: ignore[arg-type]
    else:
        rest.pop()
    taker, problems, arrived = intake(root)
    for word, value in [("ship", str(target)), *rest]:
        taker.take(word, value)
    taker.drop()  # the connection is gone
    assert first[0] == "ship"
    assert arrived == []
    assert len(problems) == (0 if what == "it is cut off" else 1)
    assert list(root.rglob("*")) == [root / "runs"]


@pytest.mark.parametrize(
    "target",
    ["runs", "runs/../../x", "suite-runs/1", "runs/a/b", "../runs/a", "runs/.hidden", "/etc/cron.d"],
)
def test_a_host_writes_only_where_evidence_goes(attempt: Path, tmp_path: Path, target: str) -> None:
    root = tmp_path / "evidence"
    root.mkdir()
    taker, problems, arrived = intake(root)
    for word, value in [("ship", str(root / target)), *Wire(attempt).messages[1:]]:
        taker.take(word, value)
    assert len(problems) == 1
    assert arrived == []
    assert list(root.rglob("*")) == []


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil"])
def test_a_member_does_not_leave_its_directory(tmp_path: Path, name: str) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    path = spooled(tmp_path / "spool", stream.getvalue())
    target = tmp_path / "runs" / "a"
    target.parent.mkdir()
    try:
        unpack_in_place_of(path, target)
    except Broken:
        assert not target.exists()
    else:  # an absolute name becomes one below
        assert [p.name for p in target.rglob("evil")] == ["evil"]
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "runs" / "evil").exists()
    assert not Path("/tmp/evil").exists()


def test_links_that_lead_out_are_left_out_and_nothing_is_written_through_one(tmp_path: Path) -> None:
    stream = io.BytesIO()
    outside = tmp_path / "outside"
    outside.mkdir()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, target in (
            ("absolute", "/etc/passwd"),
            ("up", "../../x"),
            ("way", str(outside)),
            ("ok", "f"),
        ):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        tar.addfile(tarfile.TarInfo("way/file"))
        tar.addfile(tarfile.TarInfo("f"))
    target = tmp_path / "runs" / "a"
    target.parent.mkdir()
    unpack_in_place_of(spooled(tmp_path / "spool", stream.getvalue()), target)
    assert sorted(path.name for path in target.iterdir()) == ["f", "ok", "way"]
    assert list(outside.iterdir()) == []
