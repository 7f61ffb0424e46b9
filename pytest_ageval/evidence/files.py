"""Files that survive a crash: strict JSON, atomic documents, JSON Lines with a torn tail."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pytest_ageval.errors import AgevalError

if TYPE_CHECKING:
    from pathlib import Path

_DEPTH_LIMIT = 100
_REPR_LIMIT = 1000


def now() -> str:
    """The time in UTC with milliseconds: ``2026-01-31T12:00:00.123Z``."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clip(text: str, limit: int) -> str:
    """`text` in at most about `limit` characters: head, a marker with the count, tail."""
    if len(text) <= limit:
        return text
    half = max(limit // 2, 1)
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"


def plain(value: Any, depth: int = 0) -> Any:
    """`value` in JSON types only, as a new object.

    Numbers that JSON does not have become the strings ``NaN``, ``Infinity``, ``-Infinity``; keys
    become strings; an object of another type becomes its repr; what is nested more than 100 deep
    becomes a marker.
    """
    kind = type(value)
    if kind is str or value is None or kind is bool or kind is int:
        return value
    if kind is float:
        return value if math.isfinite(value) else _non_finite(value)
    if depth >= _DEPTH_LIMIT:
        return "[nested too deep]"
    if isinstance(value, Mapping):
        return {key if type(key) is str else _key(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    return _other(value, depth)


def _key(key: Any) -> str:
    return str.__str__(key) if isinstance(key, str) else str(key)


def _non_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _other(value: Any, depth: int) -> Any:
    """A subclass of a JSON type, or something that JSON does not know."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return plain(float(value), depth)
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item, depth + 1) for item in value), key=repr)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    return clip(repr(value), _REPR_LIMIT)


def utf8(text: str) -> bytes:
    """`text` as UTF-8; a half of a surrogate pair, which UTF-8 does not have, becomes U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Through UTF-16, so that two halves which do belong together make their character.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def document_bytes(value: Any) -> bytes:
    """A JSON document as people read it: sorted keys, two spaces, a final newline.

    `value` holds JSON types only; a non-finite number raises ValueError.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, indent=2)
    return utf8(text) + b"\n"


_LINE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode


def line_bytes(value: Any) -> bytes:
    """One line of JSON Lines. `value` holds JSON types only."""
    return utf8(_LINE(value)) + b"\n"


def unwritable(root: Path, error: OSError) -> AgevalError:
    """The directory of an attempt cannot be made, or nothing can be written into it."""
    return AgevalError(
        "evidence_unwritable",
        f"{root} cannot be written: {error.strerror or error}; choose another place with --ageval-dir",
    )


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte of `data`, also when the system takes it in parts."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_atomic(path: Path, data: bytes, *, sync: bool = True, sync_directory: bool = False) -> None:
    """Make `path` hold `data` or what it held before, never a part: write aside, sync, rename.

    Without `sync` that holds for a crash of the process, not of the machine.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        try:
            write_all(descriptor, data)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    if sync_directory:
        sync_dir(path.parent)


def sync_dir(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write a whole JSON Lines file atomically. The rows hold JSON types only."""
    write_atomic(path, b"".join(line_bytes(row) for row in rows))


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _whole(data: bytes) -> tuple[list[bytes], int]:
    """The complete lines of `data`, and how many bytes they are.

    A last line without newline is torn; a last line that is not JSON is torn too: after a power cut
    a file can have its length but not its bytes.
    """
    end = data.rfind(b"\n") + 1
    lines = data[:end].split(b"\n")[:-1]
    if lines and _parse(lines[-1]) is None:
        end -= len(lines.pop()) + 1
    return lines, end


def read_jsonl(path: Path, *, broken: str = "evidence_corrupt") -> list[dict[str, Any]]:
    """The objects of a JSON Lines file; a torn last line is left out; no file is no lines.

    Raises `AgevalError` with the title `broken` when an earlier line is not a JSON object.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(_whole(data)[0], start=1):
        row = _parse(line)
        if row is None:
            raise AgevalError(broken, f"{path.name} line {number} is not a JSON object")
        rows.append(row)
    return rows


def repair_tail(path: Path) -> int:
    """Cut a torn last line off a JSON Lines file. Returns how many bytes were cut.

    They are kept in ``<name>.corrupt`` beside it.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0
    end = _whole(data)[1]
    if end == len(data):
        return 0
    with path.with_name(f"{path.name}.corrupt").open("ab") as kept:
        kept.write(data[end:].rstrip(b"\n") + b"\n")
    with path.open("rb+") as stream:
        stream.truncate(end)
        stream.flush()
        os.fsync(stream.fileno())
    return len(data) - end


def read_document(path: Path) -> dict[str, Any] | None:
    """A JSON document, or None when the file is absent.

    Raises `AgevalError` ``evidence_corrupt`` when it is there and is not a JSON object.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    found = _parse(data)
    if found is None:
        raise AgevalError("evidence_corrupt", f"{path} is not a JSON object")
    return found
