"""Which headers pass the gateway, and where the real key goes."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qsl

from pytest_ageval.gateway.routes import KEY_HEADERS, KEY_QUERY
from pytest_ageval.gateway.wires import Wire

Pairs = Iterable[tuple[str, str]]

#: Of one connection only.
_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
#: Replaced, or made anew, on the way out. Answers come unpacked, so that they can be read as they pass.
_OURS = frozenset({"host", "content-length", "accept-encoding", "expect", "cookie", "forwarded"})


def outgoing(headers: Pairs, query: str, wire: Wire, key: str | None) -> list[tuple[str, str]]:
    """The request's headers for the provider: the agent's own, with the real key in place of the dummy.

    The key goes where the agent put its own, else where the API wants it.
    """
    kept: list[tuple[str, str]] = []
    used: str | None = None
    for name, value in headers:
        lower = name.lower()
        if lower in KEY_HEADERS:
            used = used or lower
        elif lower not in _HOP and lower not in _OURS and not lower.startswith("x-forwarded-"):
            kept.append((name, value))
    kept.append(("accept-encoding", "identity"))
    if key is None:
        return kept
    if used is None and any(name == KEY_QUERY for name, _ in parse_qsl(query)):
        used = "x-goog-api-key"
    if used is None:
        default = {"anthropic": "x-api-key", "gemini": "x-goog-api-key"}
        used = default.get(wire, "authorization")
    kept.append((used, f"Bearer {key}" if used == "authorization" else key))
    return kept


def incoming(headers: Pairs, key: str | None, *, length: bool) -> list[tuple[str, str]]:
    """The answer's headers for the agent; none that holds the key. `length`: the body's stays true."""
    dropped = _HOP if length else _HOP | {"content-length"}
    return [
        (name, value) for name, value in headers if name.lower() not in dropped and not (key and key in value)
    ]


def retry_after(value: str | None) -> float | None:
    """Seconds of a ``Retry-After`` that names a number; a date is left to who gets it."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < 1e7 else None
