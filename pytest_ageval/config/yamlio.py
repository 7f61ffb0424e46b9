"""Reads YAML strictly: one UTF-8 document, no duplicate keys, no surprises with scalars.

The typing rule, for plain (unquoted) scalars; everything else is text:

* ``true``/``True``/``TRUE`` and ``false``/``False``/``FALSE`` are booleans;
* nothing, ``~``, ``null``/``Null``/``NULL`` are null;
* ``0``, ``7``, ``-12`` are integers (decimal, no leading zero, no ``+``, no ``_``);
* ``1.5``, ``-0.5``, ``.5``, ``1.5e3`` are numbers (a decimal point with digits after it).

So ``no``, ``on``, ``010``, ``1e3``, ``0x1F``, ``12:30``, ``1_000``, ``2024-01-01``, ``.inf`` and ``=``
are text. Keys of mappings are always the text that is written.
"""

from __future__ import annotations

import math
import os
import re
import stat
from typing import TYPE_CHECKING, Any

import yaml
from yaml.composer import Composer
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.scanner import Scanner

from pytest_ageval.config.where import display, split_pointer
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator
    from pathlib import Path

#: Bytes of the largest file that is read.
SIZE_LIMIT = 5 * 1024 * 1024
#: Values of the largest document; what an alias stands for counts each time it is used.
NODE_LIMIT = 200_000
#: Mappings and lists inside each other.
DEPTH_LIMIT = 100
#: Digits of the longest number.
DIGIT_LIMIT = 300

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)?\.[0-9]+(?:[eE][-+]?[0-9]+)?")
_NUMBER_START = frozenset("-.0123456789")

# What `resolve` returns as the tag of a node without one. A written tag is never one of these.
_BARE = "bare"
_QUOTED = "quoted"
_STANDARD = "tag:yaml.org,2002:"


class _Resolver:
    """The part of a PyYAML loader that names the tag of a node without one."""

    def resolve(self, kind: type, value: object, implicit: Any) -> str:
        return _QUOTED if kind is yaml.ScalarNode and not implicit[0] else _BARE

    def descend_resolver(self, current_node: object, current_index: object) -> None:
        """Path resolvers are not used."""

    def ascend_resolver(self) -> None:
        """Path resolvers are not used."""


class PythonComposer(_Resolver, Reader, Scanner, Parser, Composer):
    """Makes the node tree in Python: where PyYAML was built without libyaml."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)


try:
    from yaml.cyaml import CParser  # type: ignore[attr-defined, unused-ignore]
except ImportError:
    _composer: type[Any] = PythonComposer
else:

    class _CComposer(CParser, _Resolver):  # type: ignore[misc, unused-ignore]
        """Makes the node tree in C."""

    _composer = _CComposer


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in the file at `path`.

    Raises ConfigError ``unreadable_file``, ``file_too_large``, ``invalid_encoding`` or ``invalid_yaml``,
    with file and line.
    """
    return parse_yaml(read_text(path), path)


def read_text(path: Path) -> str:
    """The text of a regular file of at most `SIZE_LIMIT` bytes, without a byte order mark."""
    name = os.fspath(path)
    try:
        status = os.stat(name)  # noqa: PTH116 - of ten thousand files the detour is seen
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError("unreadable_file", "not a regular file", file=display(path))
        if status.st_size > SIZE_LIMIT:
            raise _too_large(status.st_size, display(path))
        # Unbuffered: of ten thousand small files the buffers would cost as much as the reading.
        with open(name, "rb", buffering=0) as stream:  # noqa: PTH123
            data = _read(stream)
    except OSError as error:
        raise ConfigError(
            "unreadable_file", f"cannot be read: {error.strerror}", file=display(path)
        ) from error
    if len(data) > SIZE_LIMIT:
        raise _too_large(len(data), display(path))
    return decode(data, path)


