"""Keep the values of secrets out of everything that is written.

A `Redactor` knows exact values, in the encodings in which they turn up, and the shapes of common
tokens. What it finds becomes ``[REDACTED:NAME]`` (``[REDACTED:token]`` for a shape); the text
around it stays as it was.
"""

from __future__ import annotations

import base64
import html
import json
import re
import threading
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, quote_plus

from pytest_ageval.evidence.shapes import SHAPES, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

#: Values shorter than this are not looked for: they would mask ordinary text.
MIN_LENGTH = 8

_HEAD = 4
_TOKEN = "[REDACTED:token]"  # noqa: S105 - what is shown in place of a token
_REGION = re.compile(r"[a-z]{2,4}-[a-z]+(?:-[a-z]+)?-?\d{0,2}")
_PEM_EDGE = re.compile(r"-+(?:BEGIN|END) [A-Z0-9 ]+-+")
_PUBLIC_URL = re.compile(r"https?://[^\s?#@]*")
# Words of eight or more characters that stand in fields of credentials and in ordinary text.
_WORDS = frozenset(
    (
        "password",
        "passwords",
        "changeme",
        "username",
        "undefined",
        "disabled",
        "localhost",
        "production",
        "development",
        "completed",
        "cancelled",
        "anonymous",
        "administrator",
        "assistant",
        "authorized_user",
        "service_account",
        "external_account",
        "googleapis.com",
    )
)


class Span(NamedTuple):
    """Where something is to be masked, with what."""

    start: int
    end: int
    mask: str


def usable(text: str) -> bool:
    """Whether `text` says enough to be looked for without masking harmless text."""
    return (
        len(text) >= MIN_LENGTH
        and len(set(text)) >= 4
        and any(char.isalnum() for char in text)
        and text.lower() not in _WORDS
        and not _REGION.fullmatch(text)
        and not _PEM_EDGE.fullmatch(text)
    )


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if not _PUBLIC_URL.fullmatch(value):
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)


def _parts(value: str) -> Iterator[str]:
    """The value and what of it can be printed on its own: leaves of JSON, long lines."""
    yield value.strip()
    if value.lstrip()[:1] in ("{", "["):
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = None
        for leaf in _leaves(parsed):
            yield from _parts(leaf)
    if "\n" in value:
        yield from (line.strip() for line in value.splitlines())


