"""What the end of a turn means: stop reasons, JSON-RPC errors, failures that look like answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_ageval.executor import AgentStatus

_STATUS: dict[str, AgentStatus] = {
    "end_turn": "completed",
    "max_tokens": "limit",
    "max_turn_requests": "limit",
    "refusal": "refused",
    "cancelled": "cancelled",
}

#: What marks a failure that may go away by itself. Looked for in an error's message and data.
_TRANSIENT = re.compile(
    r"(?<![\d.])(?:408|425|429|5\d\d)(?![\d.])|rate.?limit|too.many.requests|overloaded|timed?.?out"
    r"|server_error|internal_server_error|temporar|unavailable|high demand|stream disconnected"
    r"|(?:connection|socket) (?:error|closed|reset|refused)|econn(?:reset|refused|aborted)|etimedout"
    r"|fetch failed|network error|error sending request",
    re.IGNORECASE,
)
#: What marks one that will not. Wins over the above.
_PERMANENT = re.compile(
    r"(?<![\d.])(?:400|401|403|404|422)(?![\d.])|unauthorized|forbidden|invalid.?api.?key"
    r"|authentication|permission_error|invalid_request|billing|not_found_error|model.not.found",
    re.IGNORECASE,
)
#: An answer that is nothing but a provider's error.
_SUSPICIOUS = re.compile(
    r"\s*(?:API Error|HTTP(?: status)?[ :/]*[45]\d\d|Error[: ]+[45]\d\d\b|unexpected status [45]\d\d"
    r"|\{\s*\"(?:type|error)\"\s*:\s*(?:\"error\"|\{))",
    re.IGNORECASE,
)

AUTH_REQUIRED = -32000
METHOD_NOT_FOUND = -32601


def stop_status(result: Mapping[str, Any]) -> tuple[str | None, AgentStatus]:
    """(the literal stop reason, what it means). Words outside the protocol are kept and mean ``unknown``."""
    value = result.get("stopReason")
    literal = value if isinstance(value, str) or value is None else json.dumps(value)
    return literal, _STATUS.get(literal or "", "unknown")


@dataclass(frozen=True, slots=True)
class RpcFailure:
    """A JSON-RPC error that answered a request."""

    code: int | str
    message: str
    data: Any = None

    @property
    def title(self) -> str:
        """The stable token."""
        return "acp_auth_required" if self.code == AUTH_REQUIRED else f"acp_error:{self.code}"

    @property
    def text(self) -> str:
        """The agent's message, word for word, with its data when that is short text."""
        detail = self.details
        return f"{self.message} ({detail})" if detail and detail not in self.message else self.message

    @property
    def details(self) -> str:
        """``data`` (or the ``details`` or ``message`` in it) as text of at most 1000 characters."""
        data = self.data
        if isinstance(data, Mapping):
            data = next((data[key] for key in ("details", "message") if data.get(key)), data)
        if data is None:
            return ""
        return (data if isinstance(data, str) else json.dumps(data, ensure_ascii=False))[:1000]

    @property
    def transient(self) -> bool:
        """Trying again may help: 408, 425, 429, 5xx, an overload, a timeout or a lost connection is named.

        A 4xx of the kind that stays (bad request, credentials, unknown model) wins over these.
        """
        if isinstance(self.code, int) and (self.code in (408, 425, 429) or 500 <= self.code < 600):
            return True
        if self.code == AUTH_REQUIRED or (isinstance(self.code, int) and 400 <= self.code < 500):
            return False
        told = f"{self.message} {json.dumps(self.data, ensure_ascii=False) if self.data else ''}"
        return bool(_TRANSIENT.search(told)) and not _PERMANENT.search(told)

    @property
    def retry_after(self) -> float | None:
        """Seconds that the provider asked to wait, if the agent passed them on."""
        data = self.data if isinstance(self.data, Mapping) else {}
        for key in ("retryAfter", "retry_after", "retryAfterSeconds"):
            value = data.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
                return float(value)
        found = re.search(r"(?:retry|try again) (?:after|in) (\d+(?:\.\d+)?) ?s", self.message, re.IGNORECASE)
        return float(found[1]) if found else None

    def as_dict(self) -> dict[str, Any]:
        """For the result's metadata."""
        return {"code": self.code, "message": self.message, "data": self.data}


def looks_like_error(text: str, tool_calls: int) -> bool:
    """The answer of a turn without tools reads as a provider's error. A suspicion, never a verdict."""
    return tool_calls == 0 and len(text) < 4000 and _SUSPICIOUS.match(text) is not None


def declared_failure(meta: Any, depth: int = 3) -> dict[str, Any] | None:
    """The object in ``_meta`` by which an agent says itself that the turn failed (``failed: true``)."""
    if not isinstance(meta, Mapping) or depth < 0:
        return None
    if meta.get("failed") is True:
        return dict(meta)
    for value in meta.values():
        if (found := declared_failure(value, depth - 1)) is not None:
            return found
    return None
