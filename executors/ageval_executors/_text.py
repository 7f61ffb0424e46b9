"""Text that came from a model, made safe to write and to send on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def mend(text: str) -> str:
    """`text` without lone surrogates: halves that belong together are joined, others become U+FFFD.

    JSON may carry half of a surrogate pair as an escape, Python keeps it in a str, and no UTF-8
    encoder takes it. Providers also cut pairs in two when they stream.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def mend_json(value: Any) -> Any:
    """A JSON value with every string mended, keys included."""
    if isinstance(value, str):
        return mend(value)
    if isinstance(value, list):
        return [mend_json(inner) for inner in value]
    if isinstance(value, dict):
        return {mend(str(key)): mend_json(inner) for key, inner in value.items()}
    return value


def masked(value: Any, secret: str | None, name: str | None) -> Any:
    """A JSON value in which `secret` is replaced by its name: servers and agents repeat keys in messages."""
    if not secret:
        return value
    if isinstance(value, str):
        return value.replace(secret, f"[REDACTED:{name or 'api_key'}]")
    if isinstance(value, Mapping):
        return {masked(str(key), secret, name): masked(row, secret, name) for key, row in value.items()}
    if isinstance(value, list | tuple):
        return [masked(row, secret, name) for row in value]
    return value


def encode_json(value: Any) -> bytes:
    """`value` as UTF-8 JSON. Raises TypeError for what is no JSON."""
    return mend(json.dumps(value, ensure_ascii=False)).encode()


def bounded(text: str, limit: int) -> str:
    """The first `limit` characters, and a mark if there were more."""
    return text if len(text) <= limit else f"{text[:limit]} [... cut]"


def parse_arguments(text: str) -> dict[str, Any] | None:
    """The arguments as an object; none at all count as an empty one; None if they are something else."""
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return mend_json(found) if isinstance(found, dict) else None
