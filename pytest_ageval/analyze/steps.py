"""What an agent did, step by step, as rules need it: commands, paths written, text written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_ageval.evidence.trajectory import tool_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: Characters of one text that rules look at.
LOOKED_AT = 100_000

#: Arguments of tools that name the file they write, and what they write into it.
_PATHS = ("file_path", "filePath", "path", "abs_path", "absolute_path", "filename", "file")
_TEXTS = (
    "content",
    "new_string",
    "newString",
    "new_str",
    "file_text",
    "insert_text",
    "patch",
    "diff",
    "text",
)

#: A name of a tool that writes files.
_WRITES = re.compile(r"write|edit|create|replace|patch|insert|apply", re.IGNORECASE)

_REDIRECT = re.compile(r"(?<![<>&\d])(?:[12&]?>>?)\s*(?![&(])['\"]?([^\s'\"|;&<>()]+)")
_COMMANDS = re.compile(
    r"(?:^|[\s;&|(])(?:tee(?:\s+-a)?|touch|rm(?:\s+-\w+)*|chmod(?:\s+-\w+)*\s+\S+|sed\s+-i\S*(?:\s+-e)?\s+"
    r"(?:'[^']*'|\"[^\"]*\"|\S+)|truncate(?:\s+-s\s*\S+)?)\s+([^|;&<>\n]+)"
)
_TARGET = re.compile(r"(?:^|[\s;&|(])(?:cp|mv|ln|install)\s+([^|;&<>\n]+)")
_OPEN = re.compile(r"open\(\s*['\"]([^'\"]+)['\"]\s*,\s*['\"][wax]|Path\(\s*['\"]([^'\"]+)['\"]\s*\)\.write_")


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a tool. `row` is its line in the file, counted from 1; `writes` and `reads` are paths."""

    row: int
    tool: str
    command: str
    writes: tuple[str, ...]
    text: str
    reads: tuple[str, ...] = ()


def steps(rows: Iterable[Mapping[str, Any]]) -> Iterator[Step]:
    """The calls of tools of a trajectory."""
    for number, row in enumerate(rows, start=1):
        if row.get("type") == "tool_call":
            yield _step(number, row)


def _step(number: int, row: Mapping[str, Any]) -> Step:
    name, given = str(row.get("function_name") or ""), row.get("args")
    args: Mapping[str, Any] = given if isinstance(given, dict) else {}
    command = tool_command(row)[:LOOKED_AT]
    paths = list(written(command))
    text = ""
    named = [str(args[key]) for key in _PATHS if isinstance(args.get(key), str)]
    reads: list[str] = []
    if not _WRITES.search(f"{name} {row.get('kind') or ''}"):
        reads = [path[:LOOKED_AT] for path in named]
    else:
        paths += named
        text = "\n".join(str(args[key]) for key in _TEXTS if isinstance(args.get(key), str))[:LOOKED_AT]
    return Step(number, name, command, tuple(dict.fromkeys(paths)), text, tuple(reads))


def written(command: str) -> Iterator[str]:
    """The paths that a shell command writes, as far as it can be seen."""
    yield from _REDIRECT.findall(command)
    for match in _COMMANDS.finditer(command):
        yield from _words(match[1])
    for match in _TARGET.finditer(command):
        words = list(_words(match[1]))
        yield from words[-1:]
    for match in _OPEN.finditer(command):
        yield match[1] or match[2]


def _words(text: str) -> Iterator[str]:
    for word in text.split():
        if not word.startswith("-"):
            yield word.strip("'\"")
