"""Answering a task's script from what another process did before it was killed.

run.py starts from its top again. What it asks is compared with what it asked then: an invoke that was
completed is answered from the step log, and nothing is sent. The comparison ignores what differs in any
two runs: dates and times of day, UUIDs and other long hexadecimal ids, and the box's directory on the host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_ageval.box import work_parent
from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence.activity import digest

if TYPE_CHECKING:
    from pytest_ageval.evidence import Redactor
    from pytest_ageval.evidence.history import PastInvoke

#: Characters of either text that a message shows around the first difference.
SHOWN = 80

_VOLATILE = re.compile(
    "|".join(
        (
            re.escape(str(work_parent())) + r"/[\w./-]*?(?=/box\b|/host-workspace\b|[\s\"'`]|$)",
            r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b",
            r"\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?(?:[.,]\d+)?(?:Z|[+-]\d{2}:?\d{2})?)?\b",
            r"\b\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?\b",
            r"\b1[5-9]\d{8}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?\b",
            r"\b(?:0x)?(?=[0-9a-fA-F]*[a-fA-F])(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{16,}\b",
        )
    )
)


def settled(text: str) -> str:
    """`text` with a mark in place of what differs in any two runs."""
    return _VOLATILE.sub("\N{BULLET}", text)


def shape(value: Any) -> str | None:
    """A fingerprint of JSON data that ignores what differs in any two runs."""
    return digest(_settled(value))


def _settled(value: Any) -> Any:
    if isinstance(value, str):
        return settled(value)
    if isinstance(value, Mapping):
        return {str(key): _settled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_settled(item) for item in value]
    return value


def asked(payload: Mapping[str, Any]) -> dict[str, Any]:
    """What the step log keeps of a request besides the prompt, so that it is known again."""
    return {
        "prompt_digest": digest(str(payload.get("prompt") or "")),
        "prompt_shape": shape(str(payload.get("prompt") or "")),
        "tools_digest": digest(payload.get("tools")),
        "tools_shape": shape(payload.get("tools")),
        "messages_digest": digest(payload.get("messages")),
        "messages_shape": shape(payload.get("messages")),
    }


def check_aligned(past: PastInvoke, payload: Mapping[str, Any], redactor: Redactor) -> list[str]:
    """Refuse another request than the recorded one; what differs only in what is always different is named.

    Raises `AgevalError` ``session_alignment_mismatch``.
    """
    now, before = asked(payload), past.begun
    volatile = []
    for name in ("prompt", "tools", "messages"):
        if now[f"{name}_digest"] == before.get(f"{name}_digest"):
            continue
        if now[f"{name}_shape"] == before.get(f"{name}_shape"):
            volatile.append(name)
            continue
        raise _mismatch(past, name, payload, redactor)
    return volatile


def _mismatch(past: PastInvoke, name: str, payload: Mapping[str, Any], redactor: Redactor) -> AgevalError:
    message = (
        f"turn {past.turn} of {past.session_id}: run.py does not ask what it asked before it was "
        f"interrupted; the {name} of the request differ{'s' if name == 'prompt' else ''}"
    )
    if name == "prompt":
        before = str(past.begun.get("prompt") or "")
        message += f": {first_difference(before, redactor.text(str(payload.get('prompt') or '')))}"
    return AgevalError(
        "session_alignment_mismatch",
        f"{message}. A script that is continued must ask the same again; run this attempt anew",
        phase="run",
    )


def first_difference(before: str, after: str) -> str:
    """Where two texts part: ``at character 12: '...was' -> '...is'``."""
    settled_before, settled_after = settled(before), settled(after)
    at = 0
    for at, (one, two) in enumerate(zip(settled_before, settled_after, strict=False)):  # noqa: B007
        if one != two:
            break
    else:
        at = min(len(settled_before), len(settled_after))
    start = max(0, at - SHOWN // 4)
    shown = [text[start : start + SHOWN] for text in (settled_before, settled_after)]
    return f"at character {at}: {shown[0]!r} was recorded, {shown[1]!r} is asked now"


def unasked(invokes: Sequence[PastInvoke]) -> AgevalError:
    """The script has ended without asking for what it had asked for."""
    names = ", ".join(f"turn {invoke.turn} of {invoke.session_id}" for invoke in invokes[:3])
    return AgevalError(
        "session_alignment_mismatch",
        f"run.py ended without asking for what it had asked for before it was interrupted: {names}; "
        "run this attempt anew",
        phase="run",
    )
