"""How a model call can fail, and what that means for a repetition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from ageval_executors._text import bounded, mend

if TYPE_CHECKING:
    from pytest_ageval.executor import AgentStatus, UsageGap

#: Statuses below 500 after which the same request may succeed.
_TRY_AGAIN = frozenset({408, 409, 425, 429})

#: Words of providers for errors that pass, as they stand in an error object.
_PASSING = frozenset(
    {
        "api_error",
        "internal_error",
        "internal_server_error",
        "overloaded",
        "overloaded_error",
        "rate_limit_error",
        "rate_limit_exceeded",
        "rate_limited",
        "server_error",
        "service_unavailable",
        "timeout",
        "timeout_error",
    }
)

#: Words for an account that is used up: asking again within the hour does not help.
_SPENT = frozenset({"insufficient_quota", "billing_error", "billing_hard_limit_reached"})

#: Characters of a provider's message that are kept.
MESSAGE_LIMIT = 2000


@dataclass(slots=True, eq=False)
class CallFailedError(Exception):
    """A call gave no answer. `error` is the token of `AgentResult.error`; nothing here holds a key."""

    error: str
    transient: bool
    message: str = ""
    status: AgentStatus = "crashed"
    retry_after: float | None = None
    gap: UsageGap = "not_reported"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    infrastructure: bool = True

    def __str__(self) -> str:
        return f"{self.error}: {self.message}" if self.message else self.error


def protocol_error(message: str) -> CallFailedError:
    """The server answered something that is not this API. A proxy on the way may do that for a while."""
    return CallFailedError("ProtocolError", True, message, gap="parse_failed")


def http_error(
    status: int, headers: Mapping[str, str], body: Any, raw: str, *, now: datetime | None = None
) -> CallFailedError:
    """The failure for an HTTP status. `body` is the parsed body or None, `raw` its text."""
    row = _error_row(body)
    message, word = _message(row), _word(row)
    metadata: dict[str, Any] = {"http_status": status}
    for name in ("x-request-id", "request-id"):
        if name in headers:
            metadata["provider_request_id"] = bounded(headers[name], 200)
    if word:
        metadata["provider_code"] = word
    transient = (status in _TRY_AGAIN or status >= 500) and word not in _SPENT
    return CallFailedError(
        f"HTTPError:{status}",
        transient,
        message or bounded(mend(raw.strip()), 300),
        retry_after=retry_after(headers, now or datetime.now(UTC)),
        metadata=metadata,
    )


def error_in_answer(body: Mapping[str, Any]) -> CallFailedError:
    """The failure for an error object that came with status 200, within a stream or in place of an answer."""
    row = _error_row(body)
    word = _word(row)
    code = row.get("code")
    status = code if isinstance(code, int) and not isinstance(code, bool) else None
    transient = word in _PASSING or (status is not None and (status in _TRY_AGAIN or status >= 500))
    metadata = {"provider_code": word} if word else {}
    name = word or (str(status) if status is not None else "unknown")
    return CallFailedError(f"ProviderError:{bounded(name, 80)}", transient, _message(row), metadata=metadata)


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """The seconds a provider asked to wait, from ``retry-after-ms`` or ``retry-after`` (seconds or date)."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - now).total_seconds())


def _number(text: str | None) -> float | None:
    try:
        found = float(text) if text is not None else None
    except ValueError:
        return None
    return found if found is not None and math.isfinite(found) and found >= 0 else None


def _error_row(body: Any) -> Mapping[str, Any]:
    row = body.get("error", body) if isinstance(body, Mapping) else {}
    if isinstance(row, str):
        return {"message": row}
    return row if isinstance(row, Mapping) else {}


def _message(row: Mapping[str, Any]) -> str:
    found = row.get("message") or row.get("detail") or ""
    return bounded(mend(found if isinstance(found, str) else repr(found)), MESSAGE_LIMIT)


def _word(row: Mapping[str, Any]) -> str:
    """The machine's word: OpenAI's ``code`` says more than its ``type``; Anthropic has only ``type``."""
    for name in ("code", "type"):
        found = row.get(name)
        if isinstance(found, str) and found and found != "error":
            return bounded(mend(found), 80)
    return ""
