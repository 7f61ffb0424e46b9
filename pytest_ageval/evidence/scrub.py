"""Mask secrets in files that someone else wrote."""

from __future__ import annotations

import codecs
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ageval.trees import entries

if TYPE_CHECKING:
    from pytest_ageval.evidence.redact import Redactor

#: Files are read in pieces of this many bytes.
_PIECE = 1024 * 1024


def scrub_file(path: Path, redactor: Redactor) -> bool:
    """Mask secrets in one regular file; returns whether it changed.

    Every other byte stays as it is, in binary files too. Something else than a regular file is left
    alone.
    """
    before = path.lstat()
    if not stat.S_ISREG(before.st_mode):
        return False
    if not os.access(path, os.R_OK):
        path.chmod(stat.S_IMODE(before.st_mode) | stat.S_IRUSR)
    aside = path.with_name(f".{path.name[:200]}.{os.getpid()}.tmp")
    try:
        changed = _copy(path, aside, redactor)
        if changed:
            aside.replace(path)
    finally:
        path.chmod(stat.S_IMODE(before.st_mode))
        aside.unlink(missing_ok=True)
    return changed


def _copy(path: Path, target: Path, redactor: Redactor) -> bool:
    # What is not UTF-8 goes through unharmed, and no character is cut between two pieces.
    decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
    stream = redactor.stream()
    with path.open("rb") as source, target.open("wb") as sink:
        while True:
            piece = source.read(_PIECE)
            text = stream.feed(decode(piece, not piece))
            if not piece:
                text += stream.flush()
            sink.write(text.encode("utf-8", "surrogateescape"))
            if not piece:
                return stream.masked > 0


def scrub_tree(root: Path, redactor: Redactor) -> list[Path]:
    """Mask secrets in every regular file below `root` and in names; returns what changed.

    Symbolic links are not followed; one whose target names a secret is removed.
    """
    changed: list[Path] = []
    found = [Path(entry.path) for entry in entries(root)]
    for path in reversed(found):  # what is in a directory before the directory gets another name
        if path.is_symlink():
            target = str(path.readlink())
            if redactor.text(target) != target:
                path.unlink()
                changed.append(path)
                continue
        elif scrub_file(path, redactor):
            changed.append(path)
        name = redactor.text(path.name)
        if name != path.name:
            path.rename(path.with_name(name.replace("/", "_")))
            changed.append(path)
    return changed
