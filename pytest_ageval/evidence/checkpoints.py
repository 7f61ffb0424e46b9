"""Checkpoints: what the agent's directories hold after a step (``ageval.checkpoint/1``).

The bytes are kept by their sha256 under ``blobs/``. A document ``seq_NNNNNN.json`` holds what changed
since the document `base`; the first one holds everything. A file whose size, times, mode and inode are
as before is not read again.

A document is whole or not there when a process is killed. It is not synced: after a power cut a blob
may be damaged, which `restore` finds out by its hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence.files import line_bytes, now, read_document, write_all, write_atomic

if TYPE_CHECKING:
    from pytest_ageval.evidence.redact import Redactor

FORMAT = "ageval.checkpoint/1"

#: What one attempt keeps: entries of one state, bytes of all blobs, bytes of one file.
FILES_LIMIT = 20_000
BYTES_LIMIT = 512 * 1024 * 1024
FILE_LIMIT = 64 * 1024 * 1024

#: Directories of HOME that hold nothing that cannot be had again.
CACHES = frozenset({"home/.cache", "home/.npm", "home/.bun", "home/.local/share/uv"})

#: A file that was changed so recently may change again without new times (nanoseconds).
_RACY_NS = 30_000_000
_CHUNK = 1024 * 1024

Entry = dict[str, Any]
#: What tells that a file is as before: mode, size, times, inode.
Signature = tuple[int, ...]


class TooMuchError(Exception):
    """The directories hold more than is kept."""


class Checkpoints:
    """The checkpoints of one attempt. Every method blocks, and may be called from any thread.

    `last` is the number of the newest one that counts, 0 before the first. `entries` is the state that
    `position` stands for: what the directories are known to hold.
    """

    def __init__(self, root: Path, redactor: Redactor) -> None:
        self.root = root
        self.last = 0
        self.position = 0
        self.entries: dict[str, Entry] = {}
        #: Why no more checkpoints are made; None while they are.
        self.given_up: str | None = None
        self._redactor = redactor
        self._changes: list[tuple[int, dict[str, Entry], list[str]]] = []
        self._signatures: dict[str, Signature] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    # -- taking ------------------------------------------------------------------------------------

    def take(
        self, directories: Mapping[str, Path], at_least: int = 1, skip: Collection[str] = ()
    ) -> int | None:
        """Keep what the `directories` (by name) hold now; returns the number that stands for it.

        Without a change it is the number of the one before. `skip` are paths (``home/.netrc``) that are
        left out. None when no checkpoints are made any more.
        """
        with self._lock:
            if self.given_up is not None:
                return None
            try:
                found = self._look(directories, frozenset(skip))
            except TooMuchError as error:
                self._give_up(str(error))
                return None
            except OSError as error:
                self._give_up(f"{error.strerror}: {error.filename or self.root}")
                return None
            changed = {path: entry for path, entry in found.items() if self.entries.get(path) != entry}
            removed = sorted(path for path in self.entries if path not in found)
            if self.last and not changed and not removed:
                return self.last
            number = max(self.last + 1, at_least)
            base = self.last or None
            document = {
                "format": FORMAT,
                "seq": number,
                "created_at": now(),
                "base": base,
                "entries": changed,
                "removed": removed,
            }
            write_atomic(self._document(number), line_bytes(document), sync=False)
            self._changes.append((number, changed, removed))
            self.entries = found
            self.last = self.position = number
            return number

    def _document(self, number: int) -> Path:
        return self.root / f"seq_{number:06d}.json"

    def _blob(self, digest: str) -> Path:
        return self.root / "blobs" / digest[:2] / digest

    def _give_up(self, why: str) -> None:
        self.given_up = why
        shutil.rmtree(self.root, ignore_errors=True)

    def _look(self, directories: Mapping[str, Path], skip: frozenset[str]) -> dict[str, Entry]:
        self.root.mkdir(parents=True, exist_ok=True)
        found: dict[str, Entry] = {}
        for name, path in directories.items():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                self._walk(descriptor, name, skip, found)
        self._signatures = {path: known for path, known in self._signatures.items() if path in found}
        return found

    def _walk(self, top: int, name: str, skip: frozenset[str], found: dict[str, Entry]) -> None:
        """Without recursion, and never over a link: the agent may still run, and what is read here may be
        given back to it."""
        waiting = [(top, name)]
        try:
            while waiting:
                descriptor, prefix = waiting.pop()
                try:
                    with os.scandir(descriptor) as rows:
                        names = sorted(row.name for row in rows)
                    for each in names:
                        self._entry(descriptor, each, f"{prefix}/{each}", skip, found, waiting)
                finally:
                    os.close(descriptor)
        finally:
            for descriptor, _ in waiting:
                os.close(descriptor)

    def _entry(
        self,
        descriptor: int,
        name: str,
        path: str,
        skip: frozenset[str],
        found: dict[str, Entry],
        waiting: list[tuple[int, str]],
    ) -> None:
        if path in CACHES or path in skip:
            return
        if len(found) >= FILES_LIMIT:
            raise TooMuchError(f"more than {FILES_LIMIT} files")
        try:
            path.encode()  # a name that is no text cannot stand in a document
            info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISLNK(info.st_mode):
                found[path] = {"kind": "link", "target": os.readlink(name, dir_fd=descriptor)}
            elif stat.S_ISDIR(info.st_mode):
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                below = os.open(name, flags, dir_fd=descriptor)
                found[path] = {"kind": "directory", "mode": stat.S_IMODE(info.st_mode)}
                waiting.append((below, path))
            elif stat.S_ISREG(info.st_mode):
                known = self.entries.get(path)
                if known is None or self._signatures.get(path) != _signature(info):
                    known = self._keep(descriptor, name, path)
                if known is not None:
                    found[path] = known
        except (UnicodeEncodeError, FileNotFoundError, PermissionError):
            found[path] = {"kind": "omitted", "reason": "unreadable"}
        except OSError as error:
            if error.errno not in _GONE:
                raise

    def _keep(self, descriptor: int, name: str, path: str) -> Entry | None:
        """The entry of a file, its bytes kept as a blob; None when it is no file any more."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(name, flags, dir_fd=descriptor)
        try:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode):
                return None
            entry: Entry = {
                "kind": "file",
                "mode": stat.S_IMODE(info.st_mode),
                "size": info.st_size,
                "mtime_ns": info.st_mtime_ns,
            }
            if info.st_size > FILE_LIMIT:
                return {"kind": "omitted", "reason": "too_large"}
            digest = self._copy(handle)
            if digest is None:
                return {"kind": "omitted", "reason": "secret"}
            if _settled(info) and _signature(os.fstat(handle)) == _signature(info):
                self._signatures[path] = _signature(info)
            else:
                self._signatures.pop(path, None)
            return {**entry, "sha256": digest}
        finally:
            os.close(handle)

    def _copy(self, handle: int) -> str | None:
        """Keep the bytes of an open file; their sha256, or None when a secret stands in them."""
        needles = self._redactor.needles()
        overlap = max((len(needle) for needle in needles), default=1) - 1
        seen, held, size = hashlib.sha256(), b"", 0
        aside = self.root / f".{os.getpid()}.{threading.get_ident()}.part"
        target = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            while data := os.read(handle, _CHUNK):
                size += len(data)
                window = held + data
                if size > FILE_LIMIT + _CHUNK or any(needle in window for needle in needles):
                    return None
                held = window[-overlap:] if overlap else b""
                seen.update(data)
                write_all(target, data)
            digest = seen.hexdigest()
            blob = self._blob(digest)
            if not blob.exists():
                self._bytes += size
                if self._bytes > BYTES_LIMIT:
                    raise TooMuchError(f"more than {BYTES_LIMIT} bytes")
                blob.parent.mkdir(parents=True, exist_ok=True)
                aside.replace(blob)
            return digest
        finally:
            os.close(target)
            aside.unlink(missing_ok=True)

    # -- going on from them ------------------------------------------------------------------------

    def load(self, upto: int) -> None:
        """Read what another process left, up to the number `upto`; what is newer is removed.

        Raises `AgevalError` ``checkpoint_corrupt``.
        """
        self._changes = []
        base: int | None = None
        for path in sorted(self.root.glob("seq_*.json")):
            document = read_document(path) or {}
            number = document.get("seq")
            if not isinstance(number, int) or number > upto:
                path.unlink()
                continue
            if document.get("format") != FORMAT or document.get("base") != base:
                raise AgevalError("checkpoint_corrupt", f"{path.name} does not follow the one before it")
            self._changes.append((number, document["entries"], document["removed"]))
            base = number
        if base != upto:
            raise AgevalError("checkpoint_corrupt", f"checkpoint {upto} of {self.root} is not there")
        for part in self.root.glob(".*"):
            part.unlink(missing_ok=True)
        self.last = upto
        self._bytes = sum(path.stat().st_size for path in self.root.glob("blobs/*/*"))
        self.position, self.entries = 0, {}

    def state(self, number: int) -> dict[str, Entry]:
        """What the directories held at checkpoint `number`."""
        found: dict[str, Entry] = {}
        for seq, changed, removed in self._changes:
            if seq > number:
                break
            for path in removed:
                found.pop(path, None)
            found.update(changed)
        return found

    def numbers(self) -> list[int]:
        """The numbers of all checkpoints."""
        return [seq for seq, _, _ in self._changes]

    def restore(
        self, number: int, directories: Mapping[str, Path], *, whole: bool = False, keep: Collection[str] = ()
    ) -> int:
        """Make the directories what they held at checkpoint `number`; returns how many paths were touched.

        Only what differs between `position` and there is touched, so that what a script has written
        meanwhile stays; with `whole` everything else is removed, but for `keep`. Nobody else may write
        while this runs. Raises `AgevalError` ``checkpoint_corrupt``.
        """
        with self._lock:
            wanted = self.state(number)
            if whole:
                before: dict[str, Entry] = {}
                for root, path in directories.items():
                    before |= _listed(path, root)
            else:
                before = self.state(self.position)
            kept = {*keep, *CACHES, *(path for path, entry in wanted.items() if entry["kind"] == "omitted")}
            gone = [name for name in before if name not in wanted and not _below(name, kept)]
            for name in sorted(gone, reverse=True):
                _remove(_place(directories, name))
            touched = len(gone)
            for name, entry in sorted(wanted.items()):
                if entry["kind"] == "omitted" or (not whole and before.get(name) == entry):
                    continue
                touched += self._make(directories, name, entry)
            for name, entry in wanted.items():  # last: some of them may forbid what was done in them
                if entry["kind"] == "directory":
                    _place(directories, name).chmod(entry["mode"])
            self.position, self.entries = number, wanted
            return touched

    def _make(self, directories: Mapping[str, Path], path: str, entry: Entry) -> int:
        place = _place(directories, path)
        top = directories[path.partition("/")[0]]
        _clear_way(top, place.parent)
        info = _lstat(place)
        if entry["kind"] == "link":
            if info is not None and stat.S_ISLNK(info.st_mode) and str(place.readlink()) == entry["target"]:
                return 0
            _remove(place)
            place.symlink_to(entry["target"])
        elif entry["kind"] == "directory":
            if info is not None and stat.S_ISDIR(info.st_mode):
                return 0
            _remove(place)
            place.mkdir(mode=0o700)
        else:
            if info is not None and stat.S_ISREG(info.st_mode) and _same(place, info, entry):
                return 0
            _remove(place)
            self._write(place, entry)
        _give(top, place)
        return 1

    def _write(self, place: Path, entry: Entry) -> None:
        try:
            data = self._blob(entry["sha256"]).read_bytes()
        except OSError as error:
            raise AgevalError("checkpoint_corrupt", f"{place.name}: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise AgevalError("checkpoint_corrupt", f"the bytes of {place.name} are damaged")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(place, flags, 0o600)
        try:
            write_all(descriptor, data)
            os.fchmod(descriptor, entry["mode"])
            os.utime(descriptor, ns=(entry["mtime_ns"], entry["mtime_ns"]))
        finally:
            os.close(descriptor)

    def omitted(self, number: int) -> dict[str, str]:
        """Of what a checkpoint lacks: why, by path."""
        rows = self.state(number).items()
        return {path: entry["reason"] for path, entry in rows if entry["kind"] == "omitted"}

    def drop(self) -> None:
        """Remove them all."""
        shutil.rmtree(self.root, ignore_errors=True)


#: A name whose file is gone, or another thing, by the time it is opened (ENXIO, ENOTDIR, ELOOP).
_GONE = frozenset({6, 20, 40})


def _signature(info: os.stat_result) -> Signature:
    return (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)


def _settled(info: os.stat_result) -> bool:
    return time.time_ns() - max(info.st_mtime_ns, info.st_ctime_ns) > _RACY_NS


def _same(place: Path, info: os.stat_result, entry: Entry) -> bool:
    """A file with these bytes, this mode and this time. Read in any case: a program can set times."""
    if info.st_size != entry["size"] or stat.S_IMODE(info.st_mode) != entry["mode"] or info.st_nlink != 1:
        return False
    if info.st_mtime_ns != entry["mtime_ns"]:
        return False
    try:
        with place.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == str(entry["sha256"])
    except OSError:
        return False


def _listed(directory: Path, name: str) -> dict[str, Entry]:
    """Everything below `directory`, without a look into files."""
    from pytest_ageval.trees import entries

    found: dict[str, Entry] = {}
    for entry in entries(directory):
        found[f"{name}/{os.path.relpath(entry.path, directory)}"] = {}
    return found


def _place(directories: Mapping[str, Path], path: str) -> Path:
    name, _, rest = path.partition("/")
    return directories[name] / rest


def _below(path: str, kept: Collection[str]) -> bool:
    """`path` is one of `kept`, below one, or above one."""
    return any(path == k or path.startswith(f"{k}/") or k.startswith(f"{path}/") for k in kept)


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _remove(path: Path) -> None:
    info = _lstat(path)
    if info is None:
        return
    if stat.S_ISDIR(info.st_mode):
        for directory in _directories(path):
            directory.chmod(0o700)
        shutil.rmtree(path)
    else:
        path.unlink()


def _directories(path: Path) -> Iterator[Path]:
    path.chmod(0o700)
    yield path
    for root, names, _ in os.walk(path):
        yield from (Path(root, name) for name in names if not Path(root, name).is_symlink())


def _clear_way(top: Path, directory: Path) -> None:
    """Every directory between `top` and `directory` is one, and no link that leads elsewhere."""
    at = top
    for part in directory.relative_to(top).parts:
        at = at / part
        info = _lstat(at)
        if info is None or not stat.S_ISDIR(info.st_mode):
            _remove(at)
            at.mkdir(mode=0o700)
            _give(top, at)
        elif info.st_mode & 0o700 != 0o700:
            at.chmod(stat.S_IMODE(info.st_mode) | 0o700)


def _give(top: Path, place: Path) -> None:
    """To the owner of the directory: the user of a container."""
    owner = top.stat()
    if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (0, 0):
        os.lchown(place, owner.st_uid, owner.st_gid)


def read_numbers(root: Path) -> set[int]:
    """The numbers of the documents that are there."""
    found: set[int] = set()
    for path in root.glob("seq_*.json"):
        with contextlib.suppress(ValueError, OSError):
            document = json.loads(path.read_bytes())
            if isinstance(document, dict) and isinstance(document.get("seq"), int):
                found.add(document["seq"])
    return found