def _read(stream: io.FileIO) -> bytes:
    """All of it, up to one byte more than is allowed."""
    pieces, size = [], 0
    while size <= SIZE_LIMIT and (piece := stream.read(SIZE_LIMIT + 1 - size)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _too_large(size: int, file: str) -> ConfigError:
    return ConfigError(
        "file_too_large",
        f"the file has {size} bytes, at most {SIZE_LIMIT} are read",
        file=file,
        hint="put large data into a file of its own, for instance under data/",
    )


def decode(data: bytes, file: str | Path) -> str:
    """UTF-8 text without one leading byte order mark; ConfigError ``invalid_encoding`` with the line."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:4]:
        raise ConfigError(
            "invalid_encoding",
            "the file must be UTF-8, it looks like UTF-16 or UTF-32",
            file=_shown(file),
            line=1,
        )
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            "invalid_encoding",
            f"the file must be UTF-8, byte {data[error.start : error.start + 1]!r} is not",
            file=_shown(file),
            line=data.count(b"\n", 0, error.start) + 1,
        ) from None


def _shown(file: str | Path) -> str:
    """Only for an error: to find out where a path lies costs as much as to read a small file."""
    return file if isinstance(file, str) else display(file)


def parse_yaml(text: str, file: str | Path) -> dict[str, Any]:
    """The mapping in `text`; `file` is named in errors."""
    root = _compose(text, file)
    if root is None:
        raise ConfigError("invalid_yaml", "the document is empty", file=_shown(file), line=1)
    if not isinstance(root, yaml.MappingNode):
        found = "a list" if isinstance(root, yaml.SequenceNode) else f"the text {_short(root.value)}"
        raise ConfigError(
            "invalid_yaml",
            f"the document must be a mapping, found {found}",
            file=_shown(file),
            line=_line(root),
        )
    mapping: dict[str, Any] = _Builder(file).mapping(root, 0)
    return mapping


def parse_value(text: str, what: str) -> Any:
    """One YAML value, as on a command line; `what` is named in errors."""
    root = _compose(text, what)
    return None if root is None else _Builder(what).build(root, 0)


#: Unquoted text that YAML 1.1 readers take for a boolean or a number.
_OTHERWISE = re.compile(
    r"(?:yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF|[-+]?0[0-7_]+|[-+]?0x[0-9a-fA-F_]+|\+[0-9]+"
    r"|[-+]?[0-9]+(?:_[0-9]+)+|[-+]?[1-9][0-9]*(?::[0-5]?[0-9])+|[-+]?\.(?:inf|nan)|[-+]?[0-9]+\.)"
)


def differently_read(path: Path, pointer: str, value: Any) -> list[tuple[int, str]]:
    """Line and text of the values below `pointer` that are text here and another type in YAML 1.1.

    `value` is what was read there. The file is read again only if it holds such a text.
    """
    if not _holds_otherwise(value):
        return []
    node = _compose(read_text(path), path)
    for token in split_pointer(pointer):
        found = _child(node, token)
        if found is None:
            return []
        node = found[1]
    return list(_otherwise(node))


def _holds_otherwise(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_holds_otherwise, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and _OTHERWISE.fullmatch(value) is not None


def _otherwise(node: Any) -> Iterator[tuple[int, str]]:
    if isinstance(node, yaml.ScalarNode):
        if node.tag == _BARE and _OTHERWISE.fullmatch(node.value):
            yield _line(node), node.value
    elif isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _otherwise(value)
    else:
        for item in node.value:
            yield from _otherwise(item)


def find_line(path: Path, pointer: str) -> int | None:
    """The line, from 1, of what `pointer` points to, or of the deepest part of it that is there.

    Reads the file again, so it is for error messages only. None when the file cannot be read any more.
    """
    try:
        node = _compose(read_text(path), "")
    except ConfigError:
        return None
    if node is None:
        return None
    line = _line(node)
    for token in split_pointer(pointer):
        found = _child(node, token)
        if found is None:
            break
        line, node = found
    return line


def _child(node: Any, token: str) -> tuple[int, Any] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == token:
                return _line(key), value
    elif isinstance(node, yaml.SequenceNode) and token.isdigit() and int(token) < len(node.value):
        item = node.value[int(token)]
        return _line(item), item
    return None


def _compose(text: str, file: str | Path) -> Any:
    """The node tree of the only document in `text`; None when there is none."""
    try:
        return _composer(text).get_single_node()
    except yaml.YAMLError as error:
        raise _syntax_error(error, text, file) from None
    except RecursionError:
        raise ConfigError("invalid_yaml", "nested too deeply", file=_shown(file)) from None


def _syntax_error(error: yaml.YAMLError, text: str, file: str | Path) -> ConfigError:
    if isinstance(error, yaml.reader.ReaderError):
        # `position` counts bytes in C and characters in Python; a character is looked for instead.
        bad = re.search("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)
        line = None if bad is None else text.count("\n", 0, bad.start()) + 1
        what = "a control character" if bad is None else f"the character {bad.group()!a}"
        return ConfigError(
            "invalid_yaml", f"{what} is not allowed", file=_shown(file), line=line,
            hint='write it as an escape in double quotes: "\\x07"',
        )  # fmt: skip
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = None if mark is None else mark.line + 1
    parts = (getattr(error, "context", None), getattr(error, "problem", None))
    message = ", ".join(part for part in parts if part) or str(error)
    rows = text.split("\n")
    row = rows[line - 1] if line is not None and line <= len(rows) else ""
    hint = None
    if row[: len(row) - len(row.lstrip())].count("\t"):
        hint = "indent with spaces; YAML does not allow tabs there"
    elif "single document" in message:
        hint = "one file holds one document: remove the '---' line"
    return ConfigError("invalid_yaml", message, file=_shown(file), line=line, hint=hint)


class _Builder:
    """Turns one node tree into plain values."""

    def __init__(self, file: str | Path) -> None:
        self.file = file
        self.count = 0

    def error(self, message: str, node: Any, hint: str | None = None) -> ConfigError:
        return ConfigError("invalid_yaml", message, file=_shown(self.file), line=_line(node), hint=hint)

    def build(self, node: Any, depth: int) -> Any:
        self.count += 1
        if isinstance(node, yaml.ScalarNode):
            self.count += len(node.value) >> 6  # so that a long text cannot be multiplied either
            if self.count <= NODE_LIMIT:
                return self.scalar(node)
        if self.count > NODE_LIMIT or depth > DEPTH_LIMIT:
            raise self.error(
                f"too large: more than {NODE_LIMIT} values or {DEPTH_LIMIT} levels "
                "when every alias is written out",
                node,
            )
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, depth)
        self.check_tag(node, "seq")
        return [self.build(item, depth + 1) for item in node.value]

    def mapping(self, node: Any, depth: int) -> dict[str, Any]:
        self.check_tag(node, "map")
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        lines: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.key(key_node)
            if key in lines:
                raise self.error(
                    f"the key {key!r} is in this mapping twice: "
                    f"lines {_line(lines[key])} and {_line(key_node)}",
                    key_node,
                )
            lines[key] = key_node
            if key == "<<" and key_node.tag == _BARE:
                merged = self.merge(value_node, depth)
            else:
                found[key] = self.build(value_node, depth + 1)
        return {**merged, **found} if merged else found

    def key(self, node: Any) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self.error("a key must be text, found a mapping or a list", node)
        if node.tag not in (_BARE, _QUOTED):
            self.check_tag(node, "str")
        text: str = node.value
        return text

    def merge(self, node: Any, depth: int) -> dict[str, Any]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                raise self.error("'<<' takes a mapping or a list of mappings", source)
            # Of several sources the earlier one wins.
            merged = {**self.build(source, depth + 1), **merged}
        return merged

    def scalar(self, node: Any) -> Any:
        tag, text = node.tag, node.value
        if tag == _BARE:
            return self.bare(text, node)
        if tag == _QUOTED or tag == _STANDARD + "str":
            return text
        value = self.bare(text, node)
        expected: dict[str, Any] = {
            "int": int,
            "float": (int, float),
            "bool": bool,
            "null": type(None),
        }
        wanted = expected.get(str(tag).removeprefix(_STANDARD)) if _is_standard(tag) else None
        if wanted is None:
            self.check_tag(node, "str")
        elif not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise self.error(f"{_short(text)} is not of the type {_show_tag(tag)}", node)
        return float(value) if tag == _STANDARD + "float" else value

    def bare(self, text: str, node: Any) -> Any:
        if text in _WORDS:
            return _WORDS[text]
        if text[0] not in _NUMBER_START:
            return text
        if _INTEGER.fullmatch(text):
            if len(text) > DIGIT_LIMIT:
                raise self.error(f"a number of {len(text)} digits is too long", node)
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if math.isinf(number):
                raise self.error(f"the number {_short(text)} is out of range", node)
            return number
        return text

    def check_tag(self, node: Any, standard: str) -> None:
        if node.tag not in (_BARE, _STANDARD + standard):
            raise self.error(
                f"the tag {_show_tag(node.tag)} is not supported",
                node,
                "write the plain value; nothing in a configuration file is executed or looked up",
            )


def _is_standard(tag: object) -> bool:
    return isinstance(tag, str) and tag.startswith(_STANDARD)


def _show_tag(tag: object) -> str:
    text = str(tag)
    return "!!" + text.removeprefix(_STANDARD) if text.startswith(_STANDARD) else text


def _line(node: Any) -> int:
    line: int = node.start_mark.line + 1
    return line


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
