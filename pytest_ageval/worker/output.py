"""Files that take a worker's stdout and stderr, bounded on the disk and when read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Bytes of a stream's file while the script runs; beyond it the middle is dropped.
RUNNING_LIMIT = 64 * 1024 * 1024

#: Bytes of a stream's file that are kept when the script has ended.
KEPT_LIMIT = 1024 * 1024

#: Characters of a stream that an outcome holds.
TEXT_LIMIT = 16 * 1024


class OutputFile:
    """One stream of a worker. The worker appends; this side only cuts.

    A file and not a pipe: a process that the script left behind cannot keep anybody waiting for its
    end, and nobody has to read for the script to go on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> int:
        """A new, empty file; the descriptor to write to it (append mode)."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        return os.open(self.path, flags, 0o600)

    def size(self) -> int:
        """Bytes of the file now."""
        return self.path.stat().st_size

    def bound(self, limit: int) -> None:
        """Cut the middle out if the file has more than `limit` bytes; half of `limit` is kept in front."""
        size = self.size()
        if size <= limit:
            return
        half = min(limit, KEPT_LIMIT) // 2
        with self.path.open("r+b") as file:
            file.seek(size - half)
            tail = file.read(half)
            file.truncate(half)
        with self.path.open("ab") as file:
            file.write(f"\n[... {size - 2 * half} bytes left out ...]\n".encode() + tail)

    def text(self, limit: int = TEXT_LIMIT) -> str:
        """Head and tail of what was written, at most about `limit` characters."""
        size = self.size()
        with self.path.open("rb") as file:
            if size <= limit:
                return file.read(limit).decode("utf-8", "replace")
            head = file.read(limit // 4)
            file.seek(size - (limit - limit // 4))
            tail = file.read(limit)
        left_out = f"\n[... {size - limit} bytes left out ...]\n"
        return head.decode("utf-8", "replace") + left_out + tail.decode("utf-8", "replace")
