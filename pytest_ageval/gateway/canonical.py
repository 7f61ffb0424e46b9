"""The canonical form of a request: what makes two requests the same, whenever and wherever they are sent.

What varies from run to run and says nothing about the request is replaced: the run's own names (its
directories, ids, ports), random ids, today's date, the time of day, durations. So two requests that
differ in nothing else are one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

#: Fields of a body that name the session, the machine or the user, at the top of it.
_DROPPED = frozenset(
    {"client_metadata", "metadata", "prompt_cache_key", "safety_identifier", "session_id", "user"}
)

_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)

_Rule = tuple[re.Pattern[str], str]

_RULES: tuple[_Rule, ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # Commits depend on the time at which they are made.
        (r"(?<![0-9A-Za-z])[0-9a-f]{40}(?:[0-9a-f]{24})?(?![0-9A-Za-z])", "<hash>"),
        (r"(\[[\w./-]+(?: \(root-commit\))? )[0-9a-f]{7,12}(?=\])", r"\1<hash>"),
        (r"(?m)^(index |commit )?[0-9a-f]{7,12}\.\.[0-9a-f]{7,12}", r"\1<hash>..<hash>"),
        # Names that mkstemp, mktemp and pytest make, not of ours.
        (r"/tmp/tmp[A-Za-z0-9_]{8}\b", "/tmp/<random>"),  # noqa: S108
        (r"/tmp/tmp\.[A-Za-z0-9]{6,10}\b", "/tmp/<random>"),  # noqa: S108
        (r"/pytest-of-[^/\s]+/pytest-\d+", "/<pytest>"),
        (r"\b(127\.0\.0\.1|localhost|\[::1\]):\d{1,5}\b", r"\1:<port>"),
        (r"\b(0x)[0-9a-f]{8,16}\b", r"\1<address>"),
        (r"(?i)\b(pid|process id|session id|chunk id)([:= ]{1,3})[0-9a-f]+\b", r"\1\2<id>"),
        (r"\b\d+m\d+\.\d+s\b", "<duration>"),
        (r"\b\d+(?:\.\d+)?(?= ?(?:s|ms|sec|secs|seconds|milliseconds)\b)", "<duration>"),
        (r"\b(Original token count: )\d+", r"\1<count>"),
        (r"\bcch=[0-9a-f]+", "cch=<id>"),
        (r"\b(cc_version=\d+\.\d+\.\d+)\.[0-9a-f]+", r"\1.<id>"),
        (r"\b(total )\d+(?=\\n|\n)", r"\1<blocks>"),
    )
)

_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
_ZONE = r"(?:Z| ?[+-]\d{2}:?\d{2}| (?:UTC|GMT|[A-Z]{3,4}T))?"


@dataclass(frozen=True, slots=True)
class Names:
    """The run's own names in a request, and what stands for them."""

    rows: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, names: Mapping[str, str]) -> Names:
        """Longest first, so that a name within another one does not break it."""
        rows = {name: shown for name, shown in names.items() if len(name) >= 4 and name != shown}
        return cls(tuple(sorted(rows.items(), key=lambda row: -len(row[0]))))

    def replace(self, text: str) -> str:
        """`text` with the names replaced."""
        for name, shown in self.rows:
            text = text.replace(name, shown)
        return text


def _dated(days: Iterable[date]) -> list[_Rule]:
    """Rules for these dates in the forms in which they are written, with the time of day."""
    forms: set[str] = set()
    for day in days:
        for text in ("%Y-%m-%d", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d %B %Y", "%d %b %Y"):
            forms.add(re.escape(day.strftime(text)))
        for month in ("%B", "%b"):
            word = f"{day.strftime(month)} +0?{day.day}"
            forms |= {rf"(?:{day:%a},? )?{word}, {day.year}", rf"(?:{day:%A}, ){word}, {day.year}"}
            forms.add(rf"(?:{day:%a} )?{word}(?= +(?:{_CLOCK}|{day.year}))")
        forms.add(rf"{day.month}/{day.day}/{day.year}")
    either = "|".join(sorted(forms, key=len, reverse=True))
    stamp = rf"(?:{either})(?:[T ]+{_CLOCK}{_ZONE}(?: \d{{4}})?)?"
    clock = rf"(?<![\d:])\d{{1,2}}:\d{{2}}:\d{{2}}(?:[.,]\d+)?{_ZONE}"
    return [(re.compile(stamp), "<now>"), (re.compile(clock), "<time>")]


def today() -> date:
    """The date in UTC."""
    return datetime.now(UTC).date()


class Normaliser:
    """Texts of one session, without what varies. UUIDs become their number in the request.

    `days` are dates that count as today, besides today: those on which a recording was made. The
    neighbours of each do too, for time zones and a run over midnight.
    """

    def __init__(self, names: Names, days: Iterable[date] = ()) -> None:
        self._names = names
        near = {day + timedelta(days=off) for day in (today(), *days) for off in (-1, 0, 1)}
        self._rules = (*_dated(near), *_RULES)

    def body(self, body: Any) -> Any:
        """A JSON body."""
        seen: dict[str, int] = {}
        if isinstance(body, Mapping):
            body = {name: value for name, value in body.items() if name not in _DROPPED}
        return self._walk(body, seen)

    def text(self, text: str) -> str:
        """A text."""
        return self._text(text, {})

    def _walk(self, value: Any, seen: dict[str, int]) -> Any:
        if isinstance(value, str):
            return self._text(value, seen)
        if isinstance(value, Mapping):
            return {str(key): self._walk(value[key], seen) for key in sorted(value, key=str)}
        if isinstance(value, list):
            return [self._walk(row, seen) for row in value]
        return value

    def _text(self, text: str, seen: dict[str, int]) -> str:
        text = self._names.replace(text)
        text = _UUID.sub(lambda found: f"<uuid-{seen.setdefault(found[0].lower(), len(seen) + 1)}>", text)
        for pattern, replacement in self._rules:
            text = pattern.sub(replacement, text)
        return text


@dataclass(frozen=True, slots=True)
class Canonical:
    """One request. `digest` is over all of it."""

    method: str
    path: str
    body: Any
    digest: str = field(init=False, default="")

    def __post_init__(self) -> None:
        text = json.dumps([self.method, self.path, self.body], sort_keys=True, separators=(",", ":"))
        found = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        object.__setattr__(self, "digest", found)


def readable(body: Any) -> list[str]:
    """The body as lines for people: JSON, and the lines of its texts each on one of their own."""
    text = json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False)
    return [line for row in text.split("\n") for line in row.replace("\\n", "\n").split("\n")]
