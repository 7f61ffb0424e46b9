"""``fs/read_text_file`` and ``fs/write_text_file``: some agents use them though nobody offered them."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.box import WORKSPACE, Box
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Bytes of a file that one read or write may carry.
MAX_FILE = 32 * 1024 * 1024

# Prints the workspace and the file with every symbolic link resolved; the file itself need not exist.
_RESOLVE = 'mkdir -p -- "$(dirname -- "$2")" 2>/dev/null; readlink -f -- "$1" && readlink -f -- "$2"'
_RESOLVE_READ = 'readlink -f -- "$1" && readlink -f -- "$2"'


class FileRequestError(Exception):
    """A request that is refused; the message goes back to the agent. `missing`: the file does not exist."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


async def read_text_file(box: Box, params: Mapping[str, Any]) -> dict[str, Any]:
    """The file's text, from line ``line`` (1-based), at most ``limit`` lines."""
    path = await _contained(box, params.get("path"), _RESOLVE_READ)
    line, limit = _number(params.get("line")), _number(params.get("limit"))
    with tempfile.TemporaryDirectory(prefix="ageval-acp-") as folder:
        copy = Path(folder, "file")
        try:
            await box.download(path, copy)
        except BoxError as error:
            missing = error.title == "environment_download_missing"
            raise FileRequestError(str(error), missing=missing) from error
        text = await asyncio.to_thread(_load, copy)
    if line is not None or limit is not None:
        rows = text.split("\n")
        first = max(0, (line or 1) - 1)
        text = "\n".join(rows[first : None if limit is None else first + limit])
    return {"content": text}


async def write_text_file(box: Box, params: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the file's text; missing directories are made."""
    content = params.get("content")
    if not isinstance(content, str):
        raise FileRequestError("content must be a text")
    data = content.encode("utf-8", "replace")
    if len(data) > MAX_FILE:
        raise FileRequestError(f"content is longer than {MAX_FILE} bytes")
    path = await _contained(box, params.get("path"), _RESOLVE)
    with tempfile.TemporaryDirectory(prefix="ageval-acp-") as folder:
        copy = Path(folder, "file")
        await asyncio.to_thread(copy.write_bytes, data)
        try:
            await box.upload(copy, path)
        except BoxError as error:
            raise FileRequestError(str(error)) from error
    return {}


async def _contained(box: Box, path: Any, resolve: str) -> str:
    """`path` as the engine spells it, if it is in the workspace after all links are followed."""
    root = box.visible_path(WORKSPACE)
    if not isinstance(path, str) or "\0" in path or "\n" in path or not path.startswith("/"):
        raise FileRequestError(f"path must be an absolute path, not {path!r}")
    if _below(path, root) is None or ".." in path.split("/"):
        raise FileRequestError(f"{path} is outside the workspace {root}")
    found = await box.exec(["sh", "-c", resolve, "sh", root, path], timeout=30)
    lines = found.stdout.split("\n")
    if not found.ok or len(lines) < 2:
        raise FileRequestError(f"{path} does not exist", missing=True)
    inside = _below(lines[1], lines[0])
    if not inside:
        raise FileRequestError(f"{path} leads out of the workspace")
    return f"{WORKSPACE}/{inside}"


def _below(path: str, root: str) -> str | None:
    root = root.rstrip("/")
    return path[len(root) + 1 :] if path.startswith(root + "/") else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _load(copy: Path) -> str:
    # A link is never followed on the host: it would leave the box.
    if copy.is_symlink() or not copy.is_file():
        raise FileRequestError("not a regular file")
    if copy.stat().st_size > MAX_FILE:
        raise FileRequestError(f"the file is longer than {MAX_FILE} bytes")
    return copy.read_bytes().decode("utf-8", "replace")
