"""Names of places: files as the user knows them, JSON pointers, and the closest known name."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def display(path: Path | str) -> str:
    """`path` relative to the current directory when it is below it; bytes that are not UTF-8 as ``\\xff``."""
    found = Path(path)
    if found.is_absolute():
        try:
            found = found.relative_to(Path.cwd())
        except (ValueError, OSError):  # not below it, or the current directory is gone
            found = Path(path)
    return printable(os.fspath(found))


def printable(text: str) -> str:
    """`text` without lone surrogates, so that it can be written anywhere."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def join_pointer(*tokens: object) -> str:
    """The RFC 6901 pointer of `tokens`: ``("a/b", 0)`` is ``/a~1b/0``."""
    return "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in tokens)


def split_pointer(pointer: str) -> list[str]:
    """The tokens of an RFC 6901 pointer; the inverse of `join_pointer`."""
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """``did you mean 'x'?`` for the closest of `known`, or None when none is close."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]!r}?" if close else None


def listed(names: Iterable[str]) -> str:
    """The names sorted and separated by commas, or ``none``."""
    return ", ".join(sorted(names)) or "none"