def encoded(value: str) -> set[str]:
    """The forms in which `value` turns up: plain, JSON, URL, HTML, hex, base64 anywhere."""
    data = value.encode("utf-8", "replace")
    escaped = json.dumps(value)[1:-1]
    literal = json.dumps(value, ensure_ascii=False)[1:-1]
    percent = quote(value, safe="")
    forms = {value, escaped, literal, escaped.replace("/", "\\/"), json.dumps(escaped)[1:-1]}
    forms |= {percent, quote(value), quote_plus(value), html.escape(value)}
    forms.add(re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), percent))
    forms |= {data.hex(), data.hex().upper()}
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(data).decode()
        forms |= {whole, whole.rstrip("=")}
        for shift in range(3):
            # The characters that depend on the value alone, with `shift` bytes before it.
            text = encode(b"\0" * shift + data).decode()
            forms.add(text[(0, 2, 3)[shift] : (shift + len(data)) * 8 // 6])
    return {form for form in forms if len(form) >= MIN_LENGTH}


def _alternatives(words: Iterable[str]) -> str:
    """A regular expression for any of `words`, sharing their beginnings so that it is fast."""
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}

    def write(node: dict[str, Any]) -> str:
        if "" in node:  # a shorter word ends here: it is enough
            return ""
        options = [re.escape(char) + write(node[char]) for char in sorted(node)]
        return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"

    return write(tree)


@dataclass(slots=True)
class _Compiled:
    """The needles and shapes, arranged for one pass over a text."""

    needles: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    shapes: dict[str, list[Shape]] = field(default_factory=dict)
    heads: re.Pattern[str] = re.compile(r"(?!)")
    introducer_lengths: tuple[int, ...] = ()
    beginnings: frozenset[str] = frozenset()
    longest_head: int = 0

    @classmethod
    def of(cls, needles: Mapping[str, str]) -> _Compiled:
        made = cls()
        for needle, mask in sorted(needles.items(), key=lambda item: -len(item[0])):
            made.needles.setdefault(needle[:_HEAD], []).append((needle, mask))
        for shape in SHAPES:
            for introducer in shape.introducers:
                made.shapes.setdefault(introducer, []).append(shape)
        heads = [*made.needles, *made.shapes]
        made.heads = re.compile(_alternatives(heads))
        made.introducer_lengths = tuple(sorted({len(word) for word in made.shapes}))
        made.beginnings = frozenset(part for word in heads for part in accumulate(word[:-1]))
        made.longest_head = max(map(len, heads))
        return made

    def scan(self, text: str, start: int, held: list[int] | None) -> list[Span]:
        """What to mask in ``text[start:]``, overlaps merged.

        With `held`, more text may follow, and the positions from which something may yet grow into
        a secret are added to it.
        """
        found: list[Span] = []
        search = self.heads.search
        hit = search(text, start)
        while hit is not None:
            at = hit.start()
            self._needles_at(text, at, found, held)
            self._shapes_at(text, at, found, held)
            hit = search(text, at + 1)
        if held is not None:
            for at in range(max(start, len(text) - self.longest_head + 1), len(text)):
                if text[at:] in self.beginnings:
                    held.append(at)
                    break
        return _merged(found)

    def _needles_at(self, text: str, at: int, found: list[Span], held: list[int] | None) -> None:
        longest = True
        rest = None
        for needle, mask in self.needles.get(text[at : at + _HEAD], ()):
            if longest and text.startswith(needle, at):
                found.append(Span(at, at + len(needle), mask))
                longest = False
            elif held is not None and len(needle) > len(text) - at:
                rest = text[at:] if rest is None else rest
                if needle.startswith(rest):
                    held.append(at)

    def _shapes_at(self, text: str, at: int, found: list[Span], held: list[int] | None) -> None:
        for length in self.introducer_lengths:
            for shape in self.shapes.get(text[at : at + length], ()):
                match = shape.whole.match(text, at)
                if match is not None:
                    found.append(Span(*match.span(match.lastindex or 0), _TOKEN))
                if held is not None and shape.open.match(text, at) is not None:
                    held.append(at)


def _merged(found: list[Span]) -> list[Span]:
    """`found` in order, overlaps joined; the name of a known secret wins over the general mask."""
    if len(found) < 2:
        return found
    found.sort()
    result = [found[0]]
    for span in found[1:]:
        last = result[-1]
        if span.start >= last.end:
            result.append(span)
            continue
        mask = span.mask if last.mask == _TOKEN else last.mask
        result[-1] = Span(last.start, max(last.end, span.end), mask)
    return result


def _apply(text: str, start: int, end: int, spans: Iterable[Span]) -> str:
    parts: list[str] = []
    for span in spans:
        parts += (text[start : span.start], span.mask)
        start = span.end
    parts.append(text[start:end])
    return "".join(parts)


class Redactor:
    """Masks the values of secrets. Safe to use from any thread.

    `warnings` says which registered values are too short or too plain to be looked for.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._lock = threading.Lock()
        self._values: set[tuple[str, str]] = set()
        self._needles: dict[str, str] = {}
        self._compiled: _Compiled | None = None

    def add(self, name: str, value: str) -> None:
        """Register the value of the secret `name` (the name of its environment variable).

        The string leaves of a JSON value and the long lines of a text are looked for too.
        """
        with self._lock:
            if (name, value) in self._values:
                return
            self._values.add((name, value))
            mask = f"[REDACTED:{re.sub(r'[^A-Za-z0-9_.-]', '_', name) or 'secret'}]"
            parts = [part for part in dict.fromkeys(_parts(value)) if usable(part)]
            for part in parts:
                for form in encoded(part):
                    self._needles.setdefault(form, mask)
            if not parts:
                self.warnings.append(
                    f"the value of {name} is too short or too plain to be masked in the evidence"
                )
            self._compiled = None

    def _ready(self) -> _Compiled:
        compiled = self._compiled
        if compiled is None:
            with self._lock:
                compiled = self._compiled = (
                    _compiled_shapes() if not self._needles else _Compiled.of(self._needles)
                )
        return compiled

    def needles(self) -> tuple[bytes, ...]:
        """The registered values in all their forms, to look for in bytes."""
        with self._lock:
            return tuple(needle.encode("utf-8", "surrogatepass") for needle in self._needles)

    def spans(self, text: str) -> list[Span]:
        """Where secrets stand in `text`, in order, not overlapping."""
        return self._ready().scan(text, 0, None)

    def text(self, text: str) -> str:
        """`text` without secrets."""
        spans = self._ready().scan(text, 0, None)
        return _apply(text, 0, len(text), spans) if spans else text

    def segments(self, parts: list[str]) -> list[str]:
        """The parts of one text without secrets, also where one reaches over several parts.

        As many parts come out; a mask stands in the part in which its secret began.
        """
        spans = self.spans("".join(parts))
        if not spans:
            return parts
        result: list[str] = []
        offset, index = 0, 0
        for part in parts:
            end, at = offset + len(part), offset
            out: list[str] = []
            while index < len(spans) and spans[index].start < end:
                span = spans[index]
                if span.start >= offset:
                    out += (part[at - offset : span.start - offset], span.mask)
                at = min(span.end, end)
                if span.end > end:
                    break
                index += 1
            out.append(part[at - offset :])
            offset = end
            result.append("".join(out))
        return result

    def value(self, value: Any) -> Any:
        """A JSON value without secrets in its strings and keys; numbers and the rest untouched."""
        return _walk(value, self.text)

    def stream(self) -> StreamRedactor:
        """A redactor for text that arrives in pieces."""
        return StreamRedactor(self)


def _walk(value: Any, text: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {text(key) if isinstance(key, str) else key: _walk(item, text) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_walk(item, text) for item in value]
    return value


_shapes_only: list[_Compiled] = []


def _compiled_shapes() -> _Compiled:
    """What a redactor without secrets uses; made once a process."""
    if not _shapes_only:
        _shapes_only.append(_Compiled.of({}))
    return _shapes_only[0]


class StreamRedactor:
    """Redacts one stream of text, wherever it is cut into pieces.

    `feed` gives what is safe to show; the last characters are held back while they may be the
    beginning of a secret. `flush` gives the rest. Joined, the output is what `Redactor.text` makes
    of the joined input. Not safe to use from several threads at once.
    """

    # A shape looks back at most this far.
    _CONTEXT = 2

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._before = ""
        self._held = ""
        #: How many secrets have been masked so far.
        self.masked = 0

    def feed(self, text: str) -> str:
        """Take the next piece; returns what can be shown now."""
        if not text:
            return ""
        buffer = self._before + self._held + text
        start = len(self._before)
        held = [len(buffer)]
        spans = self._redactor._ready().scan(buffer, start, held)
        cut = min(held)
        for span in spans:
            # What begins inside a finished match may grow beyond it: then all of it waits.
            if span.start < cut < span.end:
                cut = span.start
        spans = [span for span in spans if span.start < cut]
        self.masked += len(spans)
        self._held = buffer[cut:]
        self._before = buffer[max(cut - self._CONTEXT, 0) : cut]
        return _apply(buffer, start, cut, spans)

    def flush(self) -> str:
        """The rest; the stream may go on after it, but nothing is joined over the border."""
        buffer = self._before + self._held
        start = len(self._before)
        spans = self._redactor._ready().scan(buffer, start, None)
        self.masked += len(spans)
        self._before = self._held = ""
        return _apply(buffer, start, len(buffer), spans)
