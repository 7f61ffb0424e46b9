"""Checks plain data against a type and says in words what is wrong, where, and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import inspect

from pytest_ageval.config.formats import FORMATS
from pytest_ageval.config.where import did_you_mean, display, join_pointer, listed
from pytest_ageval.config.yamlio import find_line
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

_MESSAGE = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>.*)`)?", re.DOTALL)
_TOKEN = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]|(?P<any>\[\.\.\.\])")
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "null",
}


class Source:
    """The file that data came from, for error messages. `shown` replaces the path where there is no file."""

    def __init__(self, path: Path | None, shown: str | None = None) -> None:
        self.path = path
        self._shown = shown

    @property
    def shown(self) -> str | None:
        """The file as the user knows it."""
        return self._shown if self.path is None else display(self.path)

    def error(
        self, code: str, message: str, pointer: str | None = None, hint: str | None = None
    ) -> ConfigError:
        """A ConfigError at `pointer`, with its line when the file is there."""
        line = None
        if self.path is not None and pointer is not None:
            line = find_line(self.path, pointer)
        return ConfigError(code, message, file=self.shown, pointer=pointer, line=line, hint=hint)


def check_format(data: Mapping[str, Any], expected: str, source: Source) -> None:
    """ConfigError ``invalid_format`` unless ``format`` is `expected`."""
    found = data.get("format")
    if found == expected:
        return
    if found is None:
        raise source.error("invalid_format", f"format is missing; write 'format: {expected}'", "/format")
    hint = None
    if isinstance(found, str) and found in FORMATS:
        hint = "the file looks like another kind of document in the wrong place"
    raise source.error("invalid_format", f"format must be {expected!r}, found {found!r}", "/format", hint)


def convert(data: Any, kind: type[T], source: Source, *, at: str = "", code: str = "invalid_schema") -> T:
    """`data` as `kind`; ConfigError `code` with pointer (`at` is its prefix), found value and hint."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise _explain(error, data, kind, source, at, code) from None


def _explain(
    error: msgspec.ValidationError, data: Any, kind: Any, source: Source, at: str, code: str
) -> ConfigError:
    match = _MESSAGE.fullmatch(str(error))
    what = match["what"] if match else str(error)
    path = (match["path"] if match else None) or "$"
    tokens = _tokens(path, data, kind)
    value = _dig(data, tokens)
    expected = _type_at(inspect.type_info(kind), tokens)
    name = ".".join(map(str, tokens)) or "the document"
    pointer = at + join_pointer(*tokens)
    if error.__cause__ is not None:  # the type's own check of its fields: a sentence already
        return source.error(code, what, pointer)
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL):
        known = _field_names(expected)
        return source.error(
            code,
            f"unknown key {unknown[1]!r}; known here: {listed(known)}",
            pointer + join_pointer(unknown[1]),
            did_you_mean(unknown[1], known),
        )
    if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        return source.error(code, f"{missing[1]} is missing", pointer or "/")
    if isinstance(value, Mapping) and what.startswith("Expected `str`"):
        bad = _bad_key(value, expected)
        return source.error(
            code, f"the name {bad!r} must be {_expectation(what)}", pointer + join_pointer(bad)
        )
    return source.error(
        code, f"{name} must be {_allowed(what, expected)}; found {show(value)}", pointer,
        _scalar_hint(value, expected),
    )  # fmt: skip


def _tokens(path: str, data: Any, kind: Any) -> list[str | int]:
    tokens: list[str | int] = []
    for match in _TOKEN.finditer(path.removeprefix("$")):
        if match["name"] is not None:
            tokens.append(match["name"])
        elif match["index"] is not None:
            tokens.append(int(match["index"]))
        else:
            tokens.append(_culprit(data, kind, tokens))
    return tokens


def _culprit(data: Any, kind: Any, tokens: list[str | int]) -> str:
    """Which value of the mapping at `tokens` is refused: the checker does not say."""
    for key, value in _dig(data, tokens).items():
        try:
            msgspec.convert(_replaced(data, tokens, {key: value}), kind)
        except msgspec.ValidationError:
            return str(key)
    return "*"


def _replaced(data: Any, tokens: list[str | int], value: Any) -> Any:
    """A copy of `data` with `value` at `tokens`."""
    if not tokens:
        return value
    copy = dict(data) if isinstance(data, Mapping) else list(data)
    copy[tokens[0]] = _replaced(data[tokens[0]], tokens[1:], value)  # type: ignore[index]
    return copy


def _dig(data: Any, tokens: list[str | int]) -> Any:
    for token in tokens:
        try:
            data = data[token]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _type_at(info: Any, tokens: list[str | int]) -> Any:
    """The type that belongs at `tokens`, unwrapped of constraints and ``| None``."""
    info = _unwrap(info)
    for token in tokens:
        if isinstance(info, inspect.StructType):
            info = next((f.type for f in info.fields if f.encode_name == token), None)
        elif isinstance(info, inspect.DictType):
            info = info.value_type
        elif isinstance(info, inspect.ListType | inspect.VarTupleType):
            info = info.item_type
        else:
            return None
        info = _unwrap(info)
    return info


def _unwrap(info: Any) -> Any:
    while True:
        if isinstance(info, inspect.Metadata):
            info = info.type
        elif isinstance(info, inspect.UnionType):
            rest = [t for t in info.types if not isinstance(t, inspect.NoneType)]
            if len(rest) != 1:
                return info
            info = rest[0]
        else:
            return info


def _field_names(info: Any) -> list[str]:
    return [f.encode_name for f in info.fields] if isinstance(info, inspect.StructType) else []


def _bad_key(mapping: Any, info: Any) -> Any:
    pattern = getattr(getattr(info, "key_type", None), "pattern", None)
    for key in mapping if isinstance(mapping, Mapping) else ():
        if pattern is None or re.search(pattern, key) is None:
            return key
    return None


def _allowed(what: str, info: Any) -> str:
    if isinstance(info, inspect.LiteralType):
        return "one of " + ", ".join(map(str, info.values))
    return _expectation(what)


def _expectation(what: str) -> str:
    """``Expected `int` >= 0`` in words."""
    found = re.fullmatch(r"Expected `([^`]*)`(?:, got `[^`]*`)?(.*)", what, re.DOTALL)
    if found is None:
        return what
    names = [_WORDS.get(part.strip(), part.strip()) for part in found[1].split("|")]
    names = [name for name in names if name != "null"] or names
    rest = found[2].replace("matching regex", "matching")
    return " or ".join(names) + rest


def show(value: Any) -> str:
    """`value` as a message shows it: its type when that is not obvious, and at most 80 characters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, str):
        return "the text " + ascii_short(value)
    return f"the number {ascii_short(str(value))[1:-1]}"


def ascii_short(text: str) -> str:
    """`repr` of at most 80 characters of `text`."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _scalar_hint(value: Any, info: Any) -> str | None:
    if isinstance(info, inspect.StrType) and isinstance(value, bool | int | float):
        return "put it in quotes, so that YAML keeps it as text"
    if isinstance(info, inspect.IntType | inspect.FloatType) and isinstance(value, str):
        return "write a plain decimal number without quotes, such as 60 or 1.5"
    if isinstance(info, inspect.BoolType) and value in ("yes", "no", "on", "off", "y", "n"):
        return "write true or false"
    return None
