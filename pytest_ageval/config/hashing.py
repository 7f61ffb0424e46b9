"""Digests: canonical JSON, and the content of files and trees. A file is read once in a session."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.config.where import display, printable
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SKIPPED_DIRS = frozenset({"__pycache__", ".git"})
#: What file managers leave behind.
_SKIPPED_FILES = frozenset({b".DS_Store", b"Thumbs.db"})
#: A file that was changed so recently may change again without another time stamp.
_SETTLED_NS = 100_000_000

_file_digests: dict[tuple[int, int, int, int, int], str] = {}


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8; ValueError for NaN and infinity."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def digest_of(value: Any) -> str:
    """``sha256:<hex>`` over the canonical JSON of `value`."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()


def file_digest(path: Path) -> str:
    """``sha256:<hex>`` over the content of a regular file.

    Kept for the session by (device, inode, size, mtime, ctime). Raises ConfigError ``unreadable_file``.
    """
    try:
        status = path.stat()
        key = (
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )
        found = _file_digests.get(key)
        if found is None:
            with path.open("rb") as stream:
                found = "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()
            if time.time_ns() - status.st_mtime_ns > _SETTLED_NS:
                _file_digests[key] = found
    except OSError as error:
        raise _unreadable(path, error) from error
    return found


def tree_digest(root: Path, *, without: str | None = None) -> str:
    """``sha256:<hex>`` over everything below `root`: paths, kinds, contents, executable bits, link targets.

    ``__pycache__``, ``.git``, ``*.pyc`` and the entry of `root` called `without` are left out. Raises
    ConfigError ``unreadable_file`` for what cannot be read and for what is neither file, directory nor
    symbolic link.
    """
    return tree_listing(root, without=without)[0]


def tree_listing(root: Path, *, without: str | None = None) -> tuple[str, dict[str, str]]:
    """`tree_digest`, and for each file and link below `root` what stands for its content."""
    total = hashlib.sha256()
    files = {}
    for row in _rows(root, b"", None if without is None else os.fsencode(without)):
        total.update(row)
        if not row.startswith(b"dir "):
            content, name = row.split(b"\0")[:2]
            files[name.decode("utf-8", "backslashreplace")] = content.decode("utf-8", "backslashreplace")
    return "sha256:" + total.hexdigest(), files


def _rows(directory: Path, prefix: bytes, without: bytes | None = None) -> Iterator[bytes]:
    try:
        with os.scandir(os.fsencode(directory)) as found:
            entries = sorted((e for e in found if e.name != without), key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(directory, error) from error
    for entry in entries:
        path = Path(os.fsdecode(entry.path))
        name = prefix + entry.name
        if entry.is_symlink():
            yield b"link " + os.readlink(entry.path) + b"\0" + name + b"\0"  # noqa: PTH115 - bytes
        elif entry.is_dir():
            if os.fsdecode(entry.name) in _SKIPPED_DIRS:
                continue
            yield b"dir " + name + b"\0"
            yield from _rows(path, name + b"/")
        elif not entry.is_file():
            raise ConfigError(
                "unreadable_file",
                "neither a file, a directory nor a symbolic link",
                file=display(path),
            )
        elif not entry.name.endswith(b".pyc") and entry.name not in _SKIPPED_FILES:
            kind = b"exec " if entry.stat().st_mode & stat.S_IXUSR else b"file "
            yield kind + file_digest(path).encode() + b"\0" + name + b"\0"


def _unreadable(path: Path, error: OSError) -> ConfigError:
    reason = error.strerror or printable(str(error))
    return ConfigError("unreadable_file", f"cannot be read: {reason}", file=display(path))
