"""Which API a request belongs to, and what of it is worth knowing: model, tools, stream."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: The APIs that are read. ``count_tokens`` makes nothing; ``other`` is passed on and not read.
Wire = Literal["chat", "responses", "anthropic", "gemini", "count_tokens", "other"]

#: Wires on which a model answers, which costs.
GENERATING = frozenset({"chat", "responses", "anthropic", "gemini"})

_ENDS: tuple[tuple[str, Wire], ...] = (
    ("/chat/completions", "chat"),
    ("/responses", "responses"),
    ("/messages/count_tokens", "count_tokens"),
    ("/messages", "anthropic"),
)
_GEMINI = re.compile(r"/models/(?P<model>[^/:]+):(?P<verb>[A-Za-z]+)\Z")

#: Bytes of an unpacked body that are read.
MAX_UNPACKED = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for. `tools`: it offers the model tools, as the main calls of agents do."""

    model: str | None = None
    tools: bool = False
    body: Any = None


def wire_of(method: str, path: str) -> Wire:
    """The wire of a request by its method and path (without a query)."""
    if method != "POST":
        return "other"
    path = path.rstrip("/")
    for end, wire in _ENDS:
        if path.endswith(end):
            return wire
    if found := _GEMINI.search(path):
        verb = found["verb"]
        if verb in ("generateContent", "streamGenerateContent"):
            return "gemini"
        if verb == "countTokens":
            return "count_tokens"
    return "other"


def asked(path: str, body: bytes, encoding: str | None) -> Asked:
    """Read a request's body. What is not JSON is not an error here: the provider will say so."""
    try:
        found = json.loads(unpacked(body, encoding))
    except (ValueError, RecursionError):
        return Asked()
    if not isinstance(found, Mapping):
        return Asked(body=found)
    in_path = _GEMINI.search(path.rstrip("/"))
    model = found.get("model") if in_path is None else in_path["model"]
    return Asked(model if isinstance(model, str) else None, bool(found.get("tools")), found)


def unpacked(body: bytes, encoding: str | None) -> bytes:
    """`body` without its content encoding. Raises ValueError for one that is not known, or too large."""
    if encoding in (None, "", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(f"content-encoding {encoding}")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        found = unpacker.decompress(body, MAX_UNPACKED)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if unpacker.unconsumed_tail:
        raise ValueError("too large")
    return found
