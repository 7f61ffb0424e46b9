"""What the model answers: keystrokes in JSON or in XML, read with what models get wrong in mind."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ageval_executors._text import mend_json

#: Seconds to wait after keystrokes that name no duration.
DEFAULT_DURATION = 1.0

#: Places in an answer at which an object may begin that are tried.
_STARTS = 20


@dataclass(frozen=True, slots=True)
class Keys:
    """Keystrokes, and the seconds to wait after them."""

    keystrokes: str
    duration: float = DEFAULT_DURATION


@dataclass(slots=True)
class Reply:
    """One answer as far as it could be read. With `error` nothing of it is carried out."""

    analysis: str = ""
    plan: str = ""
    commands: list[Keys] = field(default_factory=list)
    complete: bool = False
    error: str | None = None
    warnings: list[str] = field(default_factory=list)


def read_json(text: str) -> Reply:
    """The first JSON object in `text` that looks like an answer."""
    reply = Reply()
    found, end, start = _object(text, reply)
    if found is None:
        reply.error = reply.error or "there is no JSON object in the answer"
        return reply
    if text[:start].strip(" \t\n`").removeprefix("json").strip() or text[end:].strip(" \t\n`"):
        reply.warnings.append("text outside of the JSON object was ignored")
    missing = [name for name in ("analysis", "plan", "commands") if name not in found]
    reply.complete = _true(found.get("task_complete"))
    if missing and not reply.complete:
        reply.error = f"missing: {', '.join(missing)}"
        return reply
    reply.analysis, reply.plan = str(found.get("analysis") or ""), str(found.get("plan") or "")
    rows = found.get("commands", [])
    if not isinstance(rows, list):
        reply.error = "commands is not a list"
        return reply
    for number, row in enumerate(rows, start=1):
        _command(row, number, number == len(rows), reply)
    return reply


def _object(text: str, reply: Reply) -> tuple[Mapping[str, Any] | None, int, int]:
    # Line ends within strings are a common fault, and what is meant is clear: not strict.
    decoder = json.JSONDecoder(strict=False)
    starts = [match.start() for match in re.finditer(r"\{", text)][:_STARTS]
    for start in starts:
        try:
            found, end = decoder.raw_decode(text, start)
            found = mend_json(found)
        except (ValueError, RecursionError) as error:
            reply.error = reply.error or f"the JSON cannot be read: {error}"
            continue
        if isinstance(found, Mapping) and ("commands" in found or "task_complete" in found):
            reply.error = None
            return found, end, start
    for closing in ("}", "]}", "}]}"):
        if not starts:
            break
        try:
            found = mend_json(decoder.decode(text[starts[0] :].rstrip("` \n\t") + closing))
        except (ValueError, RecursionError):
            continue
        if isinstance(found, Mapping):
            reply.error = None
            reply.warnings.append(f"{closing!r} was missing at the end of the JSON")
            return found, len(text), starts[0]
    return None, 0, 0


def _command(row: Any, number: int, last: bool, reply: Reply) -> None:
    keystrokes = row.get("keystrokes") if isinstance(row, Mapping) else None
    if not isinstance(keystrokes, str):
        reply.error = reply.error or f"command {number} has no keystrokes that are a text"
        return
    unknown = sorted(set(row) - {"keystrokes", "duration"})
    if unknown:
        reply.warnings.append(f"command {number}: unknown: {', '.join(map(str, unknown))}")
    duration = _seconds(row.get("duration"))
    if duration is None and "duration" in row:
        reply.warnings.append(f"command {number}: the duration is no number; {DEFAULT_DURATION:g} is taken")
    _add(Keys(keystrokes, DEFAULT_DURATION if duration is None else duration), number, last, reply)


def _add(keys: Keys, number: int, last: bool, reply: Reply) -> None:
    if not last and keys.keystrokes and not keys.keystrokes.endswith("\n") and len(keys.keystrokes) > 8:
        reply.warnings.append(f"command {number} does not end with a line end, so that the next one joins it")
    reply.commands.append(keys)


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return max(0.0, float(value))


def _true(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "yes", "1"))


# -- XML ---------------------------------------------------------------------------------------------

_KEYSTROKES = re.compile(
    r"<keystrokes((?:\s+[\w-]+=(?:\"[^\"]*\"|'[^']*'))*)\s*>(.*?)</keystrokes>", re.DOTALL
)
_DURATION = re.compile(r"duration\s*=\s*[\"']([^\"']*)[\"']")


def read_xml(text: str) -> Reply:
    """The answer in tags. What stands between them is taken as it is: models do not escape a shell's &."""
    reply = Reply()
    reply.complete = _true(_between(text, "task_complete"))
    commands = _between(text, "commands")
    if commands is None and not reply.complete:
        reply.error = "missing: commands"
        return reply
    reply.analysis, reply.plan = (
        (_between(text, "analysis") or "").strip(),
        (_between(text, "plan") or "").strip(),
    )
    rows = _KEYSTROKES.findall(commands or "")
    if (commands or "").count("<keystrokes") != len(rows):
        reply.error = "an element keystrokes is not closed"
        return reply
    for number, (attributes, keys) in enumerate(rows, start=1):
        told = _DURATION.search(attributes)
        duration = DEFAULT_DURATION
        if told is not None:
            try:
                duration = _seconds(float(told[1])) or 0.0
            except ValueError:
                reply.warnings.append(f"command {number}: the duration is no number")
        _add(Keys(html.unescape(keys), duration), number, number == len(rows), reply)
    return reply


def _between(text: str, tag: str) -> str | None:
    found = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return found[1] if found else None
