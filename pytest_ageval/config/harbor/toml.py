"""TOML files, with the line of a key for error messages."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

from pytest_ageval.config.check import Source
from pytest_ageval.config.where import join_pointer, split_pointer
from pytest_ageval.config.yamlio import read_text
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*("[^"]*"|'[^']*'|[A-Za-z0-9_-]+(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=""")


class TomlSource(Source):
    """A TOML file, for error messages."""

    def error(
        self, code: str, message: str, pointer: str | None = None, hint: str | None = None
    ) -> ConfigError:
        """A ConfigError at `pointer`, with the line of the key or of its closest table."""
        found = ConfigError(code, message, file=self.shown, pointer=pointer, hint=hint)
        if self.path is not None and pointer:
            found.line = line_of(read_text(self.path), pointer)
        return found


def load_toml(path: Path) -> dict[str, Any]:
    """The document. Raises ConfigError ``invalid_toml`` with the parser's words, or as `read_text`."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"\(at line (\d+)", str(error))
        raise ConfigError(
            "invalid_toml",
            f"{error}",
            file=Source(path).shown,
            line=int(line[1]) if line else None,
        ) from None


def line_of(text: str, pointer: str) -> int | None:
    """The line on which the key at `pointer` stands, else the one of the closest table above it.

    A look at headers and keys, not a parser: it may miss a key within an inline table, and then names
    the line of that table.
    """
    places = _places(text)
    tokens = split_pointer(pointer)
    while tokens:
        line = places.get(join_pointer(*tokens))
        if line is not None:
            return line
        tokens.pop()
    return None


def _places(text: str) -> dict[str, int]:
    places: dict[str, int] = {}
    counts: dict[str, int] = {}
    table: list[object] = []
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = []
            parts = _split(header[2])
            for depth, part in enumerate(parts):
                table.append(part)
                key = join_pointer(*table)
                if depth == len(parts) - 1 and header[1] == "[[":
                    counts[key] = counts.get(key, -1) + 1
                if key in counts:
                    table.append(counts[key])
            places.setdefault(join_pointer(*table), number)
        elif key_found := _KEY.match(line):
            places.setdefault(join_pointer(*table, *_split(key_found[1])), number)
    return places


def _split(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in re.findall(r"\"[^\"]*\"|'[^']*'|[^.]+", dotted)]
